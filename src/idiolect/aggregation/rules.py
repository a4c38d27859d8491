"""Sums that a few odd uploads cannot lead astray.

Each rule takes uploads as rows of a matrix x [clients, entries], as changes from what was sent, with weights
a_i > 0 that sum to one, and gives a mean in place of Σ a_i x_i, and who had no part in it.

    clip      Σ a_i min(1, b / |x_i|) x_i                       b: a norm, or the median of the |x_i|
    median    of each entry
    trimmed   of each entry, the mean of what is left without the k largest and the k smallest
    krum      the mean of the `keep` uploads that lie nearest to their n - f - 2 nearest neighbours

Weights count in `clip` and `krum`; median and trimmed mean take every upload alike. (Sun et al. 2019; Yin et
al. 2018; Blanchard et al. 2017.)
"""

from typing import Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from idiolect.core.hyper import STRICT
from idiolect.errors import UserError

Combined = tuple[Tensor, Tensor]  # the mean [entries], and who has no part in it, bool[clients]


@dataclass(frozen=True, config=STRICT)
class Clip:
    """Changes are shortened."""

    norm: float | None = Field(default=None, gt=0, description="the longest; None: the median of all")
    name: Literal["clip"] = "clip"

    def combine(self, changes: Tensor, weights: Tensor) -> Combined:
        """Nobody is left out."""
        # Scaled by the largest entry: the square of a huge one would be infinite.
        largest = changes.abs().amax(1).clamp_min(torch.finfo(changes.dtype).tiny)
        scaled = changes / largest[:, None]
        lengths = scaled.norm(dim=1)
        longest = (largest * lengths).median() if self.norm is None else self.norm
        shortened = scaled * torch.minimum(largest, longest / lengths)[:, None]
        return weights @ shortened, torch.zeros(len(changes), dtype=torch.bool)


@dataclass(frozen=True, config=STRICT)
class Median:
    """Of each entry the middle one, or the mean of the two in the middle."""

    name: Literal["median"] = "median"

    def combine(self, changes: Tensor, weights: Tensor) -> Combined:
        """Nobody is left out as a whole."""
        half = (len(changes) - 1) // 2
        return _trimmed_mean(changes, half), torch.zeros(len(changes), dtype=torch.bool)


@dataclass(frozen=True, config=STRICT)
class Trimmed:
    """Of each entry the extremes are dropped."""

    share: float = Field(default=0.1, gt=0, lt=0.5, description="of the clients, dropped at each end")
    name: Literal["trimmed"] = "trimmed"

    def combine(self, changes: Tensor, weights: Tensor) -> Combined:
        """Nobody is left out as a whole."""
        dropped = min(max(1, round(self.share * len(changes))), (len(changes) - 1) // 2)
        return _trimmed_mean(changes, dropped), torch.zeros(len(changes), dtype=torch.bool)


@dataclass(frozen=True, config=STRICT)
class Krum:
    """Multi-Krum: uploads that have near neighbours."""

    attackers: int = Field(default=1, ge=0, description="how many of a round's uploads may be wrong: f")
    keep: int | None = Field(default=None, ge=1, description="how many count; None: all but the attackers")
    name: Literal["krum"] = "krum"

    def combine(self, changes: Tensor, weights: Tensor) -> Combined:
        """The others are left out."""
        count = len(changes)
        neighbours = count - self.attackers - 2
        if neighbours < 1:
            raise UserError(
                f"robust.attackers={self.attackers} is too many for {count} uploads: krum needs at least "
                f"{self.attackers + 3}"
            )
        distances = torch.cdist(changes, changes, compute_mode="donot_use_mm_for_euclid_dist").square()
        # The nearest is each upload itself, at the distance 0.
        scores = distances.sort(1).values[:, 1 : neighbours + 1].sum(1)
        keep = min(self.keep or count - self.attackers, count)
        kept = torch.zeros(count, dtype=torch.bool)
        kept[scores.argsort(stable=True)[:keep]] = True
        counted = weights * kept
        return counted / counted.sum() @ changes, ~kept


RobustRule = Clip | Median | Trimmed | Krum
RULES: dict[str, type[RobustRule]] = {"clip": Clip, "median": Median, "trimmed": Trimmed, "krum": Krum}


def _trimmed_mean(changes: Tensor, dropped: int) -> Tensor:
    """Of each entry, without so many at each end."""
    return changes.sort(0).values[dropped : len(changes) - dropped].mean(0)
