"""Low-rank adapters beside linear layers, to be trained in their place (Hu et al. 2022).

A layer x -> W x + b becomes x -> W x + b + (s / r) B A x, with A of shape [r, inputs] and B of shape
[outputs, r]. A is drawn from the run's key, normal with standard deviation 1 / √inputs, and B is zero, so the
first model is the one without adapters. Afterwards they are merged: W + (s / r) B A.

The mean of products B_i A_i is not the product of means. With one A that is common and fixed it is, which is
the default (`freeze_a`); then what crosses is B alone.
"""

import math
from collections.abc import Iterator
from fnmatch import fnmatchcase

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (torch's own convention)

from idiolect.core import rng
from idiolect.core.hyper import STRICT
from idiolect.errors import UserError


@dataclass(frozen=True, kw_only=True, config=STRICT)
class AdapterSettings:
    """Which layers get adapters, and of what size."""

    rank: int = Field(ge=1, description="r, the size between A and B")
    scale: float = Field(default=1.0, gt=0, allow_inf_nan=False, description="s, in the factor s / r")
    layers: tuple[str, ...] = Field(default=("*",), description="patterns of names of linear layers")
    freeze_a: bool = Field(
        default=True, description="whether A is fixed and common, so that averages are exact"
    )


class Adapter(nn.Module):
    """x -> B A x; `down` is A and `up` is B."""

    def __init__(self, down: Tensor, up: Tensor, freeze_a: bool) -> None:
        super().__init__()
        self.down = nn.Parameter(down, requires_grad=not freeze_a)
        self.up = nn.Parameter(up)

    def forward(self, x: Tensor) -> Tensor:
        """[.., inputs] -> [.., outputs]."""
        return F.linear(F.linear(x, self.down), self.up)


class AdaptedLinear(nn.Module):
    """A linear layer, whose parameters keep their names, with an adapter beside it."""

    def __init__(self, layer: nn.Linear, adapter: Adapter, factor: float) -> None:
        super().__init__()
        self.in_features, self.out_features, self.factor = layer.in_features, layer.out_features, factor
        self.weight = layer.weight
        self.bias = layer.bias
        self.adapter = adapter

    def forward(self, x: Tensor) -> Tensor:
        """[.., inputs] -> [.., outputs]."""
        return F.linear(x, self.weight, self.bias) + self.factor * self.adapter(x)

    def merged(self) -> nn.Linear:
        """One linear layer that does the same."""
        layer = nn.Linear(self.in_features, self.out_features, self.bias is not None, device="meta")
        with torch.no_grad():
            product = self.factor * (self.adapter.up @ self.adapter.down)
            layer.weight = nn.Parameter(self.weight + product, self.weight.requires_grad)
        layer.bias = self.bias
        return layer


def add_adapters(module: nn.Module, settings: AdapterSettings, seed: int) -> nn.Module:
    """Put adapters beside linear layers of a model, which is changed; the model, or what takes its place."""
    adapted: dict[nn.Module, nn.Module] = {}
    for place, (name, layer) in enumerate(_chosen_layers(module, settings.layers).items()):
        _refuse_shared_weight(module, name, layer)
        down, up = _first_maps(layer.weight, settings.rank, rng.key(seed, "adapter", place))
        adapter = Adapter(down, up, settings.freeze_a)
        adapted[layer] = AdaptedLinear(layer, adapter, settings.scale / settings.rank)
    for encoder in module.modules():
        if isinstance(encoder, nn.TransformerEncoderLayer):
            encoder.activation_relu_or_gelu = 0  # no fast path: it takes weights and leaves adapters out
    return _replaced(module, adapted)


def merge_adapters(module: nn.Module) -> nn.Module:
    """A model whose adapters are part of its layers' weights; it is changed, or something takes its place."""
    merged: dict[nn.Module, nn.Module] = {
        layer: layer.merged() for layer in module.modules() if isinstance(layer, AdaptedLinear)
    }
    return _replaced(module, merged)


def has_free_factors(module: nn.Module) -> bool:
    """Whether some adapter has both of its factors trained, whose averages are not those of the products."""
    adapters = (layer for layer in module.modules() if isinstance(layer, Adapter))
    return any(adapter.down.requires_grad and adapter.up.requires_grad for adapter in adapters)


def _chosen_layers(module: nn.Module, patterns: tuple[str, ...]) -> dict[str, nn.Linear]:
    """The linear layers that patterns mean, by name. Exactly these: others use their weights in own ways."""
    linear = {name: layer for name, layer in module.named_modules() if type(layer) is nn.Linear}
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in linear):
            known = ", ".join(map(repr, linear)) or "none"
            raise UserError(
                f"model.adapter.layers has {pattern!r}, which no linear layer of the model "
                f"{type(module).__name__} is called; its linear layers are {known}"
            )
    return {
        name: layer
        for name, layer in linear.items()
        if any(fnmatchcase(name, pattern) for pattern in patterns)
    }


def _refuse_shared_weight(module: nn.Module, name: str, layer: nn.Linear) -> None:
    others = [other for other in module.modules() if other is not layer]
    if any(p is layer.weight for other in others for p in other.parameters(recurse=False)):
        raise UserError(
            f"model.adapter.layers has {name!r}, which shares its weight with another layer, and an adapter "
            "would part them; choose other layers"
        )


def _first_maps(weight: Tensor, rank: int, key: Tensor) -> tuple[Tensor, Tensor]:
    """A and B before training; without numbers for a model that has none."""
    outputs, inputs = weight.shape
    if weight.is_meta:
        return torch.empty(rank, inputs), torch.empty(outputs, rank)
    uniform = rng.uniform(key, rank, inputs) + 2.0**-54  # never zero
    normal = math.sqrt(2) * torch.erfinv(2 * uniform - 1)
    return (normal / math.sqrt(inputs)).to(weight), weight.new_zeros(outputs, rank)


def _replaced(module: nn.Module, others: dict[nn.Module, nn.Module]) -> nn.Module:
    """The model with other layers in the place of some, also where one is at several places."""
    for parent in list(module.modules()):
        for name, child in _children(parent):
            if child in others:
                setattr(parent, name, others[child])
    return others.get(module, module)


def _children(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """All children with their names, one that has two names twice."""
    return ((name, child) for name, child in list(module._modules.items()) if child is not None)
