"""At the defaults, training alone and FedAvg are as good as scikit-learn on the same rows; nothing diverges.

docs/results/defaults.md is the table of the slow test: `WRITE_PAGE=1 IDIOLECT_DATA=... make test-slow
PYTEST_ARGS=tests/defaults` writes it anew.
"""

import os
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import accuracy_score, roc_auc_score, root_mean_squared_error

import idiolect
from defaults.tables import GENERATED, real_tables
from idiolect.data.federation import Federation, Rows

PAGE = Path(__file__).parents[2] / "docs" / "results" / "defaults.md"
HEADS = ["table", "clients", "training rows", "inputs", "metric", "model"]
HEADS += ["scikit-learn", "Idiolect", "gap", "round", "lr"]
MODELS = {"alone": ("local", "personal"), "pooled": ("fedavg", "global")}


class Row(NamedTuple):
    """One line of the table."""

    table: str
    clients: int
    rows: int
    inputs: int
    metric: str
    kind: str
    theirs: float
    ours: float
    round: int
    rate: float

    @property
    def gap(self) -> float:
        """Points of accuracy or of auc, per cent of rmse; positive is better than scikit-learn."""
        if self.metric == "rmse":
            return 100 * (1 - self.ours / self.theirs)
        return 100 * (self.ours - self.theirs)

    @property
    def is_close(self) -> bool:
        """Not worse by more than one point, or 2 % of rmse."""
        return self.gap >= (-2 if self.metric == "rmse" else -1)

    @property
    def is_near(self) -> bool:
        """The same, and two points of auc: of a few positive rows of each client it is a noisy mean."""
        return self.is_close or (self.metric == "auc" and self.gap >= -2)


def rows_of(federation: Federation, part: Rows, client: int) -> tuple[np.ndarray, np.ndarray]:
    index = part.of(client)
    targets = federation.targets[index].double().numpy() * federation.task.unit
    return federation.inputs[index].flatten(1).double().numpy(), targets.reshape(len(index))


def fitted(federation: Federation, inputs: np.ndarray, targets: np.ndarray) -> Any:
    if not federation.task.is_classification:
        return Ridge().fit(inputs, targets)
    if len(np.unique(targets)) == 1:
        return DummyClassifier().fit(inputs, targets)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of separable rows
        return LogisticRegression(max_iter=5000).fit(inputs, targets)


def value(metric: str, model: Any, inputs: np.ndarray, targets: np.ndarray) -> float:
    if metric == "rmse":
        return root_mean_squared_error(targets, model.predict(inputs))
    if metric == "accuracy":
        return accuracy_score(targets, model.predict(inputs))
    if len(np.unique(targets)) < 2:
        return np.nan
    scores = model.predict_proba(inputs)
    return roc_auc_score(targets, scores[:, -1] if scores.shape[1] > 1 else np.zeros(len(targets)))


def scikit_learn(federation: Federation, metric: str) -> dict[str, float]:
    """The mean test value over clients, of each client's own model and of one on all training rows."""
    clients = range(len(federation))
    train = [rows_of(federation, federation.train, client) for client in clients]
    test = [rows_of(federation, federation.test, client) for client in clients]
    alone = [fitted(federation, *own) for own in train]
    pooled = fitted(federation, *(np.concatenate(part) for part in zip(*train, strict=True)))
    return {
        "alone": float(
            np.nanmean([value(metric, model, *own) for model, own in zip(alone, test, strict=True)])
        ),
        "pooled": float(np.nanmean([value(metric, pooled, *own) for own in test])),
    }


def compared(table: str, federation: Federation) -> list[Row]:
    """Both kinds of models at the defaults, in the metric that they are judged by, and in accuracy."""
    lines = []
    for kind, (method, model) in MODELS.items():
        result = idiolect.train(method, federation)
        assert not any("diverged" in note for note in result.notes), (table, result.notes)
        reported = result.summary.loc[model]
        for metric in dict.fromkeys([result.metric, *(["accuracy"] if result.metric == "auc" else [])]):
            at = result.metrics.query("kind == @model and part == 'test' and round == @reported['round']")
            ours = float(at[at.metric == metric].value.mean())
            theirs = scikit_learn(federation, metric)[kind]
            size = (len(federation), int(federation.train.sizes.sum()), federation.inputs[0].numel())
            rate = float(result.simulation.method.learning_rate.initial)
            lines.append(Row(table, *size, metric, kind, theirs, ours, int(reported["round"]), rate))
    return lines


@pytest.mark.parametrize("name", ["unscaled", "tiny clients"])
def test_the_defaults_are_as_good_as_scikit_learn(name: str) -> None:
    for row in compared(name, GENERATED[name]()):
        assert row.is_close, row


@pytest.mark.slow
def test_all_tables_are_as_good_as_scikit_learn() -> None:
    folder = os.environ.get("IDIOLECT_DATA")
    tables = {**(real_tables(Path(folder)) if folder else {}), **GENERATED}
    rows = [row for name, make in tables.items() for row in compared(name, make())]
    if "WRITE_PAGE" in os.environ:
        PAGE.write_text(page(rows), encoding="utf-8")
    judged = [row for row in rows if not (row.metric == "accuracy" and _has_auc(rows, row))]
    assert [row for row in judged if not row.is_near] == []


def _has_auc(rows: list[Row], row: Row) -> bool:
    return any(other.table == row.table and other.metric == "auc" for other in rows)


def page(rows: list[Row]) -> str:
    """The page with its words as they are, and the table anew."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("|"))
    words = [line for line in lines if not line.startswith("|")]
    table = [HEADS, ["---"] * len(HEADS), *(_cells(row) for row in rows)]
    return "\n".join([*words[:start], *(f"| {' | '.join(cells)} |" for cells in table), *words[start:], ""])


def _cells(row: Row) -> list[str]:
    gap = f"{row.gap:+.2f} {'%' if row.metric == 'rmse' else 'points'}{'' if row.is_close else ' (!)'}"
    size = (str(number) for number in (row.clients, row.rows, row.inputs))
    values = (f"{row.theirs:.4g}", f"{row.ours:.4g}", gap, str(row.round), f"{row.rate:.3g}")
    return [row.table, *size, row.metric, row.kind, *values]
