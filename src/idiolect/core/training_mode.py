"""A forward pass in training: what normalises or draws noise is done here, whatever layer or function asks.

Functions are replaced while the pass runs, so that it does not matter whether a model has a layer for them,
where that layer is, or that its forward pass calls the function itself. The model is not changed.
"""

from collections.abc import Callable, Collection, Sequence
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from idiolect.core import rng
from idiolect.core.autodiff import has_kernels
from idiolect.core.dropout import NOISY
from idiolect.core.normalisation import (
    Moments,
    NormLayer,
    Statistics,
    Values,
    batch_normalised,
    normalised_by_torch,
)
from idiolect.errors import UserError


class TrainingMode(TorchFunctionMode):
    """One forward pass on rows that are weighted; `seen` has then what its normalisation layers saw.

    statistics: those of the layers, by which these are also recognised
    frozen: layers, by the name of their mean, of which nothing is noted
    resting: those of them that do not normalise with the batch but with the statistics that were put in
    row_axes: where the rows are in the input of each call, as `found_row_axes` knows; None: not known
    mixes_rows: if not, batch normalisation takes the statistics that were put in
    """

    def __init__(
        self,
        layers: Sequence[NormLayer],
        statistics: Statistics,
        weights: Tensor,
        key: Tensor | tuple[()],
        *,
        frozen: Collection[str] = (),
        resting: Collection[str] = (),
        row_axes: Sequence[int | None] | None = None,
        mixes_rows: bool = True,
    ) -> None:
        super().__init__()
        self.seen: list[Moments] = []
        self.shapes: list[torch.Size] = []  # of the inputs of all calls
        self.draws = 0  # calls that drew noise
        # Layers count batches in place, and read the number: they are given one that stands still.
        self._counter = torch.ones((), dtype=torch.int64, device=weights.device)
        counters = {layer.counter: self._counter for layer in layers if layer.counter is not None}
        self.buffers = {**statistics, **counters}  # to be put into the layers
        self._layers = {id(statistics[layer.mean]): layer for layer in layers}
        self._counted = weights > 0
        self._key, self._frozen, self._resting, self._row_axes = key, frozen, resting, row_axes
        self._in_attention = False
        self._mixes_rows = mixes_rows

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if args and args[0] is self._counter:
            return 1.0 if function is Tensor.__float__ else self._counter
        if function is functional.multi_head_attention_forward:
            self._in_attention = True
            try:
                with self:  # whatever it calls is to be seen
                    return _attention_body(*args, **kwargs)
            finally:
                self._in_attention = False
        if function in NOISY:
            return NOISY[function](self._uniform, *args, **kwargs)
        if function is functional.batch_norm:
            return self._batch_norm(*args, **kwargs)
        if function is functional.instance_norm:
            return self._instance_norm(*args, **kwargs)
        return function(*args, **kwargs)

    def _uniform(self, inputs: Tensor, axes: int) -> Tensor:
        """Numbers in [0, 1), one for each unit along the first axes of an input; the rows may be anywhere."""
        if not isinstance(self._key, Tensor):
            raise TypeError("a model that draws noise needs batches with a key")
        key, self.draws = rng.fold(self._key, self.draws), self.draws + 1
        place = self._row_axis(inputs)
        if place is None and not self._in_attention:  # where rows times heads are rows with more units
            self._require_no_padding()
        shape = inputs.shape[:axes]
        if not place or place >= axes:
            return rng.uniform(key, *shape).reshape(*shape, *[1] * (inputs.ndim - axes))
        first = (shape[place], *shape[:place], *shape[place + 1 :])
        return rng.uniform(key, *first).movedim(0, place).reshape(*shape, *[1] * (inputs.ndim - axes))

    def _batch_norm(
        self,
        input: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        normalise = functional.batch_norm
        if running_mean is None or running_var is None or not training:  # nothing is kept, or all of it
            return normalise(input, running_mean, running_var, weight, bias, training, momentum, eps)
        layer, values, kept = self._layer_of(running_mean), self._values(input), (running_mean, running_var)
        if layer.mean in self._resting or not self._mixes_rows:
            return normalise(input, *kept, weight, bias, False, momentum, eps)
        if has_kernels() and values.are_all(input):
            outputs, *moments = normalised_by_torch(input, kept, (weight, bias), eps)
        else:
            outputs, *moments = batch_normalised(input, values, kept, (weight, bias), eps)
        self._note(layer, *moments)
        return outputs

    def _instance_norm(
        self,
        input: Tensor,
        running_mean: Tensor | None = None,
        running_var: Tensor | None = None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        use_input_stats: bool = True,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        """Each row by itself; what is kept is the mean over rows."""
        normalise = functional.instance_norm
        if running_mean is None or not use_input_stats:
            return normalise(input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)
        layer = self._layer_of(running_mean)
        counted = self._counted.to(input.dtype)
        if self._row_axis(input) != 0:
            self._require_no_padding()
            counted = input.new_ones(input.shape[:1])
        shares = (counted / counted.sum().clamp_min(1))[:, None]
        positions = tuple(range(2, input.ndim))
        mean = (input.mean(positions) * shares).sum(0)
        variance = (input.var(positions, correction=1) * shares).sum(0)
        self._note(layer, mean.detach(), variance.detach(), counted.any())
        return normalise(input, None, None, weight, bias, True, momentum, eps)

    def _layer_of(self, running_mean: Tensor) -> NormLayer:
        if id(running_mean) not in self._layers:
            raise UserError(
                "the model calls batch_norm with statistics that no normalisation layer of torch.nn keeps; "
                "use a layer such as nn.BatchNorm1d, or one derived from it"
            )
        return self._layers[id(running_mean)]

    def _note(self, layer: NormLayer, mean: Tensor, variance: Tensor, exists: Tensor) -> None:
        if layer.mean not in self._frozen:
            self.seen.append(Moments(layer, mean, variance, exists))

    def _values(self, inputs: Tensor) -> Values:
        """What counts in the input of a layer."""
        place = self._row_axis(inputs)
        if place is None or place == 1:
            self._require_no_padding()
            return Values(0, inputs.new_ones(inputs.shape[:1]))
        return Values(place, self._counted.to(inputs.dtype))

    def _row_axis(self, inputs: Tensor) -> int | None:
        """Where the rows are; None: somewhere inside of an axis."""
        call, rows = len(self.shapes), len(self._counted)
        self.shapes.append(inputs.shape)
        if self._row_axes is not None and call < len(self._row_axes):
            place = self._row_axes[call]
        else:
            place = 0 if inputs.shape[0] == rows else None
        return place

    def _require_no_padding(self) -> None:
        """Where it is not known which entries are whose, all must count; of a stack that cannot be asked."""
        if not self._counted.all():
            raise UserError("a layer that normalises or draws noise gets rows in an order that is not known")


def found_row_axes(two: Sequence[torch.Size], three: Sequence[torch.Size]) -> tuple[int | None, ...]:
    """Where rows are in the inputs of calls, from their shapes in passes of two and of three rows.

    >>> found_row_axes([torch.Size([2, 7]), torch.Size([5, 2])], [torch.Size([3, 7]), torch.Size([5, 3])])
    (0, 1)
    """
    found: list[int | None] = []
    for one, other in zip(two, three, strict=False):
        sizes = zip(one, other, strict=False)
        differing = [place for place, (few, many) in enumerate(sizes) if few != many]
        is_plain = len(one) == len(other) and len(differing) == 1 and one[differing[0]] == 2
        found.append(differing[0] if is_plain else None)
    return tuple(found)


def _body_of(function: Any) -> Callable[..., Any]:
    """A function of torch.nn.functional that does not ask anybody else before it begins."""
    scope = {**function.__globals__, "has_torch_function": lambda _: False}
    return FunctionType(
        function.__code__, scope, function.__name__, function.__defaults__, function.__closure__
    )


_attention_body = _body_of(functional.multi_head_attention_forward)
