"""A GPU that is not there: shapes, types and devices of its tensors are real, their values are not.

There are two, because neither can do all:

cuda   tensors of torch's FakeTensorMode. A torch that was built without CUDA cannot differentiate them, so
       gradients are zeros of the parameters' shapes; the forward passes are those of a GPU.
meta   torch's device of that name, which takes gradients too.

Whatever asks for a value on either (`item`, a branch, `nonzero`) raises. So does an operation of tensors on
two devices, and a tensor that the client half makes without naming its device. On the CPU everything is
computed as always. What crosses back to it gets some values there, the same each time.
"""

import ctypes
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch._functorch import eager_transforms
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from idiolect.core import autodiff
from idiolect.core.device import find_device
from idiolect.core.exchange import Site
from idiolect.core.method import Method
from idiolect.data.federation import Federation
from idiolect.engines.assembly import EngineName, set_up
from idiolect.engines.ways import Way
from idiolect.participation.sampling import Uniform
from idiolect.simulation import Simulation

Pretended = Literal["cuda", "meta"]
DEVICES: tuple[Pretended, ...] = ("cuda", "meta")
FREE_BYTES = 2**30
ALL_AT_ONCE = Way(1024, is_recorded=False)
FACTORIES = {
    getattr(torch, name)
    for name in (
        "arange", "as_tensor", "empty", "eye", "from_numpy", "full", "linspace", "logspace", "ones", "rand",
        "randint", "randn", "randperm", "scalar_tensor", "tensor", "tril_indices", "triu_indices", "zeros",
    )
}  # fmt: skip
_COPIES = {torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default, torch.ops.aten.copy.default}


class CrossingError(AssertionError):
    """Tensors of two devices met, or one crossed where none should."""


class _Routing(TorchDispatchMode):
    """Lets the CPU compute, leaves the rest to the pretended GPU, and watches who crosses."""

    def __init__(self, fake: FakeTensorMode | None) -> None:
        super().__init__()
        self.fake = fake
        self.may_cross = False

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = _tensors_among((*args, *kwargs.values()))
        devices = {tensor.device.type for tensor in tensors}
        asked = kwargs.get("device")
        target = None if asked is None else torch.device(asked).type
        if operation in _COPIES and target is not None and devices != {target}:
            return self._crossed(operation, args, kwargs, tensors[0], target)
        if len(devices) > 1 and not _is_of_a_number(operation, tensors):
            raise CrossingError(f"{operation} of tensors on {' and '.join(sorted(devices))}")
        if devices | {target} <= {"cpu", None}:
            with torch._C._DisableTorchDispatch():  # below this mode there is the pretended GPU alone
                return operation(*args, **kwargs)
        return operation(*self._faked(args), **kwargs)

    def _crossed(self, operation: Any, args: Any, kwargs: Any, moved: Tensor, target: str) -> Any:
        if target == "cpu":
            if not _is_called_by("to_host", "set_up"):
                raise CrossingError("a tensor came back from the device, and not by to_host")
            with unset_fake_temporarily():
                return some_values(moved, kwargs.get("dtype") or moved.dtype)
        if not self.may_cross and not _is_called_by("to_device", "move_to"):
            raise CrossingError(f"a tensor {tuple(moved.shape)} went to the device, and not by to_device")
        return operation(*self._faked(args), **kwargs)

    def _faked(self, args: Any) -> Any:
        """With no tensor that has values."""
        fake = self.fake
        if fake is None or all(isinstance(arg, FakeTensor) for arg in args if isinstance(arg, Tensor)):
            return args
        return pytree.tree_map_only(
            Tensor, lambda leaf: leaf if isinstance(leaf, FakeTensor) else fake.from_tensor(leaf), args
        )


def _tensors_among(arguments: Iterable[Any]) -> list[Tensor]:
    """The tensors of an operation, which come as they are or in lists; trees would take half of the time."""
    found = []
    for each in arguments:
        if isinstance(each, Tensor):
            found.append(each)
        elif isinstance(each, (list, tuple)):
            found += [leaf for leaf in each if isinstance(leaf, Tensor)]
    return found


def _is_of_a_number(operation: Any, tensors: list[Tensor]) -> bool:
    """Whether one of two operands is a number, which devices take: under vmap the 1 of x + 1 comes so."""
    on_cpu = [tensor for tensor in tensors if tensor.device.type == "cpu"]
    return torch.Tag.pointwise in operation.tags and len(tensors) == 2 and not on_cpu[0].ndim


class ExplicitDevices(TorchFunctionMode):
    """Refuses to make a tensor in the client half without a word on which device it is to be."""

    def __init__(self, routing: _Routing) -> None:
        super().__init__()
        self.routing = routing

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function not in FACTORIES or isinstance(args[0], Tensor):
            return function(*args, **kwargs)
        if kwargs.get("device") is None:
            caller = sys._getframe(1).f_code
            # Keys of names and numbers are made on the CPU, and put into those of clients as numbers.
            is_ours = "/idiolect/" in caller.co_filename and "core/rng.py" not in caller.co_filename
            if is_ours and _is_at_a_site():
                raise CrossingError(f"torch.{function.__name__} in {caller.co_qualname} names no device")
        # What is made of numbers on a device is made on the CPU first.
        self.routing.may_cross = True
        try:
            return function(*args, **kwargs)
        finally:
            self.routing.may_cross = False


def _callers() -> Iterator[FrameType]:
    frame = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_at_a_site() -> bool:
    """Whether a function of the client half, which is given its site, is among the callers."""
    return any(isinstance(frame.f_locals.get("site"), Site) for frame in _callers())


def _is_called_by(*names: str) -> bool:
    """Whether a function of one of these names of the package is among the callers."""
    return any(f.f_code.co_name in names and "idiolect" in f.f_code.co_filename for f in _callers())


def some_values(like: Tensor, dtype: torch.dtype) -> Tensor:
    """Values for a tensor that has none: different ones, small, positive, and the same for the same shape."""
    if not dtype.is_floating_point:
        return torch.ones(like.shape, dtype=dtype)
    return (1 + torch.arange(like.numel()) % 7).div(10).to(dtype).reshape(like.shape)


@contextmanager
def pretended(device: Pretended, monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    """In the block there is such a device."""
    fake = FakeTensorMode() if device == "cuda" else None
    if fake is not None:
        monkeypatch.setattr(FakeTensorMode, "avoid_device_init", True)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (FREE_BYTES, 2 * FREE_BYTES))
        monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
        monkeypatch.setattr(autodiff, "peek_interpreter_stack", lambda: "always inside of transforms")
        monkeypatch.setattr(eager_transforms, "grad_impl", _zero_gradients)
    routing, threads = _Routing(fake), torch.get_num_threads()
    torch.set_num_threads(1)  # modes are of one thread
    # Parameters that are moved are replaced: a fake tensor cannot be put into one that was real.
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        with _guard_of_a_gpu(), fake or nullcontext(), routing, ExplicitDevices(routing):
            yield torch.device(device, 0)
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)
        torch.set_num_threads(threads)


@contextmanager
def _guard_of_a_gpu() -> Iterator[None]:
    """Let torch without CUDA, which switches to the GPU of a tensor that it indexes, switch nothing."""
    if torch.cuda._is_compiled():
        yield
        return
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    guards = (ctypes.c_void_p * 2).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
    guards[1] = guards[0]  # CUDA's as that of the CPU, which does nothing
    try:
        yield
    finally:
        guards[1] = None


def _zero_gradients(function: Any, argnums: Any, has_aux: bool, args: Any, kwargs: Any) -> Any:
    """In place of torch.func.grad: the value is computed, and the gradients are zeros."""
    value = function(*args, **kwargs)
    at = args[argnums] if isinstance(argnums, int) else tuple(args[place] for place in argnums)
    zeros = pytree.tree_map(torch.zeros_like, at)
    return (zeros, value[1]) if has_aux else zeros


def simulated(
    method: Method,
    model: Callable[[], nn.Module] | nn.Module,
    federation: Federation,
    device: torch.device | str,
    *,
    engine: EngineName = "vectorised",
    way: Way | None = ALL_AT_ONCE,
    **options: Any,
) -> Simulation:
    """A simulation on a device. Its way is given: a trial takes long, and its times mean nothing."""
    defaults: dict[str, Any] = {"seed": 0, "batch_size": 4, "weight_decay": 0.0, "dtype": torch.float32}
    setting = set_up(method, model, federation, device=find_device(str(device)), **(defaults | options))
    return Simulation.of(setting, Uniform(), engine, way)


def is_on(device: str, tree: Any) -> bool:
    """Whether all tensors of a tree are on a device."""
    return {leaf.device.type for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)} == {device}
