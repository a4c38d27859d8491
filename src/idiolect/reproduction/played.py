"""What the runs of a recipe gave: values of models by client and seed, and the verdicts on its claims."""

from collections.abc import Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from idiolect.core.method import PredictorKind
from idiolect.errors import UserError
from idiolect.evaluation.summary import means, reported_part, values_at
from idiolect.reproduction.claims import Claim, Moment, Part
from idiolect.reproduction.plan import Place, Plan
from idiolect.reproduction.quantities import is_quantity, measure
from idiolect.reproduction.recipe import kind_and_line
from idiolect.reproduction.theory import theory_difference
from idiolect.reproduction.verdicts import (
    Difference,
    Verdict,
    apart_difference,
    furthest,
    overall,
    paired_difference,
)
from idiolect.runs.folder import RunFolder
from idiolect.runs.newcomers import AFTER
from idiolect.runs.settings import Settings
from idiolect.store.files import read_parquet


class Compared(NamedTuple):
    """One comparison of a claim, in words and numbers; `why` says why there are none."""

    panel: str
    first: str
    second: str
    difference: Difference | None
    verdict: Verdict
    why: str = ""


class Judged(NamedTuple):
    """A claim and what came of it."""

    claim: Claim
    metric: str
    compared: tuple[Compared, ...]
    verdict: Verdict


class PlayedRecipe:
    """The finished runs of a plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.recipe = plan.recipe
        planned = list(plan.runs())
        self.runs: dict[Place, dict[int, RunFolder]] = {place: {} for place in plan.places}
        self.failures: list[str] = []
        for place, seed, config in planned:
            if (config.folder / "summary.json").is_file():
                self.runs[place][seed] = RunFolder(config.folder)
            else:
                self.failures.append(f"{place.line}{_at(place.panel)}, seed {seed}: no finished run")

    @cached_property
    def metric(self) -> str:
        """What the runs are reported by."""
        return str(self._first_summary.get("metric", "loss"))

    @property
    def _first_summary(self) -> Mapping[str, Any]:
        for runs in self.runs.values():
            for run in runs.values():
                return summary_of(run.path)
        return {}

    def chosen(self) -> dict[Place, Settings]:
        """What was open, and is decided, at each place that was tuned."""
        return {place: self.plan.chosen(place) for place in self.plan.trials}

    def kind_of(self, place: Place) -> PredictorKind | None:
        """The kind of model that a line is about: the recipe says it, or its method."""
        if place.line in self.recipe.judged:
            return self.recipe.judged[place.line]
        for run in self.runs[place].values():
            return summary_of(run.path)["judged_by"]
        return None

    def models(self) -> list[str]:
        """What each line is judged by."""
        lines = dict.fromkeys(place.line for place in self.plan.places)
        kinds = {line: self.kind_of(Place(self.plan.panels[0], line)) for line in lines}
        return [f"{line} {kind}" for line, kind in kinds.items() if kind is not None]

    def values(
        self, model: str, panel: str, of: str | None = None, part: Part | None = None, at: Moment = "reported"
    ) -> pd.DataFrame:
        """A row for each client, or for each number of a quantity, and a column for each seed."""
        line, kind = kind_and_line(model, list(self.recipe.lines))
        place, name = Place(panel, line), of or self.metric
        if not self.runs.get(place):
            raise UserError(f"{line}{_at(panel)} has no finished run")
        columns: dict[int, Any] = {}
        for seed, run in self.runs[place].items():
            if is_quantity(name):
                columns[seed] = pd.Series(measure(run, name, at))
            else:
                columns[seed] = client_metric(run, kind or self.kind_of(place), name, part, at)
        table = pd.DataFrame(columns)
        if table.isna().all(axis=None):
            raise UserError(f"{model}{_at(panel)} has no {name}{f' on {part} rows' if part else ''}")
        return table

    def judge(self) -> list[Judged]:
        """The verdict on every claim."""
        return [self._judged(claim) for claim in self.recipe.claims]

    def _judged(self, claim: Claim) -> Judged:
        compared = []
        for relation in claim.relations:
            panels = claim.panels or self.plan.panels
            if not any(self._is_of_panel(model) for model in (relation.first, relation.second)):
                panels = panels[:1]  # the models say themselves where they are
            for panel in panels:
                compared.append(self._compared(claim, panel, *relation))
        return Judged(claim, claim.of or self.metric, tuple(compared), overall([c.verdict for c in compared]))

    def _is_of_panel(self, model: Any) -> bool:
        return isinstance(model, str) and " @ " not in model and model not in self.recipe.theory

    def _compared(
        self, claim: Claim, panel: str, first: str, second: Any, margin: float, within: float | None
    ) -> Compared:
        try:
            difference = self._difference(claim, panel, first, second)
        except UserError as error:
            return Compared(panel, first, str(second), None, "inconclusive", str(error))
        if not np.isfinite(difference.value):  # as of the traffic up to an accuracy that one seed never has
            why = "some of the runs have no finite value"
            return Compared(panel, first, str(second), None, "inconclusive", why)
        toward = difference if claim.sign > 0 else -difference
        verdict = toward.above(margin) if within is None else toward.inside(within)
        return Compared(panel, first, str(second), difference, verdict)

    def _difference(self, claim: Claim, panel: str, first: str, second: Any) -> Difference:
        if first in self.recipe.theory:
            return theory_difference(self.recipe, first, second, claim.between)
        if second in self.recipe.theory:
            second = self.recipe.theory[second].y
        model, at_first = _split(first, panel)
        values = self.values(model, at_first, claim.of, claim.part, claim.at)
        if isinstance(second, str):
            other, at_second = _split(second, panel)
            others = claim.times * self.values(other, at_second, claim.of, claim.part, claim.at)
            same = at_first == at_second and values.index.equals(others.index)
            return paired_difference(values, others) if same else apart_difference(values, others)
        targets = np.atleast_1d(np.asarray(second, dtype=float))
        if len(targets) == 1:
            return paired_difference(values, pd.DataFrame(targets[0], values.index, values.columns))
        if len(targets) != len(values):
            raise UserError(f"{model}{_at(panel)} has {len(values)} values, not {len(targets)}")
        return furthest(values.to_numpy() - targets[:, None])


def client_metric(
    run: RunFolder, kind: str | None, metric: str, part: Part | None, at: Moment
) -> "pd.Series[float]":
    """Every client's value of a model of a run."""
    if part == "newcomers" or part == "newcomers-train":
        return _newcomer_metric(run, kind, metric, "test" if part == "newcomers" else "train")
    metrics, summary = metrics_of(run.path), summary_of(run.path)
    if kind not in summary["kinds"]:
        raise UserError(f"{summary['judged_by']} is there, but no {kind} model")
    part = part or summary["part"]
    assert part is not None
    number = round_of(metrics, summary, str(kind), metric, at)
    return values_at(metrics, str(kind), part, metric, number)


def _newcomer_metric(run: RunFolder, kind: str | None, metric: str, rows: str) -> "pd.Series[float]":
    """Of every client that was left out of training, once it has its model."""
    file = run.path / "newcomers.parquet"
    if not file.is_file():
        raise UserError(f"nobody was left out of training in {str(run.path)!r}")
    table = read_parquet(file)
    chosen = table[
        (table.stage == AFTER) & (table.kind == kind) & (table.metric == metric) & (table.part == rows)
    ]
    return chosen.set_index("client")["value"]


def round_of(metrics: pd.DataFrame, summary: Mapping[str, Any], kind: str, metric: str, at: Moment) -> int:
    """The round that is looked at."""
    if isinstance(at, int):
        return at
    if at == "reported":
        return int(summary["kinds"][kind]["round"])
    if at == "last":
        return int(metrics["round"].max())
    curve = means(metrics, kind, reported_part(metrics), metric)
    up = summary["higher_is_better"] if metric == summary["metric"] else metric != "loss"
    place = int(curve.to_numpy().argmax() if up else curve.to_numpy().argmin())
    return int(curve.index[place])


@lru_cache(maxsize=64)
def metrics_of(path: Path) -> pd.DataFrame:
    """The metrics of a finished run, which do not change any more."""
    return RunFolder(path).metrics()


@lru_cache(maxsize=4096)
def summary_of(path: Path) -> dict[str, Any]:
    """The summary of a finished run."""
    return RunFolder(path).summary()


def _split(model: str, panel: str) -> tuple[str, str]:
    name, _, own = model.partition(" @ ")
    return name, own or panel


def _at(panel: str) -> str:
    return f" in {panel}" if panel else ""
