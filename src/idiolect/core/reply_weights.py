"""The usual weights of replies."""

from typing import Literal

import torch
from torch import Tensor

from idiolect.core.cohort import Cohort

Weighting = Literal["uniform", "samples"]


def reply_weights(cohort: Cohort, weighting: Weighting) -> Tensor:
    """Weights that sum to one over the replies: equal, or in proportion to training rows."""
    counts = torch.ones(len(cohort), dtype=torch.float64)
    if weighting == "samples":
        counts = cohort.sizes.to(torch.float64)
    if cohort.multiplicity is not None:
        counts = counts * cohort.multiplicity
    return counts / counts.sum()


def plain_mean(cohort: Cohort) -> Tensor:
    """1/m for each of m replies, however often a client was drawn: so corrections sum to zero."""
    return torch.full((len(cohort),), 1 / len(cohort), dtype=torch.float64)
