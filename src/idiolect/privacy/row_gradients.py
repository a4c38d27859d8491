"""Gradients that hide single rows: each row's is clipped, and the sum gets noise.

    g = (1 / b) (Σ_j clip(∇ℓ_j(w), C) + σ C z),    clip(x, C) = x min(1, C / |x|),    z ~ N(0, I)

over the rows j of a batch, of whose size b is the mean. Every row's gradient is taken of a batch of that row
alone, whatever the loss, and its norm is over all parameters that the gradient is of: so to take one row out
moves the sum by at most C. A gradient that is not finite counts as zero. The l2 term, if any, comes after.
"""

import functools
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor, nn
from torch._C._functorch import maybe_current_level
from torch.func import vmap

from idiolect.core import rng, tree
from idiolect.core.inputs import Inputs
from idiolect.core.objective import Batch, Objective, PassLoss
from idiolect.core.tree import Params
from idiolect.errors import UserError
from idiolect.privacy.linear_rows import PassedOtherwiseError, TappedGradients, linear_layers
from idiolect.privacy.settings import RowPrivacy

_NOISE, _ROW = zlib.crc32(b"privacy"), zlib.crc32(b"row")  # what keys are folded for
_BYTES_AT_ONCE = 2**28  # of single rows' gradients, whose rows are taken in several lots if they are more

_counts: ContextVar[list[int] | None] = ContextVar("counts", default=None)


@contextmanager
def counting_gradients() -> Iterator[list[int]]:
    """The numbers, among the batches of their step, of those that gradients are taken of meanwhile."""
    taken: list[int] = []
    token = _counts.set(taken)
    try:
        yield taken
    finally:
        _counts.reset(token)


class SealedBatch:
    """Rows that a method can have gradients of, by a private objective, and nothing else.

    `number` is the batch's place in its step; None: rows that no gradients are counted of.
    """

    def __init__(self, method: str, batch: Batch, number: int | None) -> None:
        self._method, self._batch, self._number = method, batch, number

    def opened(self) -> tuple[Batch, int]:
        """For the objective; of a client that is computed alone without the axis that some of it has."""
        if self._number is None:
            self._refuse()
        batch = self._batch
        assert isinstance(batch.key, Tensor), "batches of private runs have keys"
        return batch._replace(weights=batch.weights.reshape(-1), key=batch.key.reshape(())), self._number

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # Python's own questions, such as how it is copied
            raise AttributeError(name)
        self._refuse()

    def __iter__(self) -> NoReturn:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise UserError(
            f"privacy.unit=row cannot be used with method={self._method} as it is set: it looks at rows in "
            "another way than by gradients of the batches of its steps; choose another method or setting, "
            "or privacy.unit=silo"
        )


class PrivateObjective(Objective):
    """An objective whose gradients hide single rows, for one step of one client.

    share: 1 / b, the weight of a row
    origin: whose noise it is, among all trainings with the same seed
    """

    def __init__(
        self, objective: Objective, privacy: RowPrivacy, method: str, share: Tensor, origin: str = ""
    ) -> None:
        self.__dict__.update(vars(objective))
        self._privacy, self._method, self._share, self._origin = privacy, method, share, origin
        self._released = [0]  # gradients so far, also those of copies
        self._level = maybe_current_level()

    def data_gradient(
        self, params: Params, batch: Batch, *, fixed: Params | None = None, loss: PassLoss | None = None
    ) -> Params:
        """The noisy sum of the rows' clipped gradients."""
        sealed: object = batch  # a method has no others
        assert isinstance(sealed, SealedBatch)
        self._refuse_derivatives(params)
        rows, number = sealed.opened()
        if (counts := _counts.get()) is not None:
            counts.append(number)
        if not tree.leaves(params):  # a part of a model may be empty
            return params
        return self._with_noise(self._clipped_sum(params, rows, fixed, loss), rows.key)

    def _clipped_sum(
        self, params: Params, rows: Batch, fixed: Params | None, loss: PassLoss | None
    ) -> Params:
        """Σ_j clip(∇ℓ_j(w), C) over the rows that count."""
        layers = None if loss is not None else linear_layers(self.module)
        if layers is not None:
            try:
                return self._clipped_in_layers(layers, params, rows, fixed)
            except PassedOtherwiseError:
                pass
        lots = _lots(rows, self._rows_at_once(params))
        return functools.reduce(tree.add, (self._of_lot(params, lot, fixed, loss) for lot in lots))

    def _clipped_in_layers(
        self, layers: dict[str, nn.Linear], params: Params, rows: Batch, fixed: Params | None
    ) -> Params:
        """The same of all rows at once, whose gradients are not held in memory."""
        whole, each = {**params, **(fixed or {})}, torch.ones_like(rows.weights)
        tapped = TappedGradients(layers, params)
        found = tapped.found(lambda: self.training_loss(whole, rows._replace(weights=each), fixed), each)
        factors, finite = self._factors(tapped.squares(*found), rows.weights > 0)
        deltas, inputs = tree.map_tree(lambda leaf: _only(finite, leaf), found)
        return tapped.total(deltas, inputs, factors)

    def _of_lot(self, params: Params, lot: "Lot", fixed: Params | None, loss: PassLoss | None) -> Params:
        """The same of some rows, whose gradients are held in memory."""
        plain = super().data_gradient

        def slopes_of(inputs: Inputs, target: Tensor, key: Tensor) -> Params:
            alone = tree.map_tree(lambda leaf: leaf[None], inputs)
            row = Batch(alone, target[None], lot.counted.new_ones(1, dtype=self.dtype), key)
            return plain(params, row, fixed=fixed, loss=loss)

        try:
            slopes = vmap(slopes_of)(lot.inputs, lot.targets, lot.keys)
        except RuntimeError:  # an operation, as in nn.GRU, that torch cannot do for many rows at once
            rows = (tree.row(lot, place) for place in range(len(lot.counted)))
            slopes = tree.stack([slopes_of(row.inputs, row.targets, row.keys) for row in rows])
        squares = sum(leaf.square().flatten(1).sum(1) for leaf in tree.leaves(slopes))
        assert isinstance(squares, Tensor)
        factors, finite = self._factors(squares, lot.counted)
        return tree.map_tree(lambda leaf: torch.tensordot(factors, _only(finite, leaf), 1), slopes)

    def _factors(self, squares: Tensor, counted: Tensor) -> tuple[Tensor, Tensor]:
        """How much of each row's gradient counts, by its squared norm; and which are finite."""
        clip, finite = self._privacy.clip, counted & squares.isfinite()
        return torch.where(finite, clip * squares.clamp_min(clip**2).rsqrt(), 0.0), finite

    def _with_noise(self, total: Params, key: Tensor | tuple[()]) -> Params:
        """(sum + σ C z) / b, z by the batch's key and the number of the gradient in its step."""
        assert isinstance(key, Tensor)
        key = rng.fold(key, _NOISE, zlib.crc32(self._origin.encode()), self._released[0])
        self._released[0] += 1
        deviation = self._privacy.multiplier * self._privacy.clip
        noisy = (
            (leaf + (deviation * rng.normal(rng.fold(key, place), *leaf.shape)).to(leaf.dtype)) * self._share
            for place, leaf in enumerate(tree.leaves(total))
        )
        return tree.with_leaves(total, noisy)

    def _rows_at_once(self, params: Params) -> int:
        return max(1, _BYTES_AT_ONCE // sum(leaf.nbytes for leaf in tree.leaves(params)))

    def _refuse_derivatives(self, params: Params) -> None:
        """What follows from a noisy gradient hides rows; its derivative, or a stack of it, does not."""
        if maybe_current_level() != self._level or any(leaf.requires_grad for leaf in tree.leaves(params)):
            raise UserError(
                f"privacy.unit=row cannot be used with method={self._method} as it is set: it takes "
                "derivatives of gradients, or many gradients at once, which noise does not hide; choose "
                "another method or setting, or privacy.unit=silo"
            )


class Lot(NamedTuple):
    """Some rows of a batch."""

    inputs: Inputs
    targets: Tensor
    counted: Tensor
    keys: Tensor  # of the noise that the model draws


def _lots(rows: Batch, size: int) -> Iterator[Lot]:
    """The rows of a batch, so many at once."""
    assert isinstance(rows.key, Tensor), "batches of private runs have keys"
    places = torch.arange(len(rows.weights), device=rows.weights.device)
    whole = Lot(rows.inputs, rows.targets, rows.weights > 0, rng.fold(rows.key, _ROW, places))
    for start in range(0, len(places), size):
        yield tree.map_tree(lambda leaf, start=start: leaf[start : start + size], whole)


def _only(chosen: Tensor, stacked: Tensor) -> Tensor:
    """Zeros in place of the other entries, which need not be finite."""
    return torch.where(chosen.reshape(-1, *[1] * (stacked.ndim - 1)), stacked, 0.0)
