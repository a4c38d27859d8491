"""One run's configuration: checked, complete, and plain enough for a YAML file."""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import pandas as pd
import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

from idiolect.aggregation.rules import RobustRule
from idiolect.codecs.choice import CodecConfig
from idiolect.core.device import DeviceName, find_device
from idiolect.core.hyper import STRICT
from idiolect.core.method import Method
from idiolect.core.outer_step import OuterStep
from idiolect.core.parts import PartChoice
from idiolect.core.statistics import Variant
from idiolect.data.catalogue import CATALOGUE as DATA
from idiolect.data.catalogue import is_name
from idiolect.data.federation import Federation
from idiolect.engines.assembly import HereEngine, RayEngineChoice
from idiolect.errors import UserError
from idiolect.evaluation.metrics import all_named
from idiolect.methods.catalogue import CATALOGUE as METHODS
from idiolect.methods.catalogue import find_method
from idiolect.models import CATALOGUE as MODELS
from idiolect.models import one_of_several, several
from idiolect.models.preparation import OPTIONS as OF_EVERY_MODEL
from idiolect.models.preparation import Preparation, without_preparation
from idiolect.participation import Participation
from idiolect.privacy.settings import PrivacyChoice, SiloPrivacy
from idiolect.runs.defaults import defaults_for
from idiolect.runs.identity import identity
from idiolect.runs.left_out import NewcomerSettings
from idiolect.runs.rounds import Pace
from idiolect.runs.sections import CheckpointSettings, EvaluationSettings, WholeNumber, with_sections
from idiolect.runs.settings import NAMED_SECTIONS, SHORTCUTS, Settings, merge, write_settings
from idiolect.runs.signatures import build, check_arguments, dump, fields_of, require_known, spelled_out
from idiolect.trackers import TrackerName

AUTO = "auto"  # in place of a rate: it is to suit the data
AT_SILOS = "at-silos"  # in place of a data set: the tables of the silos that a run is served to

Section = dict[str, Any]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class RunConfig:
    """All that decides what a run computes. The sections with a name hold that thing's own options."""

    method: Section = Field(
        description="a method of `idiolect methods` or package.module:Class, and its hyper-parameters"
    )
    data: Section = Field(
        description="a data set of `idiolect datasets`, a path or package.module:loader, and its options"
    )
    model: Section = Field(
        description="a model by name, such as linear, mlp, cnn, resnet, gru, or package.module:factory"
    )
    train: PartChoice | None = Field(
        default=None,
        description="what of the model is trained, everything else being fixed: head, body, norm, adapter, "
        "or patterns of names such as [output.*]; None: all, or the adapters of a model that has some",
    )
    participation: Participation = Field(
        default_factory=Participation, description="who takes part, and how much work each completes"
    )
    codec: CodecConfig = Field(default_factory=CodecConfig, description="what compresses the messages")
    robust: RobustRule | None = Field(
        default=None,
        discriminator="name",
        description="a sum that a few wrong uploads cannot lead astray: clip, median, trimmed or krum",
    )
    outer: OuterStep | None = Field(
        default=None,
        discriminator="name",
        description="a server's step in place of the average: avgm, adagrad, adam or yogi",
    )
    privacy: PrivacyChoice | None = Field(
        default=None,
        discriminator="unit",
        description="clipping and noise that hide whether a row, or a silo, took part",
    )
    rounds: Annotated[WholeNumber, Field(ge=1)] | None = Field(
        default=None, description="rounds of communication; None: as many as validation rows gain from"
    )
    seed: WholeNumber = Field(default=0, ge=0, lt=2**63, description="of splits, initial models and batches")
    batch_size: Annotated[WholeNumber, Field(ge=1)] | Literal["all"] | None = Field(
        default=None, description="rows in each gradient; None: 128 for linear models, 20 for others"
    )
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False, description="the l2 term's factor")
    clip: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="largest norm of a gradient; None: any"
    )
    statistics: Variant | None = Field(
        default=None,
        description="of normalisation layers: average, pooled or silo (kept); None: what suits the method",
    )
    dtype: Literal["float32", "float64"] = Field(default="float32", description="precision of models")
    engine: HereEngine | RayEngineChoice = Field(
        default_factory=HereEngine,
        discriminator="name",
        description="all clients at once, one by one, or ray",
    )
    device: DeviceName = Field(
        default="cpu",
        description="where clients are computed: cpu, cuda, cuda:1, mps, or auto for what is there",
    )
    store: Literal["memory", "disk"] = Field(
        default="memory", description="where client states are; disk for more clients than fit in memory"
    )
    threads: Annotated[WholeNumber, Field(ge=1)] | None = Field(
        default=None, description="of the processor, which sums can depend on; None: as many as torch has"
    )
    newcomers: NewcomerSettings = Field(
        default_factory=NewcomerSettings, description="who is left out of training and comes after it"
    )
    evaluation: EvaluationSettings = Field(default_factory=EvaluationSettings)
    checkpoint: CheckpointSettings = Field(default_factory=CheckpointSettings)
    trackers: tuple[TrackerName, ...] = Field(default=(), description="tensorboard, mlflow")
    out: str | None = Field(default=None, description="the run's folder")

    @property
    def folder(self) -> Path:
        """Where the run is kept: `out`, or a name under runs/ that follows from the configuration."""
        if self.out is not None:
            return Path(self.out)
        digest = hashlib.sha256(write_settings(self.identity()).encode()).hexdigest()[:8]
        return Path("runs") / f"{Path(self.data_name).stem}-{self.method_name}-{digest}"

    @property
    def method_name(self) -> str:
        """What the method calls itself, which a section may name by an import path."""
        return find_method(self.method["name"]).name

    @property
    def data_name(self) -> str:
        """The name of the data set, file, folder or loader, without where it is."""
        name: str = self.data["name"]
        if self.at_silos:
            return "silos"
        is_import_path = ":" in name and DATA.path(name) == name  # entry points are slow to list
        return name.partition(":")[2] if is_import_path else Path(name).name

    @property
    def at_silos(self) -> bool:
        """Whether the data are at silos, each of which has its own table."""
        return isinstance(self.data["name"], str) and self.data["name"] == AT_SILOS

    @property
    def pace(self) -> Pace:
        """When to evaluate, to save and to end."""
        assert self.rounds is not None, "decided when the run begins"
        patience = self.evaluation.patience or None
        return Pace(self.rounds, self.evaluation.every, self.checkpoint.every, patience)

    def plain(self) -> Settings:
        """As plain data, without where it is kept."""
        for section in _OBJECTS:
            _refuse_objects(section, [getattr(self, section)["name"]])
        _refuse_objects("evaluation.metrics", self.evaluation.metrics)
        settings = dump(self)
        del settings["out"]
        return settings

    def identity(self) -> Settings:
        """What makes it this run and no other."""
        return identity(self.plain())

    @property
    def open_rates(self) -> list[str]:
        """The hyper-parameters of the method that are to suit the data."""
        return [name for name, value in self.method.items() if value == AUTO]

    def decided(self) -> "RunConfig":
        """With what was left open, and does not depend on data, decided by this machine."""
        optimise = True if self.engine.optimise is None else self.engine.optimise
        threads = self.threads or torch.get_num_threads()
        device = str(find_device(self.device))
        return replace(self, threads=threads, device=device, engine=replace(self.engine, optimise=optimise))

    def without_rewriting(self) -> "RunConfig":
        """With plain local steps, for a run in which a rewritten one was found to be wrong."""
        return replace(self, engine=replace(self.engine, optimise=False))

    def to_yaml(self) -> str:
        """As a YAML file that `idiolect run` takes."""
        return write_settings(self.plain())


# In memory, things themselves can stand where their names are.
_OBJECTS: dict[str, tuple[type, ...]] = {
    "method": (Method,),
    "data": (Federation, pd.DataFrame),
    "model": (Callable,),  # type: ignore[dict-item]  # a module, or a function that makes one
}


def resolve(settings: Mapping[str, Any]) -> RunConfig:
    """Check settings against the real signatures and fill in every default."""
    for key in settings:
        require_known(key, [*fields_of(RunConfig), *SHORTCUTS], "")
    for section, command in (("method", "methods"), ("data", "datasets")):
        if "name" not in settings.get(section, {}):
            raise UserError(f"{section} is missing; give it as {section}=NAME (see `idiolect {command}`)")
    for section in NAMED_SECTIONS:
        _check_name(section, settings.get(section) or {})
    settings = _with_defaults(settings)
    config = build(RunConfig, with_sections(settings), "")
    config.codec.wrap(build_method(config.method))  # says whether the codec suits the method
    config.participation.check_plan()
    _refuse_beside_privacy(config)
    if config.newcomers.clients is not None and not config.checkpoint.states:
        raise UserError("newcomers.clients needs checkpoint.states=true: newcomers start from saved states")
    all_named(config.evaluation.metrics, config.evaluation.metric)  # says whether there are such
    return replace(
        config,
        method=_checked_method(config.method),
        model=_checked_model(config.model),
        data=_unmistakable(config.data),
    )


def build_method(section: Section) -> Method:
    """The method that a section describes, or holds; rates that are to suit the data are its defaults yet."""
    options = {key: value for key, value in section.items() if value != AUTO}
    name = options.pop("name")
    return name if isinstance(name, Method) else build(find_method(name), options, "method")


def _refuse_objects(setting: str, values: Iterable[Any]) -> None:
    if not all(isinstance(value, str) for value in values):
        raise UserError(
            f"{setting} is given as an object, which no file can hold: give its name, "
            "or train in memory with idiolect.train"
        )


def _check_name(section: str, options: Section) -> None:
    """A section has a name, or in its place an object, which has its options already."""
    name = options.get("name", "")
    if isinstance(name, str):
        return
    if not isinstance(name, _OBJECTS.get(section, ())):
        raise UserError(f"{section}={name} is not possible: it must be a name")
    for option in options if not isinstance(name, pd.DataFrame) else ():  # a table still needs its options
        if option != "name" and not (section == "model" and option in OF_EVERY_MODEL):
            raise UserError(f"{section}.{option} is not possible beside a {section} that was made already")


def _with_defaults(settings: Mapping[str, Any]) -> Settings:
    """The settings, with those that suit the data and the method where none are given."""
    data, method = settings["data"]["name"], settings["method"]["name"]
    kind = find_method(method) if isinstance(method, str) else None
    if kind is not None:
        settings = merge(settings, {"method": spelled_out(kind, settings["method"])})
    return merge(defaults_for(DATA.spelled(data) if isinstance(data, str) else "", kind), settings)


def _refuse_beside_privacy(config: RunConfig) -> None:
    """A sum that hides a silo is of clipped uploads as they are."""
    if not isinstance(config.privacy, SiloPrivacy):
        return
    if config.codec != CodecConfig():
        raise UserError("privacy.unit=silo cannot be used with codec: compression can make uploads longer")
    if config.robust is not None:
        raise UserError("privacy.unit=silo cannot be used with robust: a rule needs each upload, and no sum")


def _checked_method(section: Section) -> Section:
    if not isinstance(section["name"], str):
        return section
    method = build_method(section)
    checked, rates = dump(method), rates_of(method)
    for name, value in section.items():
        if value == AUTO and name not in rates and value != checked.get(name):
            known = ", ".join(rates) or "nothing"
            raise UserError(f"method.{name}=auto is not possible: what can suit the data is {known}")
    open_rates = {name: AUTO for name in rates if section.get(name, AUTO) == AUTO}
    return {"name": METHODS.spelled(section["name"]), **checked, **open_rates}


def rates_of(method: Method) -> list[str]:
    """The hyper-parameters that can suit the data: step sizes, and schedules that start with one."""
    values = dump(method)
    rates = {name: values.get(name) for name in method.suited_rates(1.0, 1)}
    return [
        name
        for name, value in rates.items()
        if isinstance(value, float) or (isinstance(value, dict) and "initial" in value)
    ]


def _checked_model(section: Section) -> Section:
    name = section["name"]
    factory = MODELS.find(name) if isinstance(name, str) else None
    options, others = without_preparation(section, factory)
    prepared = _unmistakable_file(Preparation.of(others).plain(), "weights")
    if factory is None:
        return {**options, **prepared}
    del options["name"]
    if not MODELS.is_own(name):
        options = check_arguments(factory, options, "model", given=("federation",))
        options = {key: list(v) if isinstance(v, tuple) else v for key, v in options.items()}
    if factory is several:
        options["models"] = [_checked_one(each) for each in options.get("models", ())]
    return {"name": MODELS.spelled(name), **options, **prepared}


def _checked_one(section: Section) -> Section:
    """One of several models."""
    name, factory, options = one_of_several(section)
    return {"name": name, **check_arguments(factory, options, "model.models", given=("federation",))}


def _unmistakable(section: Section) -> Section:
    """The data, whose path does not depend on where one stands."""
    name = section["name"]
    if not isinstance(name, str) or name == AT_SILOS:
        return section
    if is_name(name):
        return {**section, "name": DATA.spelled(name)}
    return _unmistakable_file(section, "name")


def _unmistakable_file(section: Section, option: str) -> Section:
    """A run can be resumed from any folder: a path does not depend on where one stands."""
    path = section.get(option)
    if path is None or not Path(path).exists():
        return section
    return {**section, option: str(Path(path).absolute())}
