"""The reported models of several runs side by side: values, predictions, and what each cost."""

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import pandas as pd

from idiolect.evaluation.summary import reported_values, values_at
from idiolect.runs.folder import RunFolder
from idiolect.runs.predictions import Said, why_none


class Model(NamedTuple):
    """One of a method's models, as "apfl personal"."""

    method: str
    kind: str

    def __str__(self) -> str:
        return " ".join(self)

    @classmethod
    def named(cls, name: str) -> "Model":
        """The inverse of `str`."""
        return cls(*name.rsplit(" ", 1))


ALONE = Model("local", "personal")  # the baseline "training alone"
SHARED = Model("fedavg", "global")  # the baseline "one shared model"
TUNED = Model("fedavg", "localized")  # the shared model after a client's own steps
CHOSEN = "chosen"  # the kind of model that each client keeps, by its own validation rows


class ReportedRun:
    """One run's reported numbers by client, each read once."""

    def __init__(self, run: RunFolder) -> None:
        self.run = run
        self.method, self.seed = run.config.method_name, run.config.seed
        self.summary = run.summary()
        self.judged = Model(self.method, self.summary["judged_by"])
        metrics, metric = run.metrics(), self.summary["metric"]
        rounds = {kind: numbers["round"] for kind, numbers in self.summary["kinds"].items()}
        self.values = {k: reported_values(metrics, k, metric, r) for k, r in rounds.items()}
        self.validation = {k: values_at(metrics, k, "validation", metric, r) for k, r in rounds.items()}
        self.losses = {k: values_at(metrics, k, "validation", "loss", r) for k, r in rounds.items()}

    @cached_property
    def said(self) -> Said | None:
        """What its models say of each row, if that was kept."""
        return None if why_none(self.run) else Said(self.run)


class Reported:
    """The runs of a comparison by method and seed."""

    def __init__(self, runs: Sequence[RunFolder]) -> None:
        self.runs = {(each.method, each.seed): each for each in map(ReportedRun, runs)}
        self.seeds = list(dict.fromkeys(seed for _, seed in self.runs))
        first = next(iter(self.runs.values()))
        self.metric, self.higher_is_better = first.summary["metric"], bool(first.summary["higher_is_better"])
        tables = [each.run.clients() for each in self.runs.values()]
        self.train_rows = pd.concat([table["train"] for table in tables]).groupby(level=0, sort=False).mean()
        self.clients = [str(client) for client in self.train_rows.index]

    @property
    def has_both_parts(self) -> bool:
        """Whether there are validation rows to choose by, and other rows to test on."""
        first = next(iter(self.runs.values()))
        return first.summary["part"] == "test" and bool(first.losses[first.judged.kind].notna().any())

    @property
    def models(self) -> list[Model]:
        """The baselines, and what the methods are judged by."""
        there = {Model(each.method, kind) for each in self.runs.values() for kind in each.values}
        judged = [each.judged for each in self.runs.values()]
        return [model for model in dict.fromkeys((ALONE, SHARED, TUNED, *judged)) if model in there]

    def of(self, model: Model, seed: int) -> ReportedRun | None:
        """The run that a model is of."""
        run = self.runs.get((model.method, seed))
        return run if run is not None and model.kind in run.values else None

    def values(self, model: Model) -> pd.DataFrame:
        """Its reported values: a row for each client, a column for each seed."""
        found = {seed: run.values[model.kind] for seed in self.seeds if (run := self.of(model, seed))}
        return pd.DataFrame(found, index=self.clients, columns=self.seeds, dtype="float64")

    def distances(self) -> "pd.Series[float] | None":
        """How far each client is from the others: the loss of the shared model on its validation rows.

        By validation rows, because those of tests say what is gained: chance would be in both.
        """
        losses = [run.losses[SHARED.kind] for seed in self.seeds if (run := self.of(SHARED, seed))]
        if not losses:
            return None
        return pd.concat(losses, axis=1).mean(axis=1).reindex(self.clients)
