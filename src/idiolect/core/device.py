"""Where clients are computed: on the CPU, or on a device beside it.

The server and the plan (who takes part, keys, row numbers, sizes) are always on the CPU; rows, clients and
what they are sent are on the device. They cross in two places, `to_device` and `to_host`, and nowhere else.
"""

from collections.abc import Callable
from typing import Annotated, TypeVar

import torch
from pydantic import AfterValidator
from torch import Tensor

from idiolect.core import tree as trees
from idiolect.errors import UserError

T = TypeVar("T")

CPU = torch.device("cpu")
AUTO = "auto"
_CHOICES = "it must be cpu, cuda, cuda:0 (or another number), mps or auto"


def to_device(tree: T, device: torch.device) -> T:
    """What clients work with, where they are; in float32 what a device does not have in float64."""
    if device == CPU:
        return to_host(tree)
    return _moved(tree, lambda x: x.to(finest(device) if x.dtype == torch.float64 else x.dtype).to(device))


def to_host(tree: T) -> T:
    """What comes from clients, where the server is."""
    return _moved(tree, lambda leaf: leaf.to(CPU))


def _moved(tree: T, move: Callable[[Tensor], Tensor]) -> T:
    """With every tensor moved; a clock has a plain number, too."""
    return trees.map_tree(lambda leaf: move(leaf) if isinstance(leaf, Tensor) else leaf, tree)


def precise(values: Tensor) -> Tensor:
    """The values in the finest type of their device."""
    return values.to(finest(values.device))


def finest(device: torch.device) -> torch.dtype:
    """float64, and float32 on a device that has no more, which is Apple's."""
    return torch.float32 if device.type == "mps" else torch.float64


def _known(name: str) -> str:
    kind, colon, number = name.partition(":")
    if name not in (AUTO, "cpu", "cuda", "mps") and not (kind == "cuda" and colon and number.isdecimal()):
        raise ValueError(_CHOICES)
    return name


DeviceName = Annotated[str, AfterValidator(_known)]


def find_device(name: str) -> torch.device:
    """The device of a name; auto is the GPU where there is one. One that is not here is refused."""
    if name == AUTO:
        return torch.device(next((kind for kind in ("cuda", "mps") if _why_missing(kind) is None), "cpu"))
    if (reason := _why_missing(name)) is not None:
        raise UserError(f"device={name} is not available: {reason}; use device=cpu, or auto for what is here")
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise UserError(f"device={name} is not possible: {_CHOICES}") from error


def _why_missing(name: str) -> str | None:
    """Why there is no such device here; None if there is."""
    kind, _, number = name.partition(":")
    if kind == "mps" and not torch.backends.mps.is_available():
        return "this machine, or this build of torch, has no Apple GPU"
    if kind == "cuda" and not torch.cuda.is_available():
        return "this machine, or this build of torch, has no GPU"
    if kind == "cuda" and number.isdecimal() and int(number) >= torch.cuda.device_count():
        return f"the last GPU of this machine is cuda:{torch.cuda.device_count() - 1}"
    return None


def is_here(name: str) -> bool:
    """Whether this machine has such a device."""
    return _why_missing(name) is None


def refuse_precision(device: torch.device, dtype: torch.dtype) -> None:
    """Refuse numbers that a device does not have."""
    if device.type == "mps" and dtype == torch.float64:
        raise UserError("dtype=float64 is not possible with device=mps, which has float32 only")


def free_bytes(device: torch.device) -> int | None:
    """The memory that is free on a device; None for the CPU's, which is not asked."""
    match device.type:
        case "cuda":
            return int(torch.cuda.mem_get_info(device)[0])
        case "mps":
            return int(torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory())
        case _:
            return None


def has_room(device: torch.device, size: int) -> bool:
    """Whether so many bytes may be kept on a device for good: half of what is free is left for computing."""
    free = free_bytes(device)
    return free is None or 2 * size <= free


def wait_for(device: torch.device) -> None:
    """Return when a device has done all that it was asked, so that time can be measured."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
