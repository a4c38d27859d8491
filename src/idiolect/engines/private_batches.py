"""Batches of runs that hide rows: every row is in every batch with the same probability.

In call c of a round each of a client's n rows takes part with the probability q = b / n, independently of all
others and of all other calls, b = min(batch size, n). So a batch is a uniform subset of Binomial(n, q) rows,
each of which has the weight 1 / b. It has room for so many that more are drawn with a probability of at most
10⁻¹⁸, which is counted (`privacy/accounting.py`). Where b = n all rows are in it.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from idiolect.core import rng
from idiolect.core.objective import Batch
from idiolect.data.federation import Federation
from idiolect.engines.batches import Batches

CUT = 1e-18
# After the usual 20 some rows are drawn too often by 2^-20: no small part of the rate where rows are many.
SHUFFLE_ROUNDS = 64
_NO_ROW = -1


class PrivateBatches(Batches):
    """Draws rows independently of each other."""

    def __init__(
        self, federation: Federation, seed: int, batch_size: int | None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__(federation, seed, batch_size, dtype, has_noise=True)
        sizes, self._kind = federation.train.sizes.unique(return_inverse=True)
        draws = Draws.of(sizes, sizes if batch_size is None else sizes.clamp_max(batch_size))
        self.widths = draws.widths[self._kind]
        self.rates, self.cuts = draws.rates[self._kind], draws.cuts[self._kind]
        self._below = draws.below

    def draw(self, ids: Tensor, round_number: int, calls: Tensor, width: int) -> Tensor:
        """Row numbers int64[..., width] of some calls of some clients in a round; both are broadcast.

        There are as many as were drawn, and -1 beyond.
        """
        ids, call = torch.broadcast_tensors(ids, calls)
        key = rng.key(self.seed, "private batches", ids, round_number, call)
        drawn = (rng.uniform(rng.fold(key, 0))[..., None] >= self._below[self._kind[ids]]).sum(-1)
        place, size = torch.arange(width), self.federation.train.sizes[ids][..., None]
        row = rng.permute(place % size, size, rng.fold(key, 1)[..., None], SHUFFLE_ROUNDS)
        rows = self.federation.train.index[self.federation.train.offsets[ids][..., None] + row]
        return torch.where(place < torch.minimum(drawn, self.widths[ids])[..., None], rows, _NO_ROW)

    def weights(self, ids: Tensor, width: int) -> Tensor:
        """1 / b for every row that is drawn."""
        each = 1 / self.batch_sizes[ids].clamp_min(1).to(torch.float64)
        return each[..., None].expand(*ids.shape, width).to(self.device, self.dtype)

    def gather(self, rows: Tensor, weights: Tensor, key: Tensor | tuple[()] = ()) -> Batch:
        """The rows themselves; where there is none, any row, with weight zero."""
        exists = (rows != _NO_ROW).to(weights.device)
        return super().gather(rows.clamp_min(0), weights * exists, key)


class Draws(NamedTuple):
    """How many rows batches of clients of some sizes have."""

    rates: Tensor  # q
    widths: Tensor  # int64: the rows for which there is room
    cuts: Tensor  # the probability that more are drawn
    below: Tensor  # [sizes, widest]: the probability of at most 0, 1, .. rows

    @classmethod
    def of(cls, sizes: Tensor, batch_sizes: Tensor) -> "Draws":
        """Binomial; counts beyond twice the mean and a hundred are out of reach."""
        n = sizes.clamp_min(1).to(torch.float64)[:, None]
        q = batch_sizes.to(torch.float64)[:, None] / n
        count = torch.arange(min(int(sizes.max()), 2 * int(batch_sizes.max()) + 100) + 1, dtype=torch.float64)
        ways = torch.lgamma(n + 1) - torch.lgamma(count + 1) - torch.lgamma((n - count).clamp_min(0) + 1)
        powers = torch.xlogy(count, q) + torch.special.xlog1py((n - count).clamp_min(0), -q)
        chances = torch.where(count <= n, (ways + powers).exp(), 0.0)
        chances = chances / chances.sum(1, keepdim=True)
        at_least = chances.flip(1).cumsum(1).flip(1)
        more = torch.cat([at_least[:, 1:], torch.zeros_like(n)], 1)
        widths = (more <= CUT).to(torch.int64).argmax(1)
        cuts = more.gather(1, widths[:, None])[:, 0]
        return cls(q[:, 0], widths, cuts, chances.cumsum(1)[:, : int(widths.max())])
