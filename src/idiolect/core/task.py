"""What is predicted: the loss of one row under each kind of task."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  (torch's own convention)

from idiolect.errors import UserError

TaskKind = Literal["multiclass", "binary", "regression", "next-character"]


@dataclass(frozen=True)
class Task:
    """The kind of target and how many outputs a model has for it.

    multiclass, next-character: `outputs` classes, integer targets [rows], logits [rows, outputs];
    binary: targets 0 or 1 [rows], one logit [rows, 1]; regression: real targets [rows, outputs].
    """

    kind: TaskKind
    outputs: int
    class_weights: tuple[float, ...] = ()  # the factor of each class's losses in training; empty: all one
    unit: float = 1.0  # regression: what one of the model's outputs is in the target's own units
    threshold: float = 0.5  # binary: the probability from which on the second class is decided

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Task":
        """The inverse of `plain`; what an older file does not say is as by default."""
        return cls(**{**plain, "class_weights": tuple(plain.get("class_weights", ()))})

    def plain(self) -> dict[str, Any]:
        """As plain data for a file."""
        return dataclasses.asdict(self)

    def row_losses(self, predictions: Tensor, targets: Tensor) -> Tensor:
        """The loss of each row: cross entropy, logistic loss, or half the squared error."""
        match self.kind:
            case "multiclass" | "next-character":
                # By hand: cross_entropy spends half of a small model's step on classes to ignore.
                losses = -predictions.log_softmax(-1).gather(-1, targets[..., None]).squeeze(-1)
            case "binary":
                losses = F.binary_cross_entropy_with_logits(
                    predictions[..., 0], targets.to(predictions.dtype), reduction="none"
                )
            case "regression":
                return 0.5 * (predictions - targets).square().sum(-1)
        return losses * self._weights_of(targets, losses.dtype) if self.class_weights else losses

    @property
    def is_classification(self) -> bool:
        """Whether targets are classes."""
        return self.kind != "regression"

    @property
    def classes(self) -> int:
        """How many classes there are; none in a regression."""
        return {"binary": 2, "regression": 0}.get(self.kind, self.outputs)

    def decide(self, predictions: Tensor) -> Tensor:
        """The predicted class of each row, or the prediction itself for regression."""
        match self.kind:
            case "binary":
                least = math.log(self.threshold / (1 - self.threshold))
                return (predictions[..., 0] > least).to(torch.int64)
            case "regression":
                return predictions
            case _:
                return predictions.argmax(-1)

    def probabilities(self, predictions: Tensor) -> Tensor:
        """The probability of each class, float64[rows, classes]; a binary task has two."""
        if not self.is_classification:
            raise UserError("probabilities are of classes, and a regression predicts numbers")
        logits = predictions.to(torch.float64)
        if self.kind == "binary":
            logits = torch.cat([torch.zeros_like(logits), logits], -1)
        return logits.softmax(-1)

    def _weights_of(self, targets: Tensor, dtype: torch.dtype) -> Tensor:
        """The weight of each row's class."""
        if self.kind == "binary":  # by arithmetic, which a recorded step can fuse
            first, second = self.class_weights
            return first + (second - first) * targets.to(dtype)
        return torch.tensor(self.class_weights, dtype=dtype, device=targets.device)[targets]
