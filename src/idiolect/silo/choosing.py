"""No silo worse off: which of its models a silo keeps, by its own validation rows, without a network.

A silo chooses between what it has alone and what a run gave it. Alone it trains here, on its own rows: the
agreed model and objective, with as many rounds of as many local steps and the rate of the run, at the round
that is best on its validation rows. Of equals it keeps what it has alone. Nothing crosses.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch

from idiolect.core.fixed import put_weights
from idiolect.core.objective import Batch, Objective, Predictor
from idiolect.core.tree import Params, Tree
from idiolect.data.federation import Federation, Rows
from idiolect.data.preprocessing import Preprocessing
from idiolect.data.reading import Reading, read_table
from idiolect.errors import UserError
from idiolect.evaluation.metrics import Measures, row_metrics
from idiolect.methods.local import Local
from idiolect.participation.sampling import Uniform
from idiolect.result import Memory, Result
from idiolect.runs.config import RunConfig
from idiolect.runs.rounds import play_rounds
from idiolect.runs.setup import build_setting
from idiolect.silo.offline import find_run
from idiolect.silo.schema import Schema
from idiolect.silo.serve_settings import agreed_config
from idiolect.simulation import Simulation

ALONE = "alone"
_AS_IN_THE_RUN: tuple[str, ...] = ("learning_rate", "local_steps")


class SiloChoice(NamedTuple):
    """What a silo keeps, and what it was chosen by."""

    kept: str  # "alone", or a model kind of the run
    metric: str
    values: dict[str, float]  # on the silo's validation rows, of each model
    rows: int  # that these are


def silo_choose(*, state: str | Path, data: str | Path | pd.DataFrame) -> SiloChoice:
    """Keep, by a silo's own validation rows, the best of training alone and what a run gave it.

    state: the silo's state folder; the choice is kept there as the kind `chosen`.
    data: the table that it joined with; columns that were not agreed are left out.
    """
    vault = find_run(Path(state))
    agreement: Any = vault.agreement
    models, round_number = vault.models()
    config, schema = agreed_config(agreement["config"]), Schema.from_plain(agreement["schema"])
    federation = _own_rows(schema, _agreed_columns(data, schema.preprocessing), agreement["name"])
    if not len(federation.validation.index):
        raise UserError("nothing can be chosen: the agreed fractions give this silo no validation rows")
    measures = config.evaluation.measures(federation)
    alone = _trained_alone(config, federation, measures, vault.weights)
    objective = alone.engine.setting.objective
    everything: dict[str, Tree] = {ALONE: alone.predictor(0)["personal"], **models}
    values = {kind: _value(objective, federation, measures, model) for kind, model in everything.items()}
    kept = _best(values, measures)
    vault.keep_chosen(everything[kept], kept, round_number)
    return SiloChoice(kept, measures.main.name, values, len(federation.validation.index))


def _agreed_columns(data: str | Path | pd.DataFrame, fitted: Preprocessing) -> pd.DataFrame:
    reading = Reading(missing_values=fitted.missing_values, asked_as="--")
    table = data if isinstance(data, pd.DataFrame) else read_table(data, reading)
    agreed = [*(column.name for column in fitted.columns), fitted.target]
    return table[[name for name in agreed if name in table.columns]]


def _own_rows(schema: Schema, table: pd.DataFrame, name: str) -> Federation:
    """A federation of the silo alone, with the parts that it has in the run."""
    federation = schema.read(table, name, 0, 1)
    train, validation, test = (
        Rows.of_clients([part.index]) for part in (federation.train, federation.validation, federation.test)
    )
    return replace(federation, train=train, validation=validation, test=test)


def _trained_alone(
    config: RunConfig, federation: Federation, measures: Measures, weights: Params
) -> Simulation:
    """The silo alone, at the round that is best on its validation rows."""
    own = {name: config.method[name] for name in _AS_IN_THE_RUN if name in config.method}
    config = replace(config, method={"name": Local.name, **own}, privacy=None)  # nothing of it leaves
    setting = build_setting(config, federation)
    put_weights(setting.objective.module, weights)
    simulation = Simulation.of(setting, Uniform(), "sequential")
    memory = Memory()
    broke_off = play_rounds(simulation, config.pace, measures, memory)
    return Result(simulation, memory, measures, "validation", broke_off).simulation


def _value(objective: Objective, federation: Federation, measures: Measures, model: Predictor) -> float:
    """The metric of the silo's validation rows; where it has none there, their loss tells nobody apart."""
    rows = federation.validation.of(0)
    weights = torch.full((len(rows),), 1 / len(rows), dtype=objective.dtype)
    inputs, targets = federation.inputs[rows], federation.targets[rows]
    real = inputs.to(objective.dtype) if inputs.is_floating_point() else inputs
    batch = Batch(real, targets.to(objective.dtype) if targets.is_floating_point() else targets, weights)
    predictions = objective.predict(model, batch.inputs)
    return float(row_metrics(objective.task, predictions, batch, [measures.main])[measures.main.name])


def _best(values: dict[str, float], measures: Measures) -> str:
    """The best of the models that have a value; of equals the first, which is what the silo has alone."""
    sign = 1 if measures.main.higher_is_better else -1
    best = ALONE
    for kind, value in values.items():
        if sign * value > sign * values[best]:  # never where one of them is not defined
            best = kind
    return best
