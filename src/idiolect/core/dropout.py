"""Noise of a forward pass as a pure function of a key: the kinds of dropout that torch has, and rrelu.

A unit of a row is kept if u >= p, where u in [0, 1) is a hash of the key and of row * units + unit, row being
the place in the batch. So rows that pad a batch, other clients and the engine change nothing of it.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Uniform = Callable[[Tensor, int], Tensor]  # of an input and how many of its axes are not shared: u

_ALPHA = 1.7580993408473766  # of selu, to whose lowest value alpha dropout sets what is not kept


def dropped(inputs: Tensor, uniform: Uniform, p: float, axes: int | None = None) -> Tensor:
    """The factor of each unit, 0 or 1 / (1 - p); with `axes`, the same for all units along the later ones."""
    kept = uniform(inputs, inputs.ndim if axes is None else axes) >= p
    return kept.to(inputs.dtype) * (0.0 if p == 1 else 1 / (1 - p))


def dropout(
    uniform: Uniform, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """Units set to zero, the others made as much larger."""
    if not training or p == 0:
        return input
    return _changed(input, input * dropped(input, uniform, p), inplace)


def torch_dropout(uniform: Uniform, input: Tensor, p: float, train: bool) -> Tensor:
    """The same under the names of `torch.dropout`."""
    return dropout(uniform, input, p, train)


def _feature_dropout(unbatched: int | None) -> Callable[..., Tensor]:
    """Channels set to zero; an input of `unbatched` axes has no rows, and its channels come first."""

    def replacement(
        uniform: Uniform, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        if not training or p == 0:
            return input
        axes = 1 if input.ndim == unbatched else 2
        return _changed(input, input * dropped(input, uniform, p, axes), inplace)

    return replacement


def _alpha_dropout(axes: int | None) -> Callable[..., Tensor]:
    """Units, or channels, set to selu's lowest value, and all scaled so that mean and variance stay."""

    def replacement(
        uniform: Uniform, input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
    ) -> Tensor:
        if not training or p == 0:
            return input
        if p == 1:
            return _changed(input, input * 0, inplace)
        kept = (uniform(input, axes or input.ndim) >= p).to(input.dtype)
        scale = 1 / math.sqrt((_ALPHA**2 * p + 1) * (1 - p))
        shift = (kept - 1) * (_ALPHA * scale) + _ALPHA * scale * p
        return _changed(input, input * (kept * scale) + shift, inplace)

    return replacement


def rrelu(
    uniform: Uniform,
    input: Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    inplace: bool = False,
) -> Tensor:
    """Negative units times a slope between two numbers; not in training, times their mean."""
    if not training:
        return functional.rrelu(input, lower, upper, False, inplace)
    slopes = lower + (upper - lower) * uniform(input, input.ndim).to(input.dtype)
    return _changed(input, torch.where(input >= 0, input, input * slopes), inplace)


def attention(
    uniform: Uniform,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(query keyᵀ scale + mask) value, with units of the softmax set to zero."""
    if dropout_p == 0:
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -torch.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    weights = scores.softmax(-1)
    return weights * dropped(weights, uniform, dropout_p) @ value


def _recurrent(function: Any) -> Callable[..., tuple[Tensor, ...]]:
    """Layers one by one, with units between them set to zero, which torch does inside of its kernel.

    They are called with (input, states, weights, ...) or, for sequences of different lengths that are packed,
    with (input, batch sizes, states, weights, ...), and behind that in both cases with whether there are
    biases, how many layers, p, whether it is training, whether they go both ways, and, if not packed, where
    the rows are.
    """

    def replacement(uniform: Uniform, input: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
        is_packed = isinstance(arguments[2], list | tuple)
        sizes, options = arguments[:is_packed], arguments[is_packed:]
        states, weights, biases, layers, p, training, both_ways, *rows = options
        if not training or p == 0:
            return function(input, *arguments)
        ends = []
        for layer in range(layers):
            own = [weights[part] for part in _of_layer(layer, layers, len(weights))]
            first = _slice_of(states, _of_layer(layer, layers, 2 * layers if both_ways else layers))
            input, *last = function(input, *sizes, first, own, biases, 1, 0.0, True, both_ways, *rows)
            ends.append(last)
            if layer < layers - 1:
                input = dropout(uniform, input, p)
        return input, *(torch.cat(parts) for parts in zip(*ends, strict=True))

    return replacement


def _of_layer(layer: int, layers: int, count: int) -> range:
    """Which of all layers' weights, or states, are those of one."""
    each = count // layers
    return range(layer * each, (layer + 1) * each)


def _slice_of(states: Tensor | tuple[Tensor, ...], part: range) -> Tensor | tuple[Tensor, ...]:
    """Of one state for each layer, or of two."""
    if isinstance(states, Tensor):
        return states[part.start : part.stop]
    return tuple(state[part.start : part.stop] for state in states)


def _changed(inputs: Tensor, outputs: Tensor, inplace: bool) -> Tensor:
    return inputs.copy_(outputs) if inplace else outputs


# Functions that draw noise -> the same with a source of noise in front of their arguments.
NOISY: dict[Any, Callable[..., Any]] = {
    functional.dropout: dropout,
    torch.dropout: torch_dropout,
    functional.dropout1d: _feature_dropout(unbatched=2),
    functional.dropout2d: _feature_dropout(unbatched=None),
    functional.dropout3d: _feature_dropout(unbatched=4),
    functional.alpha_dropout: _alpha_dropout(None),
    functional.feature_alpha_dropout: _alpha_dropout(2),
    functional.rrelu: rrelu,
    functional.scaled_dot_product_attention: attention,
    **{kernel: _recurrent(kernel) for kernel in (torch.rnn_tanh, torch.rnn_relu, torch.gru, torch.lstm)},
}
