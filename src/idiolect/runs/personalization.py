"""A model for clients that were not there in training, from the state of a run that is reported.

Each method says how (`Method.newcomer`): fine-tune the shared model, train one's own part against it, find
the nearest group, learn whom to learn from. The server's state does not change.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from idiolect.data.federation import Federation
from idiolect.data.hints import names
from idiolect.data.newcomers import newcomers_like
from idiolect.data.reading import Reading, read_frame, read_table
from idiolect.data.splits import DEFAULT_FRACTIONS
from idiolect.errors import UserError, did_you_mean
from idiolect.evaluation.metrics import Measures, evaluate
from idiolect.runs.client_model import ClientModels, export_client
from idiolect.runs.folder import RunFolder
from idiolect.runs.lifecycle import reported_simulation
from idiolect.runs.newcomers import newcomers_spend
from idiolect.runs.run_summary import thresholds_of
from idiolect.runs.settings import Settings
from idiolect.simulation import Simulation

OPTIONS = ("data", "steps", "out")
READING_OPTIONS = ("separator", "decimal", "encoding", "missing_values")
DATA_OPTIONS = ("name", "client", "fractions", *READING_OPTIONS)


class Newcomers(ClientModels):
    """Models for clients that were not there in training, and how good they are."""

    def __init__(
        self,
        simulation: Simulation,
        measures: Measures,
        folder: Path | None,
        epsilons: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(simulation, measures.thresholds)
        self.metrics = evaluate(simulation, measures)
        self.folder = folder  # a model for each client in it; None: nothing was saved
        self.epsilons = dict(epsilons or {})  # what it cost each one's rows, if the run hides rows


def personalize(run: RunFolder, settings: Settings) -> Newcomers:
    """Models for the clients of `data=new.csv`; with `out=FOLDER` also as files.

    `data.client` and `data.fractions` are the run's unless given; `steps` replaces the local steps.
    """
    _refuse_unknown(settings, OPTIONS, "")
    data = dict(settings.get("data", {}))
    _refuse_unknown(data, DATA_OPTIONS, "data.")
    if "name" not in data:
        raise UserError("data is missing: give the newcomers' table, as data=new.csv")
    config = run.config
    newcomers = _read(data, config.data)
    trained = reported_simulation(run)
    federation = newcomers_like(
        trained.federation,
        newcomers,
        client=str(data.get("client") or config.data.get("client") or "client"),
        seed=config.seed,
        fractions=data.get("fractions") or config.data.get("fractions") or DEFAULT_FRACTIONS,
    )
    steps = _checked_steps(settings.get("steps"))
    epsilons = newcomers_spend(trained, federation, steps)
    simulation = train_newcomers(trained, federation, steps)
    folder = Path(settings["out"]) if settings.get("out") else None
    thresholds = thresholds_of(run.summary())  # a few newcomers' own would be noise
    if folder is not None:
        for name in federation.names:
            export_client(simulation, config, name, folder / name, thresholds=thresholds)
    measures = replace(config.evaluation.measures(federation), thresholds=thresholds)
    return Newcomers(simulation, measures, folder, epsilons)


def _read(data: Settings, of_run: Settings) -> pd.DataFrame:
    """The newcomers' table, read as the run's unless said otherwise."""
    given = {option: value for option, value in (of_run | data).items() if option in READING_OPTIONS}
    if "missing_values" in given:
        given["missing_values"] = names(given["missing_values"])
    reading = Reading(**given)
    source = data["name"]
    return (
        read_frame(source, reading).frame if isinstance(source, pd.DataFrame) else read_table(source, reading)
    )


def train_newcomers(trained: Simulation, federation: Federation, steps: int | None) -> Simulation:
    """The newcomers' own simulation, after the exchange that the method has for them."""
    return trained.newcomers(federation, steps=_checked_steps(steps))


def _checked_steps(steps: int | None) -> int | None:
    """How many steps newcomers take in place of the method's own."""
    if steps is not None and (not isinstance(steps, int) or steps < 1):
        raise UserError(f"steps={steps} is not possible: it must be a whole number of at least 1")
    return steps


def _refuse_unknown(given: dict[str, object], known: Sequence[str], prefix: str) -> None:
    for key in given:
        if key not in known:
            raise UserError(f"{prefix}{key} is not a setting of personalize{did_you_mean(key, known)}")
