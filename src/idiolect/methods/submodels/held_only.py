"""Sub-models on the wire: only what is held of them is counted. Spec 6.13."""

from typing import Protocol

import torch
from torch import Tensor

from idiolect import core
from idiolect.core import Params, tree
from idiolect.core.transport import Bits
from idiolect.methods.submodels.chain import Chain


class SubmodelExchange(Protocol):
    """An exchange that sends sub-models."""

    def held_parts(self, message: core.Message, ids: Tensor) -> dict[str, Tensor]:
        """Fields of stacked messages that are sub-models, and the part of hidden layers that each has."""
        ...


class HeldOnly(core.Transport):
    """Zeros outside of a sub-model do not travel; which hidden units it has is one bit for each."""

    def down_bits(self, server: core.ServerState, down: core.Message, ids: Tensor) -> Bits:
        """What each client is sent of its sub-model."""
        return super().down_bits(server, down, ids) | self._held(down, ids)

    def up_bits(self, uploads: core.Message, ids: Tensor) -> Bits:
        """What each client sends of its sub-model."""
        return super().up_bits(uploads, ids) | self._held(uploads, ids)

    def _held(self, message: core.Message, ids: Tensor) -> Bits:
        exchange: SubmodelExchange = self.exchange  # type: ignore[assignment]
        parts = exchange.held_parts(message, ids)
        bits = {field: held_bits(tree.row(getattr(message, field), 0), part) for field, part in parts.items()}
        if units := getattr(message, "units", ()):
            bits["units"] = torch.full_like(ids, sum(layer.shape[-1] for layer in units))
        return bits


def held_bits(params: Params, ratios: Tensor) -> Tensor:
    """The bits of the sub-model of each capacity, int64[m]; how many units are kept, not which, counts."""
    chain = Chain.of(params)
    kept = [units.sum(-1) for units in chain.first_units(ratios)]
    total = torch.zeros_like(ratios, dtype=torch.int64)
    for depth, layer in enumerate(chain.layers):
        weight = params[layer.weight]
        outputs = kept[depth] if depth < len(kept) else layer.units
        inputs = kept[depth - 1] * layer.fan if depth else weight.shape[1]
        values = inputs * weight.shape[2:].numel() + (1 if layer.bias else 0)  # for each unit
        total += outputs * values * weight.element_size() * 8
    return total
