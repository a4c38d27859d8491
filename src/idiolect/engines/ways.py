"""How the clients of a federation are computed: a stack of them at once or one at a time; recorded or not.

A rule, not a measurement: whoever repeats or resumes a run goes the same way, on any machine.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from idiolect.core import rng, tree
from idiolect.core.inputs import Inputs, row_count, take_rows
from idiolect.core.objective import Batch
from idiolect.engines.chunks import chunk_size
from idiolect.engines.engine import Setting
from idiolect.errors import first_sentence

# Operations in products for each call, from which on a call is busy with one client alone, and a stack only
# leaves the cache. Measured on two cores: with 0.6 million stacking doubled the speed, with 1.3 it lost.
BUSY_CALL = 1_000_000
# Calls of a gradient that are worth recording, which takes 2 ms each. A step of many calls would have to be
# replayed very often: a recurrent network over 80 characters has 3,000.
MOST_RECORDED_CALLS = 1_000

PROBED_ROWS = 4  # by which it is seen whether a model keeps rows apart


class Way(NamedTuple):
    """How clients are computed."""

    clients: int  # at once; 1: one at a time, in as many threads as torch has
    is_recorded: bool


def choose_way(setting: Setting) -> Way:
    """The way for a model, its data and its batches."""
    module = setting.objective.module
    if stacking_obstacle(setting) is not None:
        return Way(1, is_recorded=False)
    cost = cost_of_a_gradient(setting)
    is_recorded = cost.calls <= MOST_RECORDED_CALLS
    # Convolutions of many models are grouped ones, which are no faster than one model after the other.
    has_convolutions = any(isinstance(layer, nn.modules.conv._ConvNd) for layer in module.modules())
    if has_convolutions or cost.arithmetic > BUSY_CALL * cost.calls:
        return Way(1, is_recorded)
    return Way(chunk_size(module), is_recorded)


def why_one_by_one(setting: Setting) -> str | None:
    """Why clients run one at a time, in a sentence, if their model leaves no choice."""
    obstacle = stacking_obstacle(setting)
    if obstacle is None:
        return None
    kind = type(setting.objective.module).__name__
    return f"{kind} cannot be run for many clients at once, so clients run one at a time ({obstacle})"


class Cost(NamedTuple):
    """What a gradient consists of."""

    calls: int  # of tensor operations
    arithmetic: int  # operations in products of matrices and convolutions


def cost_of_a_gradient(setting: Setting) -> Cost:
    """Counted in a gradient of the first client."""
    params, batch = setting.objective.initial_params(), tree.row(_batches(setting, 1), 0)
    with _Counter() as counter:
        setting.objective.gradient(params, batch)
    return Cost(counter.calls, counter.arithmetic)


def stacking_obstacle(setting: Setting) -> str | None:
    """Why the model's gradient cannot be taken for a stack of clients; None if it can. Found by trying."""
    if not _keeps_rows_apart(setting):
        return "what it makes of a row depends on the rows beside it, and batches of a stack are padded"
    count = 2
    params = tree.map_tree(torch.clone, tree.repeat(setting.objective.initial_params(), count))
    batches = _batches(setting, count)
    try:
        with stacking(), _no_loops_in_operations():
            vmap(setting.objective.gradient)(params, batches)
            vmap(setting.objective.predict)(
                params, batches.inputs
            )  # other kernels, where no gradient is asked
    except (RuntimeError, NotImplementedError, ValueError, TypeError, IndexError) as error:
        return first_sentence(error)
    return None


def _keeps_rows_apart(setting: Setting) -> bool:
    """Whether the first and the last of some rows give, bit for bit, the same beside any others.

    Batch normalisation may mix them: it knows which rows only pad.
    """
    objective, federation = setting.objective, setting.federation
    places = torch.linspace(0, row_count(federation.inputs) - 1, PROBED_ROWS).long()
    weights = torch.full((PROBED_ROWS,), 1 / PROBED_ROWS, dtype=objective.dtype)
    batch = Batch(take_rows(federation.inputs, places), federation.targets[places], weights, torch.tensor(0))
    # First parameters may be zero, and then nothing is seen.
    params = {
        name: value + 0.1 * rng.uniform(rng.key(0, "probe", place), *value.shape).to(value.dtype)
        for place, (name, value) in enumerate(setting.objective.initial_params().items())
    }

    def outputs(rows: Inputs) -> tuple[Tensor, Tensor]:
        return objective.predict(params, rows), objective.apart(params, batch._replace(inputs=rows))

    return all(
        beside[place].allclose(alone[place], rtol=0, atol=0, equal_nan=True)
        for place in (0, -1)
        for beside, alone in zip(outputs(batch.inputs), outputs(_repeated(batch.inputs, place)), strict=True)
    )


def _repeated(rows: Inputs, place: int) -> Inputs:
    """One of the rows in the place of all."""
    return tree.map_tree(lambda leaf: leaf[place].expand_as(leaf).clone(), rows)


def _batches(setting: Setting, count: int) -> Batch:
    """The first batch of the first client, so many times."""
    batches, ids = setting.batches, torch.zeros(count, dtype=torch.int64)
    width = int(batches.batch_sizes[0])
    first = torch.tensor(0)
    rows, keys = batches.draw(ids, 0, first, width), batches.keys(ids, 0, first)
    return batches.gather(rows, batches.weights(ids, width), keys)


@contextmanager
def stacking() -> Iterator[None]:
    """Let attention take the kernel that many models can take at once."""
    with sdpa_kernel(SDPBackend.MATH):
        yield


@contextmanager
def _no_loops_in_operations() -> Iterator[None]:
    """Let an operation that torch could only do one client after the other be an error, not a warning."""
    functorch: Any = torch._C._functorch
    allowed = functorch._is_vmap_fallback_enabled()
    functorch._set_vmap_fallback_enabled(False)
    try:
        yield
    finally:
        functorch._set_vmap_fallback_enabled(allowed)


class _Counter(TorchDispatchMode):
    """Counts tensor operations, and the arithmetic in those for which torch knows it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls = 0
        self.arithmetic = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = operation(*args, **kwargs)
        self.calls += 1
        if (arithmetic_of := flop_registry.get(operation.overloadpacket)) is not None:
            self.arithmetic += arithmetic_of(*args, **kwargs, out_val=result)
        return result
