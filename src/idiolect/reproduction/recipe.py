"""A recipe: one figure or table of a paper as data.

    paper, item, title      which one it is
    like                    another recipe: what this one does not say is as there
    settings                of all runs, as `idiolect run` takes them
    panels                  settings on top, for each part of the figure; one without a name if there are none
    functions, constants    what theory says: curves beside what is measured, numbers in claims
    lines                   settings on top, for each thing that is compared; each names its method
    judged                  the kind of model that a line is about, where it is not its method's own
    tune                    what the paper leaves open: a small grid for each line, chosen on validation rows
    sizes                   `small` and `paper`: settings on top, how many seeds, and what was scaled down
    numbers                 what the paper reports, by panel and model
    claims                  what the paper says, as comparisons that can be computed (`claims.py`)
    figures                 what is drawn (`figures.py`)

A model is written "LINE KIND", as "APFL 0.25 personal", where it matters followed by " @ PANEL".
"""

from collections.abc import Sequence
from dataclasses import field
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import Field
from pydantic.dataclasses import dataclass

from idiolect.core.hyper import STRICT
from idiolect.core.method import PredictorKind
from idiolect.errors import UserError, did_you_mean
from idiolect.methods.catalogue import find_method
from idiolect.reproduction.claims import Claim
from idiolect.reproduction.figure_plans import FigurePlan
from idiolect.reproduction.functions import Constant, Function
from idiolect.runs.comparison import method_options
from idiolect.runs.settings import Settings, merge, normalise, parse_settings, read_settings
from idiolect.runs.signatures import build

SizeName = Literal["small", "paper"]
SIZES: tuple[SizeName, ...] = get_args(SizeName)
PAPERS = {
    "apfl": "APFL: Adaptive Personalized Federated Learning",
    "additive": "Additive: Personalization Mitigates the Perils of Local SGD",
    "efl": "EFL: Elastic Federated Learning on Non-IID Data",
    "pfedkm": "pFedKM: Personalized Federated Learning with Clustered Generalization",
    "perm": "PERM: Distributed Personalized Empirical Risk Minimization",
    "field": "The field: all methods under one protocol",
    "privacy": "Privacy: accuracy against ε",
}
ALL = ""  # the panel of a recipe that has only one
RESERVED = ("runs", "field")  # folders beside those of recipes

Grid = dict[str, list[Any]]


@dataclass(frozen=True, config=STRICT)
class Size:
    """How large a recipe is played."""

    changes: str = Field(default="", description="what differs from the paper's own setting, in words")
    settings: Settings = field(default_factory=dict)
    seeds: int = Field(default=3, ge=1)
    minutes: float | None = Field(default=None, description="that it takes on two free processors, estimated")
    panels: tuple[str, ...] | None = Field(default=None, description="None: all")
    lines: tuple[str, ...] | None = Field(default=None, description="None: all")


@dataclass(frozen=True, config=STRICT)
class Tune:
    """What is tried for each line: all combinations, as many for each of them."""

    grid: Grid = field(default_factory=dict)
    lines: dict[str, Grid] = Field(default_factory=dict, description="in place of `grid` for some lines")
    panels: Literal["first", "each"] = Field(
        default="first", description="panel: the first one's choice is for all"
    )
    keep_split: bool = Field(
        default=True,
        description="all seeds have the first one's split; else its validation rows are others' test rows",
    )

    def __post_init__(self) -> None:
        """Something to try wherever something is open."""
        for grid in (self.grid, *self.lines.values()):
            for setting, values in grid.items():
                if not values:
                    raise ValueError(f"tune must have a value to try for {setting}")

    @property
    def something(self) -> bool:
        """Whether anything is open."""
        return bool(self.grid or self.lines)

    def of(self, line: str) -> list[Settings]:
        """The settings that are tried for a line; none where nothing is open."""
        grid = self.lines.get(line, self.grid)
        return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())] if grid else []


@dataclass(frozen=True, config=STRICT)
class Numbers:
    """What the paper reports of a metric, by panel and model; shares as it prints them, in per cent."""

    metric: str
    values: dict[str, dict[str, float]]
    part: Literal["train", "test"] = "test"
    percent: bool = False


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Recipe:
    """One figure or table of a paper."""

    name: str
    paper: str
    item: str
    title: str
    left_open: str = Field(default="", description="what the paper does not say, and what was taken")
    found: str = Field(
        default="", description="what was tried where a claim does not hold, and what came of it"
    )
    settings: Settings = field(default_factory=dict)
    panels: dict[str, Settings] = field(default_factory=lambda: {ALL: {}})
    lines: dict[str, Settings] = field(default_factory=dict)
    judged: dict[str, PredictorKind] = Field(
        default_factory=dict, description="the kind that a line is tuned and ranked by; else its method's own"
    )
    functions: dict[str, Function] = Field(default_factory=dict, description="curves of theory")
    constants: dict[str, Constant] = Field(default_factory=dict, description="numbers of theory")
    tune: Tune = field(default_factory=Tune)
    sizes: dict[SizeName, Size] = field(default_factory=dict)
    numbers: tuple[Numbers, ...] = ()
    claims: tuple[Claim, ...] = ()
    figures: tuple[FigurePlan, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what no run could tell."""
        if self.paper not in PAPERS:
            raise ValueError(f"paper={self.paper} must be one of {', '.join(PAPERS)}")
        for place, named in (("tune.lines", self.tune.lines), ("judged", self.judged)):
            for line in named:
                if line not in self.lines:
                    raise ValueError(f"{place} has {line!r}, which is none of the lines")
        tried = {line: len(self.tune.of(line)) for line in self.lines}
        counts = {count for count in tried.values() if count}
        if len(counts) > 1:
            shown = ", ".join(f"{line} {count}" for line, count in tried.items())
            raise ValueError(f"tune must try as many settings for each line: {shown}")

    @property
    def theory(self) -> dict[str, Function | Constant]:
        """All that is computed and not measured, by name."""
        return {**self.functions, **self.constants}

    def size(self, name: SizeName) -> Size:
        """How it is played in a size; one that is not scaled down has only `paper`."""
        return self.sizes.get(name) or self.sizes.get("paper") or Size()

    def size_name(self, name: SizeName) -> SizeName:
        """Which size is played where one is asked for."""
        return name if name in self.sizes else "paper"

    def run_settings(self, panel: str, line: str, size: SizeName) -> Settings:
        """The settings of a run but for its seed and for what is tuned."""
        shared: Settings = {}
        for part in (self.settings, self.panels[panel], self.size(size).settings):
            shared = merge(shared, normalise(part))
        own = normalise(self.lines[line])
        if "name" not in own.get("method", {}):
            raise UserError(f"lines.{line} of the recipe {self.name} must name its method")
        # As in a comparison, what is said of all methods is for those that have it.
        known = method_options(find_method(own["method"]["name"]))
        common = {name: value for name, value in shared.pop("method", {}).items() if name in known}
        return merge(shared | {"method": common}, own)


def recipe_names() -> list[str]:
    """All recipes of the package, in the order of the papers and of their figures and tables."""
    names = [file.name.removesuffix(".yaml") for file in _folder().iterdir() if file.name.endswith(".yaml")]
    order = list(PAPERS)
    return sorted(names, key=lambda name: (order.index(name.partition("-")[0]), name))


def recipe_text(name: str) -> str:
    """The YAML file of a recipe of the package, to be copied and changed."""
    if name not in recipe_names():
        raise UserError(
            f"{name!r} is no recipe of the package{did_you_mean(name, recipe_names())}; "
            "`idiolect reproduce --list` shows all of them"
        )
    return (_folder() / f"{name}.yaml").read_text(encoding="utf-8")


def find_recipe(name: str) -> Recipe:
    """A recipe by its name, or from a file of the same form."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml") and path.is_file():
        return _recipe(read_settings([path]), path.stem)
    if name not in recipe_names():
        raise UserError(
            f"{name!r} is neither a recipe{did_you_mean(name, recipe_names())} nor a YAML file that exists; "
            "`idiolect reproduce --list` shows all recipes"
        )
    return read_recipe(recipe_text(name), name)


def read_recipe(text: str, name: str) -> Recipe:
    """A recipe from YAML."""
    return _recipe(parse_settings(text, name), name)


def _recipe(settings: Settings, name: str) -> Recipe:
    if name in RESERVED:
        raise UserError(f"a recipe cannot be called {name!r}: there is another folder of that name")
    return build(Recipe, {"name": name, **_whole(settings)}, name)


def _whole(settings: Settings) -> Settings:
    """With what is taken from the recipe that it is like."""
    base = settings.pop("like", None)
    return settings if base is None else merge(_whole(parse_settings(recipe_text(base), base)), settings)


def kind_and_line(model: str, lines: Sequence[str]) -> tuple[str, PredictorKind | None]:
    """The line and the kind that a model's name is made of; a line alone has no kind.

    >>> kind_and_line("APFL 0.25 personal", ["APFL 0.25", "FedAvg"])
    ('APFL 0.25', 'personal')
    """
    line, _, kind = model.rpartition(" ")
    if line in lines and kind in get_args(PredictorKind):
        return line, kind  # type: ignore[return-value]
    if model in lines:
        return model, None
    raise UserError(f"{model!r} is no model: give one as LINE KIND, with a line of {', '.join(lines)}")


def _folder() -> Any:
    return files("idiolect.reproduction") / "recipes"
