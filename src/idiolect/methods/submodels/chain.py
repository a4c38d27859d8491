"""Sub-models: the part of a chain of layers that a client of small capacity holds. Spec 6.13.

A layer with H hidden units keeps floor(ρ H) of them; a weight is held iff its input unit and its output
unit are both kept. Inputs of the first layer and outputs of the last are always kept; the units of a
convolution are its channels. A sub-model is the full set of parameters with zeros where it holds nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from idiolect.core import Params, rng
from idiolect.core.device import CPU, finest
from idiolect.errors import UserError

# static: the first units; rolling: a window that moves by one unit a round; random: drawn anew every round
Selection = Literal["static", "rolling", "random"]
Ratio = Annotated[float, Field(gt=0, le=1)]
Units = tuple[Tensor, ...]  # for each hidden layer, bool[H]: the kept units

_ROUNDING = 1e-9  # 0.29 * 100 is 28.999999999999996 and means 29


@dataclass(frozen=True)
class Layer:
    """One layer: the names of its parameters, its units, and its inputs for each unit of the layer below."""

    weight: str
    bias: str | None
    units: int
    fan: int  # 1 between linear layers; the positions of a channel where a convolution is flattened


@dataclass(frozen=True)
class Chain:
    """Linear and convolutional layers in the order in which they are applied."""

    layers: tuple[Layer, ...]

    @classmethod
    def of(cls, params: Params) -> "Chain":
        """Recognise the layers of a linear model, a perceptron or a convolutional network."""
        weights = [name for name in params if name.endswith("weight")]
        biases = {name: name.removesuffix("weight") + "bias" for name in weights}
        strangers = set(params) - set(weights) - set(biases.values())
        if strangers or not weights or any(params[name].ndim < 2 for name in weights):
            odd = ", ".join(sorted(strangers)) or ", ".join(n for n in weights if params[n].ndim < 2)
            raise UserError(
                f"sub-models need a chain of linear or convolutional layers, which parameter '{odd}' is not "
                "part of; use the model linear, mlp or cnn, or whole models for all clients"
            )
        layers = [Layer(weights[0], _present(biases[weights[0]], params), len(params[weights[0]]), 1)]
        for below, name in pairwise(weights):
            units, (outputs, inputs) = len(params[below]), params[name].shape[:2]
            flattened = params[below].ndim > 2 and params[name].ndim == 2
            if inputs % units or (inputs != units and not flattened):
                raise UserError(
                    f"sub-models need a chain of layers, but '{name}' has {inputs} inputs and the layer "
                    f"below it {units} units; use the model linear, mlp or cnn, or whole models for everybody"
                )
            layers.append(Layer(name, _present(biases[name], params), outputs, inputs // units))
        return cls(tuple(layers))

    @property
    def hidden(self) -> tuple[int, ...]:
        """The number of units of each hidden layer."""
        return tuple(layer.units for layer in self.layers[:-1])

    def refuse_empty_layers(self, ratios: tuple[float, ...]) -> None:
        """Refuse a capacity that leaves some layer without units."""
        for layer in self.layers[:-1]:
            if min(ratios) * layer.units + _ROUNDING < 1:
                raise UserError(
                    f"capacity {min(ratios)} leaves none of the {layer.units} units of '{layer.weight}'; "
                    f"use capacities of at least {1 / layer.units:.3g}"
                )

    def units(self, ratio: Tensor, selection: Selection, offset: Tensor | int, key: Tensor) -> Units:
        """The kept units: `offset` moves a rolling window, `key` draws a random set.

        Of one client, or of each of a stack of clients if `ratio` and `key` are stacked.
        """
        kept = []
        for depth, size in enumerate(self.hidden):
            place = torch.arange(size, device=ratio.device)
            if selection == "rolling":
                place = (place - offset) % size
            elif selection == "random":
                place = rng.ranks(rng.fold(key, depth), size)
            kept.append(place < torch.floor(ratio[..., None] * size + _ROUNDING))
        return tuple(kept)

    def first_units(self, ratio: Tensor) -> Units:
        """The static selection: nested, the more of them the larger the ratio."""
        return self.units(ratio, "static", 0, torch.zeros_like(ratio))

    def masks(self, units: Units) -> Params:
        """Which parameters are held, bool of the parameters' shapes up to kernel axes of size one."""
        masks = {}
        for layer, outputs, inputs in self._sides(units, ()):
            masks[layer.weight] = outputs[:, None] & inputs
            if layer.bias:
                masks[layer.bias] = outputs
        return masks

    def shares(self, units: Units, weights: Tensor) -> Params:
        """The sum of the weights of the clients that hold each parameter; `units` are stacked."""
        shares = {}
        for layer, outputs, inputs in self._sides(units, (len(weights),)):
            weighted = weights[:, None] * outputs
            shares[layer.weight] = weighted.T @ inputs.to(weights.dtype)
            if layer.bias:
                shares[layer.bias] = weighted.sum(0)
        return shares

    def _sides(
        self, units: Units, stack: tuple[int, ...], device: torch.device = CPU
    ) -> Iterator[tuple[Layer, Tensor, Tensor]]:
        """Each layer with its kept outputs and inputs (one that stands for all in the first layer)."""
        inputs = torch.ones(*stack, 1, dtype=torch.bool, device=device)
        for depth, layer in enumerate(self.layers):
            if depth:
                below = units[depth - 1]
                inputs = below[..., None].expand(*below.shape, layer.fan).reshape(*stack, -1)
            last = depth == len(self.layers) - 1
            everything = inputs.new_ones(*stack, layer.units)
            yield layer, everything if last else units[depth], inputs

    def restrict(self, params: Params, units: Units) -> Params:
        """The sub-model: zero where nothing is held."""
        held, device = dict(params), params[self.layers[0].weight].device
        for layer, outputs, inputs in self._sides(units, (), device):
            # Factors of one side each: a mask as large as the parameters would cost more than the gradient.
            weight = params[layer.weight]
            held[layer.weight] = weight * fit(outputs[:, None].to(weight.dtype), weight)
            if layer is not self.layers[0]:
                held[layer.weight] = held[layer.weight] * fit(inputs[None].to(weight.dtype), weight)
            if layer.bias:
                held[layer.bias] = params[layer.bias] * outputs
        return held


def average_of_holders(
    total: Params, chain: Chain, units: Units, weights: Tensor, otherwise: Params
) -> Params:
    """Each parameter averaged over the clients that hold it; `otherwise` where nobody does.

    `total` is the weighted sum of the sub-models. Where everybody holds a parameter it is the average as it
    stands, whose weights may sum to one only up to rounding.
    """
    counts, shares = chain.shares(units, torch.ones_like(weights)), chain.shares(units, weights)

    def average(name: str) -> Tensor:
        value = total[name]
        count, share = fit(counts[name], value), fit(shares[name], value).to(value.dtype)
        mean = torch.where(count == len(weights), value, value / share)
        return torch.where(count > 0, mean, otherwise[name])

    return {name: average(name) for name in total}


def fit(mask: Tensor, value: Tensor) -> Tensor:
    """A mask of outputs and inputs, with axes of size one for the kernel of a convolution."""
    return mask.reshape(mask.shape + (1,) * (value.ndim - mask.ndim))


def client_ratios(capacities: tuple[float, ...], ids: Tensor) -> Tensor:
    """The capacity of each client: the given ones in turn, over and over."""
    in_turn = torch.tensor(capacities, dtype=finest(ids.device), device=ids.device)
    return in_turn[ids % len(capacities)]


def _present(name: str, params: Params) -> str | None:
    return name if name in params else None
