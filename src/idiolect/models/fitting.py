"""What a model by name asks of the data that it is to fit; data of another kind are refused in a sentence."""

from torch import Tensor

from idiolect.core.inputs import shown_shapes
from idiolect.data.federation import Federation
from idiolect.errors import UserError


def one_input(federation: Federation, model: str) -> Tensor:
    """The rows of a federation that have one input."""
    if not isinstance(federation.inputs, Tensor):
        raise UserError(
            f"model {model} takes one tensor, but rows have several inputs, of the shapes "
            f"{shown_shapes(federation.inputs)}; use a model of your own"
        )
    return federation.inputs


def flat_size(federation: Federation, model: str) -> int:
    """How many numbers a row has."""
    inputs = one_input(federation, model)
    if not inputs.is_floating_point():
        raise UserError(
            "sequences of character codes need the model char-lstm, gru, transformer, bag or your own"
        )
    return inputs[0].numel()


def image_shape(federation: Federation, model: str, side: int) -> tuple[int, int, int]:
    """Channels, height and width of images that are at least so large."""
    inputs = one_input(federation, model)
    shape = tuple(inputs.shape[1:])
    if len(shape) != 3 or min(shape[1:]) < side or not inputs.is_floating_point():
        raise UserError(
            f"model {model} needs images [channels, height, width] of at least {side} x {side}, "
            f"not rows of shape {shape}"
        )
    channels, height, width = shape
    return channels, height, width


def codes_of(federation: Federation, model: str) -> int:
    """How many codes there are in sequences of them: one more than the largest that a row or a target has."""
    inputs = one_input(federation, model)
    if inputs.is_floating_point() or inputs.ndim != 2:
        raise UserError(
            f"model {model} needs sequences of character codes, such as those of data=shakespeare, "
            f"not rows of shape {tuple(inputs.shape[1:])} and type {str(inputs.dtype).removeprefix('torch.')}"
        )
    return max(federation.task.outputs, int(inputs.max()) + 1)


def require_counts(**counts: int) -> None:
    """Refuse sizes of layers below one."""
    for name, count in counts.items():
        if count < 1:
            raise UserError(f"{name}={count} must be at least 1")
