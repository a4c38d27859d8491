"""Normalisation layers that remember statistics, and what a training pass makes of these.

Over the n values of a channel in the rows that count (padding does not; with positions, for convolutions):

    training    μ = Σ x / n,  v = Σ (x - μ)² / n,  out = γ (x - μ) / sqrt(v + ε) + β
    kept        r_μ <- (1 - ρ) r_μ + ρ μ,   r_v <- (1 - ρ) r_v + ρ v n / (n - 1),   count <- count + 1
    otherwise   out = γ (x - r_μ) / sqrt(r_v + ε) + β

ρ is the layer's momentum, or 1 / count where it has none. A channel with one value has no variance: it is
normalised with what was kept, which stays as it is.
"""

from collections.abc import Container, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from idiolect.core.fixed import is_fixed_norm
from idiolect.core.tree import Params
from idiolect.errors import UserError

Statistics = dict[str, Tensor]  # by the names of the model's buffers


class NormLayer(NamedTuple):
    """The names of a layer's buffers and parameters, and how fast its statistics follow the batches."""

    mean: str
    variance: str
    counter: str | None  # None: of a kind that counts no batches
    momentum: float | None  # None: the mean over all batches
    parameters: tuple[str, ...]

    @property
    def buffers(self) -> tuple[str, ...]:
        """The names of what it remembers."""
        further = () if self.counter is None else (self.counter,)
        return (self.mean, self.variance, *further)


class Moments(NamedTuple):
    """What a layer saw in one pass."""

    layer: NormLayer
    mean: Tensor
    variance: Tensor  # with n - 1
    exists: Tensor  # whether there was more than one value in a channel


def norm_layers(module: nn.Module) -> tuple[NormLayer, ...]:
    """The layers of a model that keep statistics, found by their type; one that keeps none is refused.

    Those of layers that are fixed stay as they are, and are none of these.
    """
    layers = []
    for path, layer in module.named_modules():
        if not isinstance(layer, nn.modules.batchnorm._NormBase) or is_fixed_norm(layer):
            continue
        counts = isinstance(layer, nn.modules.batchnorm._BatchNorm)
        if layer.running_mean is None:
            if counts:
                raise UserError(
                    f"layer '{path}' is a {type(layer).__name__} that keeps no statistics, so what it says "
                    "of a row depends on the rows beside it; leave out track_running_stats=False"
                )
            continue
        names = {name: f"{path}.{name}" if path else name for name in _NAMES}
        layers.append(
            NormLayer(
                names["running_mean"],
                names["running_var"],
                names["num_batches_tracked"] if counts else None,
                # As in torch: without momentum, instance normalisation does not update anything.
                layer.momentum if counts else layer.momentum or 0.0,
                tuple(names[name] for name in ("weight", "bias") if getattr(layer, name) is not None),
            )
        )
    return tuple(layers)


_NAMES = ("running_mean", "running_var", "num_batches_tracked", "weight", "bias")


def statistics_of(module: nn.Module, layers: Sequence[NormLayer]) -> Statistics:
    """What a model remembers now, detached."""
    buffers = dict(module.named_buffers())
    return {name: buffers[name].detach().clone() for layer in layers for name in layer.buffers}


def split_off(predictor: Params, layers: Sequence[NormLayer]) -> tuple[Params, Statistics]:
    """A model's parameters, and its statistics where it has them."""
    names = {name for layer in layers for name in layer.buffers}
    parameters = {name: value for name, value in predictor.items() if name not in names}
    return parameters, {name: value for name, value in predictor.items() if name in names}


def updated(statistics: Statistics, seen: Iterable[Moments]) -> Statistics:
    """The statistics after a pass: each layer's as often as it was used."""
    kept = dict(statistics)
    for layer, mean, variance, exists in seen:
        share: Tensor | float
        if layer.momentum is not None:
            share = layer.momentum
        else:
            assert layer.counter is not None, "what counts no batches has a momentum"
            share = 1 / (kept[layer.counter] + 1).to(mean.dtype)
        for name, new in ((layer.mean, mean), (layer.variance, variance)):
            kept[name] = torch.where(exists, (1 - share) * kept[name] + share * new, kept[name])
        if layer.counter is not None:
            kept[layer.counter] = kept[layer.counter] + exists
    return kept


def cumulated(statistics: Statistics, seen: Iterable[Moments]) -> Statistics:
    """Statistics of one pass alone: the mean over the times that each layer was used."""
    uses: dict[str, int] = {}
    kept = dict(statistics)
    for moments in seen:
        used = uses[moments.layer.mean] = uses.get(moments.layer.mean, 0) + 1
        layer = moments.layer._replace(momentum=1 / used)
        if used == 1 and layer.counter is not None:
            kept[layer.counter] = torch.zeros_like(kept[layer.counter])
        kept = updated(kept, [moments._replace(layer=layer)])
    return kept


class Values(NamedTuple):
    """What of a channel counts in the input of a layer, whose channels are along the second axis."""

    row_axis: int
    counted: Tensor  # [rows]: one, and zero for rows that only pad

    def moments(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """μ and v of each channel, and n."""
        rows = self.counted.sum()
        positions = inputs.shape[0] * inputs.shape[2:].numel() // len(self.counted)
        shares = self.counted / rows.clamp_min(1)
        mean = self._mean(inputs, shares)
        variance = self._mean((inputs - mean.reshape(-1, *[1] * (inputs.ndim - 2))).square(), shares)
        return mean, variance, rows * positions

    def are_all(self, inputs: Tensor) -> bool:
        """Whether all values of a channel count, and are more than one."""
        return bool(self.counted.all()) and inputs.shape[0] * inputs.shape[2:].numel() > 1

    def _mean(self, inputs: Tensor, shares: Tensor) -> Tensor:
        """First of each row, so that its share is no factor of every value."""
        positions = [axis for axis in range(inputs.ndim) if axis not in (1, self.row_axis)]
        of_rows = inputs.mean(positions) if positions else inputs
        return shares @ (of_rows if self.row_axis == 0 else of_rows.T)


def batch_normalised(
    inputs: Tensor,
    values: Values,
    kept: tuple[Tensor, Tensor],
    affine: tuple[Tensor | None, Tensor | None],
    epsilon: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The outputs of a layer in training; mean, variance (with n - 1) and whether there is one.

    `kept` are the statistics that take their place where there is none.
    """
    mean, variance, number = values.moments(inputs)
    exists = number > 1
    scale = (torch.where(exists, variance, kept[1]) + epsilon).rsqrt()
    weight, bias = affine
    if weight is not None:
        scale = scale * weight
    shift = -torch.where(exists, mean, kept[0]) * scale
    if bias is not None:
        shift = shift + bias
    shape = (-1, *[1] * (inputs.ndim - 2))
    # In one pass over the inputs, as torch's own kernel.
    outputs = torch.addcmul(shift.reshape(shape), inputs, scale.reshape(shape))
    unbiased = variance * (number / (number - 1).clamp_min(1))
    return outputs, mean.detach(), unbiased.detach(), exists


def normalised_by_torch(
    inputs: Tensor, kept: tuple[Tensor, Tensor], affine: tuple[Tensor | None, Tensor | None], epsilon: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same where all values count: half as long, and nothing for a stack of clients."""
    mean, variance = torch.zeros_like(kept[0]), torch.zeros_like(kept[1])
    outputs = nn.functional.batch_norm(inputs, mean, variance, *affine, True, 1.0, epsilon)
    return outputs, mean, variance, torch.tensor(True, device=inputs.device)


def names_of(layers: Iterable[NormLayer], parameters: Container[str]) -> frozenset[str]:
    """The layers, by the name of their mean, of which some parameter is among these."""
    return frozenset(layer.mean for layer in layers if any(name in parameters for name in layer.parameters))
