"""What the reported models say of every test row: kept with a run, so that differences get intervals.

predictions.parquet     kind, part, client, row, target..., output...: each kind at its reported round
predictions.json        what the outputs mean; or why there are none

A row's number is its place in the data, the same for every method and seed. Outputs are logits, or numbers
in the units that the model was trained in, float32.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from idiolect.core.exchange import ClientState, Message, Site
from idiolect.core.task import Task
from idiolect.data.federation import Federation, Rows
from idiolect.evaluation.metric import Metric
from idiolect.evaluation.metrics import measures_of, rows_of
from idiolect.runs.folder import RunFolder
from idiolect.simulation import Simulation
from idiolect.store.files import read_json, read_parquet, write_json, write_parquet

TABLE = "predictions.parquet"
MEANING = "predictions.json"
MOST_NUMBERS = 2_000_000  # rows x kinds x outputs; about 8 MB
_MOST_PADDED = 20_000_000


def keep_predictions(folder: RunFolder, simulation: Simulation, summary: Mapping[str, Any]) -> None:
    """Write what each kind of model, at the round that is reported for it, says of the reported rows.

    The simulation is left at one of these rounds.
    """
    federation, kinds = simulation.federation, list(summary["kinds"])
    rows = rows_of(federation, summary["part"])
    skipped = _why_not(federation, rows, len(kinds))
    if not folder.config.checkpoint.states:
        skipped = (
            "predictions were not kept: they are of states that were not saved (checkpoint.states=false)"
        )
    if skipped is None:
        tables = []
        for number in dict.fromkeys(summary["kinds"][kind]["round"] for kind in kinds):
            folder.restore_round(simulation, number)
            there = [kind for kind in kinds if summary["kinds"][kind]["round"] == number]
            tables += _tables(simulation, rows, there)
        table = pd.concat(tables, ignore_index=True)
        table.insert(1, "part", pd.Series([summary["part"]] * len(table), dtype="category"))
        write_parquet(folder.path / TABLE, table)
    meaning = {"task": federation.task.plain(), "class_names": federation.class_names, "skipped": skipped}
    write_json(folder.path / MEANING, meaning)


def _why_not(federation: Federation, rows: Rows, kinds: int) -> str | None:
    if not len(rows.index):
        return "there are no rows to test on"
    numbers = len(rows.index) * kinds * federation.task.outputs
    padded = len(federation) * int(rows.sizes.max()) * kinds * federation.task.outputs
    if numbers <= MOST_NUMBERS and padded <= _MOST_PADDED:
        return None
    return f"predictions were not kept: they are {numbers:,} numbers, and the most is {MOST_NUMBERS:,}"


def _tables(simulation: Simulation, rows: Rows, kinds: list[str]) -> list[pd.DataFrame]:
    """A table for each kind, in the state in which the simulation is."""
    federation, most = simulation.federation, int(rows.sizes.max())

    def look(client: ClientState, brief: Message, site: Site) -> dict[str, Tensor]:
        predictors, inputs = simulation.method.predictors(client, brief), site.all_rows.inputs
        outputs = {kind: site.objective.predict(predictors[kind], inputs) for kind in kinds}  # type: ignore[index]
        # Chunks of clients are padded to different lengths; these are all of one.
        return {
            kind: torch.cat([o, o.new_zeros(most - len(o), o.shape[-1])]).float()
            for kind, o in outputs.items()
        }

    own = torch.arange(most) < rows.sizes[:, None]
    owners = np.repeat(np.arange(len(federation)), rows.sizes.numpy())
    common: dict[str, Any] = {
        "client": pd.Categorical.from_codes(owners, pd.Index(federation.names)),
        "row": rows.index.numpy(),
        **_columns("target", federation.targets[rows.index]),
    }
    return [
        pd.DataFrame(
            {
                "kind": pd.Categorical([kind] * len(owners), categories=list(simulation.method.kinds)),
                **common,
                **_columns("output", outputs[own].detach()),
            }
        )
        for kind, outputs in simulation.survey(look, rows).items()
    ]


def _columns(name: str, values: Tensor) -> dict[str, np.ndarray]:
    if values.ndim == 1:
        return {name: values.numpy()}
    values = values.float() if values.is_floating_point() else values
    return {f"{name}_{place}": column.numpy() for place, column in enumerate(values.unbind(-1))}


class Said:
    """What the models of one run say of each client's rows, as it was kept."""

    def __init__(self, run: RunFolder) -> None:
        meaning, summary = read_json(run.path / MEANING), run.summary()
        task, names = Task.from_plain(meaning["task"]), tuple(meaning["class_names"])
        table = read_parquet(run.path / TABLE)
        self.metric: Metric = measures_of(task, run.config.evaluation.metrics, summary["metric"], names).main
        self._table = table
        self._kinds = summary["kinds"]
        self._task = task
        self._targets = [c for c in table.columns if c == "target" or c.startswith("target_")]
        self._outputs = [c for c in table.columns if c.startswith("output_")]
        self._places = table.groupby(["kind", "client"], observed=True, sort=False).indices

    def task(self, kind: str) -> Task:
        """The task, with the threshold that a kind decides with."""
        return replace(self._task, threshold=self._kinds[kind].get("threshold", self._task.threshold))

    def rows(self, kind: str, client: str) -> "ClientRows | None":
        """One client's rows; None if it has none."""
        places = self._places.get((kind, client))
        if places is None:
            return None
        found = self._table.iloc[places]
        targets = torch.tensor(found[self._targets].to_numpy())
        return ClientRows(
            torch.tensor(found["row"].to_numpy()),
            targets[:, 0] if self._task.is_classification else targets,
            torch.tensor(found[self._outputs].to_numpy()),
        )


@dataclass(frozen=True)
class ClientRows:
    """Which rows they are, their targets, and a model's outputs."""

    rows: Tensor
    targets: Tensor
    outputs: Tensor


def why_none(run: RunFolder) -> str | None:
    """Why a run has no predictions, if it has none."""
    if run.config.at_silos:
        return "the rows of a run between silos stay there"
    if not (run.path / MEANING).is_file():
        return "the run is of a version that kept no predictions"
    skipped: str | None = read_json(run.path / MEANING)["skipped"]
    return skipped
