"""How good predicted classes and probabilities are.

With two classes `f1`, `auc` and `average_precision` are of the second one, as in scikit-learn. With more they
are means over the classes that occur in the client's rows, each against all others ("macro, one vs rest").
Whether a client has a value depends on its rows alone, never on a model, so that all models have the same
clients: of a class that does not occur there is nothing to say, nor an order where it is all there is.

No library computes stacks of padded clients under vmap; each of these is held to scikit-learn's in tests.
"""

import dataclasses
import functools
from collections.abc import Callable

import torch
from torch import Tensor

from idiolect.core.device import precise
from idiolect.core.objective import Batch
from idiolect.core.task import Task
from idiolect.evaluation.metric import Metric, is_classification, mean_over_rows, metric, own_rows

CALIBRATION_BINS = 10


@metric(higher_is_better=True, applies_to=is_classification, is_share=True)
def accuracy(task: Task, predictions: Tensor, batch: Batch) -> Tensor:
    """The share of rows whose class is the predicted one."""
    return mean_over_rows(task.decide(predictions) == batch.targets, batch)


@metric(higher_is_better=True, applies_to=is_classification, is_share=True, by_classes=True)
def balanced_accuracy(task: Task, predictions: Tensor, batch: Batch) -> Tensor:
    """The mean recall over the classes that occur."""
    return _nan_mean(_recalls(*_confusion(task, predictions, batch)))


@metric(higher_is_better=True, applies_to=is_classification, is_share=True, by_classes=True)
def f1(task: Task, predictions: Tensor, batch: Batch) -> Tensor:
    """The harmonic mean of precision and recall."""
    by_class = _f1s(*_confusion(task, predictions, batch))
    return by_class[1] if task.kind == "binary" else _nan_mean(by_class)


@metric(higher_is_better=True, applies_to=is_classification, is_share=True, by_classes=True)
def auc(task: Task, predictions: Tensor, batch: Batch) -> Tensor:
    """The share of pairs of a row of the class and one of the others that are in the right order.

    Pairs of equal scores count half. Not defined where one class is all there is.
    """
    return _nan_mean(_areas(*_ranked(task, predictions, batch)))


@metric(higher_is_better=True, applies_to=is_classification, is_share=True, by_classes=True)
def average_precision(task: Task, predictions: Tensor, batch: Batch) -> Tensor:
    """The precision at each row of the class, ordered by score, in the mean: the area under that curve."""
    return _nan_mean(_average_precisions(*_ranked(task, predictions, batch)))


@metric(higher_is_better=False, applies_to=is_classification)
def log_loss(task: Task, predictions: Tensor, batch: Batch) -> Tensor:
    """The mean of -log of the probability of the class that it was, without class weights."""
    plain = dataclasses.replace(task, class_weights=())
    return mean_over_rows(plain.row_losses(precise(predictions), batch.targets), batch)


@metric(higher_is_better=False, applies_to=is_classification, is_share=True)
def calibration_error(task: Task, predictions: Tensor, batch: Batch) -> Tensor:
    """How far probabilities are from frequencies, in the mean over rows, in ten bins of equal width.

    With two classes of the second one; with more of the most probable one (expected calibration error).
    """
    if task.kind == "binary":
        chance, happened = precise(predictions[..., 0]).sigmoid(), batch.targets
    else:
        chance, decided = precise(predictions).softmax(-1).max(-1)
        happened = (decided == batch.targets).to(torch.int64)
    own = own_rows(batch)
    place = (chance * CALIBRATION_BINS).floor().clamp(max=CALIBRATION_BINS - 1)
    within = precise(place[:, None] == torch.arange(CALIBRATION_BINS, device=place.device)) * own[:, None]
    return ((happened - chance) @ within).abs().sum() / own.sum()


# Metrics of one class: "recall:yes".
Rate = Callable[[Tensor, Tensor, Tensor], Tensor]


@functools.cache  # so that two of the same name are the same
def of_class(word: str, name: str, number: int) -> Metric:
    """Recall, precision or f1 of one class against all others, called as in "recall:yes"."""
    rate = OF_CLASS[word]

    def function(task: Task, predictions: Tensor, batch: Batch) -> Tensor:
        return rate(*_confusion(task, predictions, batch))[number]

    return Metric(
        f"{word}:{name}",
        function,
        higher_is_better=True,
        applies_to=is_classification,
        is_share=True,
        class_number=number,
    )


def _confusion(task: Task, predictions: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """For each class how many rows are rightly taken for it, are taken for it, and are of it."""
    own, classes = own_rows(batch), torch.arange(task.classes, device=predictions.device)
    decided = precise(task.decide(predictions)[:, None] == classes)
    actual = precise(batch.targets[:, None] == classes)
    return own @ (decided * actual), own @ decided, own @ actual


def _recalls(right: Tensor, decided: Tensor, actual: Tensor) -> Tensor:
    return right / actual


def _precisions(right: Tensor, decided: Tensor, actual: Tensor) -> Tensor:
    return torch.where(actual > 0, right / decided.clamp_min(1), torch.nan)


def _f1s(right: Tensor, decided: Tensor, actual: Tensor) -> Tensor:
    return torch.where(actual > 0, 2 * right / (decided + actual), torch.nan)


OF_CLASS: dict[str, Rate] = {"recall": _recalls, "precision": _precisions, "f1": _f1s}


def _ranked(task: Task, predictions: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """For each class its rows and the others counted from the highest score down, and where scores change.

    Three tensors [classes, rows]; with two classes, of the second one only. Rows that only pad count nothing.
    """
    classes = torch.arange(task.classes, device=predictions.device)
    if task.kind == "binary":
        scores, classes = precise(predictions.T), classes[1:]
    else:
        scores = precise(predictions).softmax(-1).T
    ordered, order = scores.sort(-1, descending=True)
    own = own_rows(batch)
    hits = precise(batch.targets == classes[:, None]) * own
    inside, outside = hits.gather(-1, order), (own - hits).gather(-1, order)
    changes = torch.cat([ordered[:, 1:] != ordered[:, :-1], torch.ones_like(order[:, :1]).bool()], -1)
    unknown = torch.where((scores.isnan() & (own > 0)).any(), torch.nan, 0.0)  # no order without numbers
    return inside.cumsum(-1) + unknown, outside.cumsum(-1), precise(changes)


def _areas(inside: Tensor, outside: Tensor, changes: Tensor) -> Tensor:
    """The area under each class's curve of hits against false alarms, by trapezoids between changes."""
    before = _at_last_change(inside, changes)
    width = changes * (outside - _at_last_change(outside, changes))
    return (width * (inside + before)).sum(-1) / (2 * inside[:, -1] * outside[:, -1])


def _average_precisions(inside: Tensor, outside: Tensor, changes: Tensor) -> Tensor:
    """The sum over changes of (the step in recall) x (the precision there); nothing to say of one class."""
    steps = changes * (inside - _at_last_change(inside, changes))
    precision = inside / (inside + outside).clamp_min(1)
    defined = torch.where(outside[:, -1] > 0, 1.0, torch.nan)
    return defined * (steps * precision).sum(-1) / inside[:, -1]


def _at_last_change(counts: Tensor, changes: Tensor) -> Tensor:
    """The counts as they stood at the change of scores before each row; zero before the first."""
    stood = (counts * changes).cummax(-1).values
    return torch.cat([torch.zeros_like(stood[:, :1]), stood[:, :-1]], -1)


def _nan_mean(values: Tensor) -> Tensor:
    """The mean over those that are defined."""
    defined = ~values.isnan()
    return torch.where(defined, values, 0.0).sum() / defined.sum()
