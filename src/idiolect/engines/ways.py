"""How the clients of a federation are computed: a stack of them at once or one at a time; recorded or not.

On the CPU by a rule, not by a measurement: whoever repeats a run goes the same way, on any machine. On a
device beside it by a quick trial. A run keeps its way, and why, so that it goes on as it began.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from idiolect.core import tree
from idiolect.core.device import CPU, to_device, to_host, wait_for
from idiolect.core.fitness import moved_params
from idiolect.core.inputs import Inputs, row_count
from idiolect.core.objective import Batch
from idiolect.engines.chunks import most_at_once
from idiolect.engines.engine import Setting
from idiolect.errors import first_sentence
from idiolect.privacy.linear_rows import linear_layers
from idiolect.privacy.row_private import row_privacy_of

# Operations in products for each call, from which on a call is busy with one client alone, and a stack only
# leaves the cache. Measured on two cores: with 0.6 million stacking doubled the speed, with 1.3 it lost.
BUSY_CALL = 1_000_000
# The same where steps are not recorded, so that a stack costs more: with 0.16 million stacking was a quarter
# faster (a gated recurrent network over 80 characters), with 0.6 it lost a sixth.
BUSY_PLAIN_CALL = 300_000
# Calls of a gradient that are worth recording, which takes 2 ms each. A step of many calls would have to be
# replayed very often: a recurrent network over 80 characters has 3,000.
MOST_RECORDED_CALLS = 1_000
# The same for one client at a time, where calls are busy and little is saved. Measured: recorded steps of a
# CNN (67 calls) were a tenth faster, of a small ResNet (139) equal, of ResNet-18 (338) a quarter slower.
MOST_RECORDED_ALONE = 200

TRIED_CLIENTS = 8  # in a trial on a device
TRIALS = 3
PROBED_ROWS = 4  # by which it is seen whether a model keeps rows apart


class Cost(NamedTuple):
    """What a gradient consists of."""

    calls: int  # of tensor operations
    arithmetic: int  # operations in products of matrices and convolutions
    bytes: int  # of all results on the way

    @property
    def per_call(self) -> str:
        """The operations in products for each call, for people."""
        return f"{self.arithmetic / self.calls:,.0f}"


@dataclass(frozen=True)
class Way:
    """How clients are computed."""

    clients: int  # at once; 1: one at a time, in as many threads as torch has
    is_recorded: bool
    reason: str = field(default="", compare=False)

    def __str__(self) -> str:
        crowd = "one client at a time" if self.clients == 1 else f"up to {self.clients} clients at once"
        return f"{crowd}, {'recorded' if self.is_recorded else 'plain'} steps ({self.reason})"

    def plain(self) -> dict[str, Any]:
        """As plain data for a file, from which `Way(**plain)` makes it again."""
        return asdict(self)


def choose_way(setting: Setting) -> Way:
    """The way for a model, its data, its batches and its device."""
    if (obstacle := stacking_obstacle(setting)) is not None:
        return Way(1, is_recorded=False, reason=f"it leaves no choice: {obstacle}")
    cost = cost_of_a_gradient(setting)
    most = most_at_once(setting.objective.module, cost.bytes, setting.device)
    if row_privacy_of(setting.method) is not None and linear_layers(setting.objective.module) is None:
        most = max(1, most // int(setting.batches.widths.max()))  # each row has a gradient in memory
    clients, reason = _by_rule(setting, cost, most) if setting.device == CPU else _by_trial(setting, most)
    is_recorded = cost.calls <= (MOST_RECORDED_ALONE if clients == 1 else MOST_RECORDED_CALLS)
    if not is_recorded:
        reason += f"; recording {cost.calls:,} calls of torch does not pay"
    return Way(clients, is_recorded, reason)


def _by_rule(setting: Setting, cost: Cost, most: int) -> tuple[int, str]:
    if any(isinstance(layer, nn.modules.conv._ConvNd) for layer in setting.objective.module.modules()):
        return 1, "convolutions of many models are grouped ones, which are no faster"
    is_recorded = cost.calls <= MOST_RECORDED_CALLS
    if not is_recorded and getattr(setting.objective.module, "is_fast_alone", False):
        return 1, "torch's own kernel for it takes one client, and is faster than plain steps of a stack"
    if cost.arithmetic > (BUSY_CALL if is_recorded else BUSY_PLAIN_CALL) * cost.calls:
        return 1, f"each call of torch has {cost.per_call} operations, which keep a core busy"
    return most, f"each call of torch has {cost.per_call} operations, so that most time would be overhead"


def _by_trial(setting: Setting, most: int) -> tuple[int, str]:
    """Whether gradients of some clients at once are faster than one after the other, on this device now."""
    count = min(most, TRIED_CLIENTS)
    if count == 1:
        return 1, "no more fit into the memory that is free"
    params = tree.map_tree(torch.clone, tree.repeat(setting.objective.initial_params(), count))
    batches = _batches(setting, count)

    def at_once() -> None:
        with stacking():
            vmap(setting.objective.gradient)(params, batches)

    def one_by_one() -> None:
        for place in range(count):
            setting.objective.gradient(tree.row(params, place), tree.row(batches, place))

    together, apart = (least_seconds(play, setting.device) for play in (at_once, one_by_one))
    seen = f"{count} gradients took {1000 * together:.2g} ms at once and {1000 * apart:.2g} ms one by one"
    return (most if together < apart else 1), f"{seen} in a trial on {setting.device}"


def least_seconds(play: Callable[[], None], device: torch.device) -> float:
    """The least time of a few, after one that is not measured."""
    seconds = []
    for _ in range(1 + TRIALS):
        start = time.perf_counter()
        play()
        wait_for(device)
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])


def why_one_by_one(setting: Setting) -> str | None:
    """Why clients run one at a time, in a sentence, if their model leaves no choice."""
    obstacle = stacking_obstacle(setting)
    if obstacle is None:
        return None
    kind = type(setting.objective.module).__name__
    return f"{kind} cannot be run for many clients at once, so clients run one at a time ({obstacle})"


def cost_of_a_gradient(setting: Setting) -> Cost:
    """Counted in a gradient of the first client."""
    params, batch = setting.objective.initial_params(), tree.row(_batches(setting, 1), 0)
    with _Counter() as counter:
        setting.objective.gradient(params, batch)
    return Cost(counter.calls, counter.arithmetic, counter.bytes)


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
    objective, device = setting.objective, setting.device
    places = torch.linspace(0, row_count(setting.federation.inputs) - 1, PROBED_ROWS).long()
    weights = torch.full((PROBED_ROWS,), 1 / PROBED_ROWS, dtype=objective.dtype)
    batch = setting.batches.gather(places, *to_device((weights, torch.tensor(0)), device))
    params = moved_params(objective)

    def outputs(rows: Inputs) -> tuple[Tensor, Tensor]:
        return to_host(
            (objective.predict(params, rows), objective.apart(params, batch._replace(inputs=rows)))
        )

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
    width = int(batches.widths[0])
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
        self.bytes = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = operation(*args, **kwargs)
        self.calls += 1
        self.bytes += sum(leaf.nbytes for leaf in tree.leaves(result) if isinstance(leaf, Tensor))
        if (arithmetic_of := flop_registry.get(operation.overloadpacket)) is not None:
            self.arithmetic += arithmetic_of(*args, **kwargs, out_val=result)
        return result
