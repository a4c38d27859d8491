"""First weights from a file: safetensors, or a torch state dict, which is read without running its pickle."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from idiolect.errors import UserError, first_sentence

_LISTED = 3  # names that a sentence shows


def load_weights(module: nn.Module, path: str) -> nn.Module:
    """Put the weights of a file into a model; a file that does not fit it is refused in a sentence."""
    weights = read_weights(path)
    own = module.state_dict()
    lacking = [name for name in own if not _is_given(name, module, weights)]
    strange = [name for name in weights if name not in own]
    misshapen = [name for name in weights if name in own and own[name].shape != weights[name].shape]
    flaws = [
        *_told("it lacks", lacking),
        *_told("it has", strange, ", which the model has not"),
        *(
            f"{name!r} is of the shape {tuple(weights[name].shape)}, not {tuple(own[name].shape)}"
            for name in misshapen[:1]
        ),
        *_told("nor do the shapes fit of", misshapen[1:]),
        *_told("there are complex numbers in", [name for name in weights if weights[name].is_complex()]),
        *_told(
            "there are numbers that are not finite in",
            [name for name in weights if not weights[name].isfinite().all()],
        ),
    ]
    if flaws:
        kind = type(module).__name__
        raise UserError(f"model.weights={path!r} does not fit the model {kind}: {'; '.join(flaws)}")
    if any(weight.dtype == torch.float64 for weight in weights.values()):
        module.double()  # or digits would be lost before the run's precision is known
    module.load_state_dict(weights, strict=False)
    return module


def read_weights(path: str) -> dict[str, Tensor]:
    """The tensors of a file by name."""
    file = Path(path)
    if not file.is_file():
        raise UserError(f"model.weights={path!r}: there is no such file")
    try:
        if file.suffix == ".safetensors":
            return dict(load_file(file))
        content: Any = torch.load(file, map_location="cpu", weights_only=True)
    except (SafetensorError, OSError, RuntimeError, ValueError, EOFError, KeyError) as error:
        raise UserError(f"model.weights={path!r} cannot be read: {first_sentence(error)}") from error
    except Exception as error:  # torch's own kind of error for what only a pickle could make
        raise UserError(
            f"model.weights={path!r} is no state dict of tensors alone; save model.state_dict() "
            "with torch.save or with safetensors"
        ) from error
    if isinstance(content, Mapping) and isinstance(content.get("state_dict"), Mapping):
        content = content["state_dict"]
    if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
        raise UserError(f"model.weights={path!r} is no state dict: it must hold tensors by name")
    return {str(name): value for name, value in content.items()}


def weights_fingerprint(path: str) -> str:
    """A digest of a file: a resumed run must start from what it started from."""
    if not Path(path).is_file():
        raise UserError(f"model.weights={path!r}: there is no such file")
    with Path(path).open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _is_given(name: str, module: nn.Module, weights: Mapping[str, Tensor]) -> bool:
    """Whether a file has a tensor, perhaps by another name of a parameter that layers share."""
    if name in weights or name.endswith("num_batches_tracked"):  # older files have no such counters
        return True
    every_name = dict(module.named_parameters(remove_duplicate=False))
    own = every_name.get(name)
    return own is not None and any(p is own and other in weights for other, p in every_name.items())


def _told(begin: str, names: Sequence[str], end: str = "") -> list[str]:
    """A part of a sentence about names, if there are any."""
    if not names:
        return []
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return [f"{begin} {', '.join(map(repr, names[:_LISTED]))}{more}{end}"]
