"""What is predicted: the loss of one row under each kind of task."""

from dataclasses import dataclass
from typing import Literal

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

    def row_losses(self, predictions: Tensor, targets: Tensor) -> Tensor:
        """The loss of each row: cross entropy, logistic loss, or half the squared error."""
        match self.kind:
            case "multiclass" | "next-character":
                # By hand: cross_entropy spends half of a small model's step on classes to ignore.
                return -predictions.log_softmax(-1).gather(-1, targets[..., None]).squeeze(-1)
            case "binary":
                return F.binary_cross_entropy_with_logits(
                    predictions[..., 0], targets.to(predictions.dtype), reduction="none"
                )
            case "regression":
                return 0.5 * (predictions - targets).square().sum(-1)

    @property
    def is_classification(self) -> bool:
        """Whether targets are classes."""
        return self.kind != "regression"

    def decide(self, predictions: Tensor) -> Tensor:
        """The predicted class of each row, or the prediction itself for regression."""
        match self.kind:
            case "binary":
                return (predictions[..., 0] > 0).to(torch.int64)
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
