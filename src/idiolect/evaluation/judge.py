"""What a task is judged by where the user does not say: accuracy misleads where a class is rare.

| task       | classes                                  | judged by                                         |
|------------|------------------------------------------|---------------------------------------------------|
| binary     | the rarer one has less than 20 % of rows | auc; balanced_accuracy where auc is not to be had |
| multiclass | the largest one has more than 60 %       | balanced_accuracy                                 |
| otherwise  |                                          | accuracy, rmse                                    |

The auc of a client needs rows of both classes. It is not to be had if for more than half of the clients not
even one row of each class is to be expected among its validation rows (test rows, where there are no others).

All rows are counted, those of tests too: how often classes occur says nothing of models, and the judge must
not change with the split, so that all seeds of a comparison have the same one.
"""

import torch
from torch import Tensor

from idiolect.data.federation import Federation
from idiolect.engines.local_view import PartialRows
from idiolect.evaluation.metrics import main_metric

RARE_CLASS = 0.2  # of two classes
LARGE_CLASS = 0.6  # of several


def default_metric(federation: Federation) -> tuple[str, str]:
    """The metric that rounds are chosen and models reported by, and why if it is not the usual one."""
    task = federation.task
    usual = main_metric(task)
    # At silos nobody sees all rows.
    if task.kind not in ("binary", "multiclass") or isinstance(federation.train, PartialRows):
        return usual, ""
    counts = _class_counts(federation)
    shares = counts.sum(0) / counts.sum()
    if task.kind == "binary" and shares.min() < RARE_CLASS:
        rarer = int(shares.argmin())
        return _of_rare_class(federation, counts, f"{_name(federation, rarer)} has {_percent(shares.min())}")
    if task.kind == "multiclass" and shares.max() > LARGE_CLASS:
        largest = int(shares.argmax())
        return "balanced_accuracy", (
            f"judged by balanced_accuracy: the class {_name(federation, largest)} has "
            f"{_percent(shares.max())} of the rows, and who always says so has that accuracy"
        )
    return usual, ""


def _of_rare_class(federation: Federation, counts: Tensor, rare: str) -> tuple[str, str]:
    why = f"the class {rare} of the rows, and who never says so has a high accuracy"
    judging = federation.validation if len(federation.validation.index) else federation.test
    expected = counts.min(-1).values * judging.sizes / counts.sum(-1).clamp_min(1)
    without = int((expected < 1).sum())
    if 2 * without <= len(federation):
        return "auc", f"judged by auc: {why}"
    return "balanced_accuracy", (
        f"judged by balanced_accuracy: {why}; auc needs rows of both classes, and {without} of "
        f"{len(federation)} clients have too few"
    )


def _class_counts(federation: Federation) -> Tensor:
    """How many rows of each class each client has, each row once; float64[clients, classes]."""
    parts = (federation.train, federation.validation, federation.test)
    return torch.stack(
        [
            torch.bincount(
                federation.targets[torch.cat([part.of(client) for part in parts]).unique()],
                minlength=federation.task.classes,
            )
            for client in range(len(federation))
        ]
    ).to(torch.float64)


def _name(federation: Federation, number: int) -> str:
    return repr(federation.class_names[number]) if federation.class_names else str(number)


def _percent(share: Tensor) -> str:
    return f"{100 * float(share):.3g} %"
