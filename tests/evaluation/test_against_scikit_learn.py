"""Metrics of stacked, padded clients against scikit-learn's, client by client."""

import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from torch import Tensor
from torch.func import vmap

from idiolect.core.objective import Batch
from idiolect.core.task import Task
from idiolect.evaluation.metrics import BUILT_IN, CATALOGUE, measures_of, row_metrics

SIZES = (1, 2, 3, 5, 17, 40)
BINARY, THREE, NUMBERS = Task("binary", 1), Task("multiclass", 3), Task("regression", 2, unit=37.5)


def problem(task: Task, seed: int) -> tuple[Tensor, Tensor]:
    """Predictions with many ties, and targets, of all clients; classes are rare, and some are missing."""
    draw = np.random.default_rng(seed)
    rows = sum(SIZES)
    if task.kind == "regression":
        predictions = draw.normal(size=(rows, 2)) + 3
        targets = torch.as_tensor(predictions + draw.gamma(1.3, size=(rows, 2)))
        return torch.as_tensor(predictions), targets
    outputs = np.round(draw.normal(-0.4, 1.5, size=(rows, task.outputs)), int(draw.integers(0, 3)))
    chances = draw.dirichlet([4.0, 1.0, 0.6][: task.classes])
    return torch.as_tensor(outputs), torch.as_tensor(draw.choice(task.classes, p=chances, size=rows))


def stacked(predictions: Tensor, targets: Tensor) -> tuple[Tensor, Batch]:
    """All clients, each padded by garbage to the size of the largest."""
    most = max(SIZES)
    padded_predictions, padded_targets, weights = [], [], []
    for mine, truth in zip(predictions.split(SIZES), targets.split(SIZES), strict=True):
        fill = most - len(mine)
        padded_predictions.append(torch.cat([mine, 9.0 + mine[:1].expand(fill, -1)]))
        padded_targets.append(torch.cat([truth, truth[:1].expand(fill, *truth.shape[1:])]))
        weights.append(torch.tensor([1 / len(mine)] * len(mine) + [0.0] * fill, dtype=torch.float64))
    count = len(SIZES)
    batch = Batch(torch.zeros(count, most, 1), torch.stack(padded_targets), torch.stack(weights))
    return torch.stack(padded_predictions), batch


def macro(score: Callable[..., float]) -> Callable[[np.ndarray, np.ndarray], float]:
    """One class against the others, in the mean over classes that occur and are not everything."""

    def mean(truth: np.ndarray, chances: np.ndarray) -> float:
        classes = [c for c in range(chances.shape[1]) if 0 < (truth == c).sum() < len(truth)]
        return float(np.mean([score(truth == c, chances[:, c]) for c in classes])) if classes else np.nan

    return mean


def binned_error(chance: np.ndarray, happened: np.ndarray) -> float:
    """The expected calibration error, bin by bin."""
    error = 0.0
    for k in range(10):
        inside = (chance >= k / 10) & ((chance < (k + 1) / 10) | (k == 9))
        if inside.any():
            error += inside.mean() * abs(chance[inside].mean() - happened[inside].mean())
    return error


def expected(task: Task, outputs: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    if task.kind == "regression":
        constant = (truth == truth[0]).all()
        return {
            "rmse": 37.5 * np.sqrt(sk.mean_squared_error(truth, outputs)),
            "mae": 37.5 * sk.mean_absolute_error(truth, outputs),
            "r2": np.nan if constant else sk.r2_score(truth, outputs, multioutput="variance_weighted"),
        }
    two = task.kind == "binary"
    positive = 1 / (1 + np.exp(-outputs[:, 0]))
    odds = np.exp(outputs - outputs.max(1, keepdims=True))
    chances = np.stack([1 - positive, positive], 1) if two else odds / odds.sum(1, keepdims=True)
    decided = (outputs[:, 0] > 0).astype(int) if two else outputs.argmax(1)
    ranks = outputs if two else chances
    one_class = len(set(truth)) == 1
    auc, precision = macro(sk.roc_auc_score), macro(sk.average_precision_score)
    if two:
        auc = lambda y, s: np.nan if one_class else sk.roc_auc_score(y, s[:, 0])  # noqa: E731
        precision = lambda y, s: np.nan if one_class else sk.average_precision_score(y, s[:, 0])  # noqa: E731
    top = chances.argmax(1)
    occur = [1] if two else sorted(set(truth))
    return {
        "accuracy": sk.accuracy_score(truth, decided),
        "balanced_accuracy": sk.recall_score(truth, decided, labels=sorted(set(truth)), average="macro"),
        "f1": sk.f1_score(truth, decided, labels=occur, average="macro")
        if set(occur) & set(truth)
        else np.nan,
        "auc": auc(truth, ranks),
        "average_precision": precision(truth, ranks),
        "log_loss": sk.log_loss(truth, chances, labels=list(range(task.classes))),
        "calibration_error": binned_error(positive, truth)
        if two
        else binned_error(chances.max(1), (top == truth).astype(float)),
    }


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("task", [BINARY, THREE, NUMBERS], ids=lambda task: task.kind)
def test_all_clients_at_once_and_one_by_one(task: Task, seed: int) -> None:
    predictions, targets = problem(task, seed)
    metrics = [metric for metric in BUILT_IN if metric.applies_to(task)]
    outputs, batch = stacked(predictions, targets)
    together = vmap(lambda out, rows: row_metrics(task, out, rows, metrics))(outputs, batch)
    for place, (mine, truth) in enumerate(zip(predictions.split(SIZES), targets.split(SIZES), strict=True)):
        alone = row_metrics(task, mine, Batch(mine, truth, torch.ones(len(mine))), metrics)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of labels that one client lacks
            wanted = expected(task, mine.numpy(), truth.numpy())
        assert wanted.keys() == alone.keys() - {"loss"}
        for name, value in wanted.items():
            where = f"{name} of {SIZES[place]} rows"
            np.testing.assert_allclose(together[name][place], value, rtol=1e-12, atol=1e-12, err_msg=where)
            np.testing.assert_allclose(alone[name], value, rtol=1e-12, atol=1e-12, err_msg=where)


@pytest.mark.parametrize("task", [BINARY, THREE], ids=lambda task: task.kind)
def test_metrics_of_one_class(task: Task) -> None:
    predictions, targets = problem(task, seed=5)
    names = ["no", "yes", "perhaps"][: task.classes]
    named = measures_of(task, ["recall:each", "precision:each", "f1:each"], class_names=names).metrics
    outputs, batch = stacked(predictions, targets)
    together = vmap(lambda out, rows: row_metrics(task, out, rows, named))(outputs, batch)
    for place, (mine, truth) in enumerate(zip(predictions.split(SIZES), targets.split(SIZES), strict=True)):
        decided = (mine[:, 0] > 0).long() if task.kind == "binary" else mine.argmax(1)
        scores = sk.precision_recall_fscore_support(
            truth, decided, labels=range(task.classes), zero_division=0
        )
        occurs = [bool((truth == number).any()) for number in range(task.classes)]
        for word, values in zip(("precision", "recall", "f1"), scores[:3], strict=True):
            for name, value in zip(names, np.where(occurs, values, np.nan), strict=True):
                np.testing.assert_allclose(together[f"{word}:{name}"][place], value, rtol=1e-12)


@pytest.mark.parametrize("name", ["auc", "average_precision"])
def test_no_order_without_numbers(name: str) -> None:
    batch = Batch(torch.zeros(3, 1), torch.tensor([0, 1, 0]), torch.tensor([0.5, 0.5, 0.0]))
    for outputs, defined in (([1.0, 2.0, torch.nan], True), ([1.0, torch.nan, 3.0], False)):
        value = CATALOGUE.find(name)(BINARY, torch.tensor(outputs)[:, None], batch)
        assert bool(value.isfinite()) == defined


def test_r2_of_equal_targets_is_not_defined() -> None:
    """The mean of three times 0.1 is not 0.1 in floating point: the spread is not zero."""
    targets = torch.full((3, 1), 0.1, dtype=torch.float64)
    value = CATALOGUE.find("r2")(Task("regression", 1), targets + 1, Batch(targets, targets, torch.ones(3)))
    assert value.isnan()
