"""From which probability on the second of two classes is decided: chosen on validation rows.

One for each model kind, over the validation rows of all clients together: a client's own few rows would give
noise. It is the one at which the judging metric, if that depends on it, or balanced accuracy is best.
"""

from typing import Literal, Protocol

import torch
from torch import Tensor

from idiolect.core.device import precise
from idiolect.core.exchange import ClientState, Message, Site
from idiolect.core.method import Method
from idiolect.data.federation import Rows
from idiolect.engines.engine import Look

Criterion = Literal["accuracy", "balanced_accuracy", "f1"]
CRITERIA: tuple[Criterion, ...] = ("accuracy", "balanced_accuracy", "f1")
_MARGIN = 1e-6  # a threshold is at least so far from 0 and 1


class _Looked(Protocol):
    """Clients that can be looked at here."""

    @property
    def method(self) -> Method: ...

    def survey(self, look: Look, part: Rows) -> dict[str, Tensor]: ...


def best_threshold(logits: Tensor, targets: Tensor, criterion: Criterion) -> float:
    """The threshold that is best for some rows; of equals the one nearest to one half.

    >>> best_threshold(torch.tensor([-2.0, -1.5, -0.5, 1.0]), torch.tensor([0, 0, 1, 1]), "f1")
    0.2689414213699951
    """
    finite = logits.isfinite()
    ordered, order = precise(logits[finite]).sort()
    targets = targets[finite][order]
    levels = ordered.unique()
    middles = torch.cat([levels[:1] - 1, 0.5 * (levels[1:] + levels[:-1])])  # below all, and between two
    candidates = torch.cat([torch.tensor([0.5], dtype=torch.float64), middles.sigmoid()])
    candidates = candidates.clamp(_MARGIN, 1 - _MARGIN).unique()
    below = torch.searchsorted(ordered, candidates.logit(), right=True)  # as many are not decided for
    found = torch.cat([targets.new_zeros(1), targets.cumsum(0)])  # of the second class among the lowest
    missed, positives, count = found[below], found[-1], len(ordered)
    hits, alarms = positives - missed, (count - below) - (positives - missed)
    match criterion:
        case "accuracy":
            values = hits - alarms
        case "balanced_accuracy":
            values = hits / positives.clamp_min(1) - alarms / (count - positives).clamp_min(1)
        case "f1":
            values = 2 * hits / (hits + alarms + positives).clamp_min(1)
    best = candidates[values >= values.max() - 1e-12]
    return float(best[(best - 0.5).abs().argmin()])


def validation_thresholds(simulation: _Looked, validation: Rows, criterion: Criterion) -> dict[str, float]:
    """The best threshold of each model kind on all clients' validation rows."""
    most = int(validation.sizes.max())

    def look(client: ClientState, brief: Message, site: Site) -> dict[str, Tensor]:
        rows = site.all_rows
        predictors = simulation.method.predictors(client, brief)
        columns: dict[str, Tensor] = {"targets": rows.targets, "own": rows.weights > 0}
        for kind, predictor in predictors.items():
            columns[kind] = site.objective.predict(predictor, rows.inputs)[:, 0]
        # Chunks of clients are padded to different lengths; these are all of one.
        return {name: _lengthened(precise(column), most) for name, column in columns.items()}

    seen = simulation.survey(look, validation)
    own, targets = seen.pop("own") > 0, seen.pop("targets")
    classes = targets[own].to(torch.int64)
    return {kind: best_threshold(logits[own], classes, criterion) for kind, logits in seen.items()}


def _lengthened(column: Tensor, length: int) -> Tensor:
    return torch.cat([column, column.new_zeros(max(0, length - len(column)))])
