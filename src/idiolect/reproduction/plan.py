"""From a recipe to its runs."""

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from idiolect.core.method import PredictorKind
from idiolect.reproduction.recipe import Recipe, Size, SizeName
from idiolect.runs.config import RunConfig, resolve
from idiolect.runs.folder import RunFolder
from idiolect.runs.settings import Settings, merge, normalise

# One thread, so that sums do not depend on how many processes a machine has room for; no states, because
# what a figure needs is in the tables.
COMMON: Settings = {"threads": 1, "checkpoint": {"states": False}}


class Place(NamedTuple):
    """Where a run stands in a figure."""

    panel: str
    line: str


class PlannedRun(NamedTuple):
    """A run and where it stands."""

    place: Place
    seed: int
    config: RunConfig


@dataclass(frozen=True)
class Plan:
    """The runs of a recipe in one size with some seeds, below a folder that all recipes share."""

    recipe: Recipe
    asked_size: SizeName
    seeds: tuple[int, ...]
    root: Path

    @property
    def size_name(self) -> SizeName:
        """The size that is played."""
        return self.recipe.size_name(self.asked_size)

    @property
    def size(self) -> Size:
        """What it is in numbers."""
        return self.recipe.size(self.asked_size)

    @property
    def panels(self) -> list[str]:
        """Those of this size."""
        return [p for p in self.recipe.panels if self.size.panels is None or p in self.size.panels]

    @property
    def lines(self) -> list[str]:
        """Those of this size."""
        return [p for p in self.recipe.lines if self.size.lines is None or p in self.size.lines]

    @property
    def places(self) -> list[Place]:
        """Every line of every panel."""
        return [Place(panel, line) for panel in self.panels for line in self.lines]

    @cached_property
    def trials(self) -> dict[Place, list[tuple[Settings, RunConfig]]]:
        """What is tried for each place whose settings are open, with the first seed."""
        tried = {}
        for place in self.places:
            at_first = self.recipe.tune.panels == "each" or place.panel == self.panels[0]
            if at_first and (grid := self.recipe.tune.of(place.line)):
                tried[place] = [(point, self.config_of(place, self.seeds[0], point)) for point in grid]
        return tried

    def runs(self) -> Iterator[PlannedRun]:
        """All runs, once what is open is decided."""
        for place in self.places:
            chosen = self.chosen(place)
            for seed in self.seeds:
                yield PlannedRun(place, seed, self.config_of(place, seed, chosen))

    def chosen(self, place: Place) -> Settings:
        """The tried settings with the best validation value; among equals the first."""
        tried = self.trials.get(self._tuned_at(place), [])
        kind = self.recipe.judged.get(place.line)
        scored = [(point, score_of(config, kind)) for point, config in tried]
        known = [(point, score) for point, score in scored if score is not None]
        return max(known, key=lambda one: one[1])[0] if known else {}

    def why_undecided(self) -> str | None:
        """Why something that is open cannot be decided, if it cannot."""
        for place, tried in self.trials.items():
            kind = self.recipe.judged.get(place.line)
            if all(score_of(config, kind) is None for _, config in tried):
                return f"no trial of {place.line!r} has a validation value: all failed, or none has such rows"
        return None

    @property
    def number_of_runs(self) -> int:
        """How many there are, with those to choose by; what was tried with a final seed counts once."""
        tried = sum(map(len, self.trials.values()))
        return tried + len(self.places) * len(self.seeds) - len(self.trials)

    def _tuned_at(self, place: Place) -> Place:
        return place if self.recipe.tune.panels == "each" else Place(self.panels[0], place.line)

    def config_of(self, place: Place, seed: int, point: Settings) -> RunConfig:
        """The run at a place with a seed and what is chosen there; its folder follows from all of it."""
        settings = self.recipe.run_settings(place.panel, place.line, self.asked_size)
        settings = merge(merge(COMMON, settings), normalise(point))
        if self.recipe.tune.something and self.recipe.tune.keep_split:
            settings = merge({"data": {"seed": self.seeds[0]}}, settings)
        config = resolve({**settings, "seed": seed})
        return replace(config, out=str(self.root / "runs" / _folder_name(config)))


def score_of(config: RunConfig, kind: PredictorKind | None = None) -> float | None:
    """The validation value of a kind of model in a finished run, larger ones being better; None: it has none.

    kind: None stands for the one that the method is judged by.
    """
    if not (config.folder / "summary.json").is_file():
        return None
    summary = RunFolder(config.folder).summary()
    value = float(summary["kinds"][kind or summary["judged_by"]]["validation"])
    if math.isnan(value):
        return None
    return value if summary["higher_is_better"] else -value


def plans_of(
    recipes: Sequence[Recipe], size: SizeName, seeds: Sequence[int] | None, root: Path
) -> list[Plan]:
    """A plan for each recipe; without seeds as many as its size has, from 0 on."""
    return [
        Plan(recipe, size, tuple(range(recipe.size(size).seeds)) if seeds is None else tuple(seeds), root)
        for recipe in recipes
    ]


def _folder_name(config: RunConfig) -> str:
    # In whatever order settings are written, they are the same run.
    digest = hashlib.sha256(json.dumps(config.identity(), sort_keys=True).encode()).hexdigest()[:12]
    return f"{Path(config.data_name).stem}-{config.method_name}-{digest}"
