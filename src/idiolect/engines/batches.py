"""Which rows a client sees in its c-th gradient call of a round: a pure function of (seed, client, round, c).

In each round a client's training rows form an endless stream: a random permutation of them, then another,
and so on. Call c takes rows [c b, (c + 1) b) of the stream, b = min(batch size, number of rows). So one
epoch visits every row, batches are full, and a client with few rows never sees a row twice in a batch
before it has seen them all.
"""

import torch
from torch import Tensor

from idiolect.core import rng, tree
from idiolect.core.device import CPU, has_room, to_device
from idiolect.core.exchange import Epochs
from idiolect.core.objective import Batch
from idiolect.data.federation import Federation, Rows

_ALL_ROWS = torch.tensor(-1)  # in place of a call


class Batches:
    """Draws batches from a federation's training rows. `batch_size` None: all rows in every batch.

    `dtype` is that of the rows' weights; None: that of the inputs, which must then be real numbers. Where a
    model draws noise, every batch has a key for it.
    """

    def __init__(
        self,
        federation: Federation,
        seed: int,
        batch_size: int | None,
        dtype: torch.dtype | None = None,
        *,
        has_noise: bool = False,
    ) -> None:
        self.federation = federation
        self.dtype = dtype or tree.leaves(federation.inputs)[0].dtype
        self.seed = seed
        self.batch_size = batch_size
        self.inputs, self.targets = federation.inputs, federation.targets
        self.device = self.rows_device = CPU
        self.has_noise = has_noise
        sizes = federation.train.sizes
        self.batch_sizes = sizes if batch_size is None else sizes.clamp_max(batch_size)
        self.widths = self.batch_sizes  # the most rows that a client's batches have

    def move_to(self, device: torch.device) -> None:
        """Give batches on a device; all rows are kept there if they fit, else the rows of each are moved."""
        rows = (self.federation.inputs, self.federation.targets)
        fit = has_room(device, sum(leaf.nbytes for leaf in tree.leaves(rows)))
        self.device, self.rows_device = device, device if fit else CPU
        self.inputs, self.targets = to_device(rows, self.rows_device)

    def steps(self, work: "int | Epochs", ids: Tensor) -> Tensor:
        """Local work as a number of steps for each client."""
        if isinstance(work, Epochs):
            per_epoch = -(-self.federation.train.sizes[ids] // self.batch_sizes[ids])
            return work.epochs * per_epoch
        return torch.full_like(ids, work)

    def longest(self, work: "int | Epochs") -> int:
        """The steps that a round has on the clock of learning-rate schedules."""
        return int(self.steps(work, torch.arange(len(self.federation))).max())

    def draw(self, ids: Tensor, round_number: int, calls: Tensor, width: int) -> Tensor:
        """Row numbers int64[..., width] of some calls of some clients in a round; both are broadcast.

        Entries beyond a client's batch size only pad, and have no weight.
        """
        ids, call = ids[..., None], calls[..., None]
        sizes = self.federation.train.sizes[ids]
        stream = call * self.batch_sizes[ids] + torch.arange(width)
        key = rng.key(self.seed, "batches", ids, round_number)
        epoch = stream // sizes
        # Within one epoch a client has one key for all its positions, which saves half of the hashing.
        place = rng.permute(stream % sizes, sizes, rng.fold(key, epoch if epoch.any() else 0))
        return self.federation.train.index[self.federation.train.offsets[ids] + place]

    def weights(self, ids: Tensor, width: int) -> Tensor:
        """The weight of each row of a client's batches, [.., width]: 1/b, and 0 where it only pads."""
        return to_device(_row_weights(self.batch_sizes[ids], width, self.dtype), self.device)

    def keys(self, ids: Tensor, round_number: int, calls: Tensor) -> Tensor | tuple[()]:
        """The key of the noise in some calls of some clients in a round, which are broadcast; or nothing."""
        if not self.has_noise:
            return ()
        return to_device(rng.key(self.seed, "dropout", ids, round_number, calls), self.device)

    def gather(self, rows: Tensor, weights: Tensor, key: Tensor | tuple[()] = ()) -> Batch:
        """The rows themselves."""
        rows = to_device(rows, self.rows_device)
        inputs = tree.map_tree(lambda leaf: _take(leaf, rows), self.inputs)
        batch = Batch(inputs, _take(self.targets, rows), weights, key)
        return batch if self.rows_device == self.device else to_device(batch, self.device)

    def all_rows(self, part: Rows, ids: Tensor, round_number: int) -> Batch:
        """All rows of each client in one part of the federation, padded to the largest of these clients."""
        sizes = part.sizes[ids]
        width = max(int(sizes.max()), 1)
        place = torch.arange(width) % sizes.clamp_min(1)[:, None]
        # A client without rows gets somebody's row with weight zero: its sums are then exactly zero.
        rows = part.index if len(part.index) else part.index.new_zeros(1)
        index = rows[(part.offsets[ids][:, None] + place).clamp_max(len(rows) - 1)]
        weights = to_device(_row_weights(sizes, width, self.dtype), self.device)
        return self.gather(index, weights, self.keys(ids, round_number, _ALL_ROWS))


def _take(flat: Tensor, rows: Tensor) -> Tensor:
    """flat[rows], by copying whole rows, which is twice as fast as general indexing."""
    return flat.index_select(0, rows.reshape(-1)).reshape(*rows.shape, *flat.shape[1:])


def _row_weights(sizes: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    counted = torch.arange(width) < sizes[..., None]
    return (counted / sizes.clamp_min(1)[..., None].to(torch.float64)).to(dtype)
