"""Clipped gradients of models that are linear layers, without any single row's gradient in memory.

For a layer z_j = W a_j + c that each row j passes once, with δ_j = ∂ℓ_j/∂z_j, the row's gradient is δ_j a_jᵀ
in W and δ_j in c, so norms and the sum of shortened gradients follow from δ and a alone:

    |∇ℓ_j|² = Σ over layers |δ_j|² (|a_j|² + 1),    Σ_j f_j ∇_W ℓ_j = (f ⊙ δ)ᵀ a

All rows go through the model together, so it must be known that it keeps them apart: layers of torch in a row
do, and a model that says so by `takes_rows_alone`. Whether each layer was passed once, by one vector of each
row, is seen as they are passed (`PassedOtherwiseError`): of other passes the norms above are wrong.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from idiolect.core.autodiff import gradient_and_more
from idiolect.core.tree import Params

_APART = (nn.Linear, nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.ELU, nn.LeakyReLU, nn.Identity)


def linear_layers(module: nn.Module) -> dict[str, nn.Linear] | None:
    """The layers of a model by name, if it is known to consist of linear ones that take each row alone."""
    owners = {name: layer for name, layer in module.named_modules() if list(layer.parameters(recurse=False))}
    names = list(module.named_parameters(remove_duplicate=False))
    has_ties = len(names) > len(list(module.parameters()))
    if has_ties or not all(type(layer) is nn.Linear for layer in owners.values()):
        return None
    in_a_row = type(module) is nn.Sequential and all(type(layer) in _APART for layer in module)
    if in_a_row or type(module) is nn.Linear or getattr(module, "takes_rows_alone", False):
        return {name: layer for name, layer in owners.items() if isinstance(layer, nn.Linear)}
    return None


class PassedOtherwiseError(Exception):
    """A layer was not passed once by one vector of each row."""


class TappedGradients:
    """δ and a of all rows in the layers that a gradient is of."""

    def __init__(self, layers: dict[str, nn.Linear], params: Params) -> None:
        self._layers = {
            name: layer
            for name, layer in layers.items()
            if any(_inside(name, of) in params for of in ("weight", "bias"))
        }
        self._params = params

    def found(self, loss: Callable[[], Tensor], rows: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """From the summed loss of all rows, of which `rows` has one entry each."""

        def value(taps: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
            seen: dict[str, Tensor] = {}
            hooks = [
                layer.register_forward_hook(_tap(name, taps[name], seen))
                for name, layer in self._layers.items()
            ]
            try:
                total = loss()
            finally:
                for hook in hooks:
                    hook.remove()
            if seen.keys() != taps.keys():
                raise PassedOtherwiseError
            return total, seen

        taps = {name: rows.new_zeros(len(rows), layer.out_features) for name, layer in self._layers.items()}
        deltas, inputs = gradient_and_more(value, taps)
        return deltas, {name: given.detach() for name, given in inputs.items()}

    def squares(self, deltas: dict[str, Tensor], inputs: dict[str, Tensor]) -> Tensor:
        """The squared norm of each row's gradient."""
        return sum(
            (
                delta.square().sum(1)
                * (
                    (inputs[name].square().sum(1) if _inside(name, "weight") in self._params else 0.0)
                    + (1.0 if _inside(name, "bias") in self._params else 0.0)
                )
                for name, delta in deltas.items()
            ),
            start=next(iter(deltas.values())).new_zeros(()),
        )

    def total(self, deltas: dict[str, Tensor], inputs: dict[str, Tensor], factors: Tensor) -> Params:
        """The sum of the rows' gradients with some factors."""
        weighted = {name: delta * factors[:, None] for name, delta in deltas.items()}
        weights = {_inside(name, "weight"): delta.T @ inputs[name] for name, delta in weighted.items()}
        biases = {_inside(name, "bias"): delta.sum(0) for name, delta in weighted.items()}
        return {name: (weights | biases)[name] for name in self._params}


def _tap(name: str, tap: Tensor, seen: dict[str, Tensor]) -> Callable[[Any, Any, Tensor], Tensor]:
    def hook(layer: Any, given: Any, outputs: Tensor) -> Tensor:
        if name in seen or outputs.shape != tap.shape:
            raise PassedOtherwiseError
        seen[name] = given[0]
        return outputs + tap

    return hook


def _inside(layer: str, name: str) -> str:
    return f"{layer}.{name}" if layer else name
