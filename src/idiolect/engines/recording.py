"""A vmapped step, recorded as a flat list of tensor operations and tidied up, to be replayed.

Replaying saves the transforms' bookkeeping, and what is recorded can be made cheaper: `tidying`, `products`
and `updating` keep the value of every result, and none of them knows about methods or models.
"""

import copy
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.graph import CodeGen

from idiolect.engines.linear import combine_inner_steps
from idiolect.engines.products import distribute_products, shrink_inner_products
from idiolect.engines.sharing import split_off_shared
from idiolect.engines.tidying import has_step_tests, merge_equals, remove_identities, settle_step_tests
from idiolect.engines.updating import fuse_updates, give_results_own_memory, overwrite_what_is_used_up

FlatFunction = Callable[..., list[Tensor]]


class Arguments(NamedTuple):
    """The tensors of a step: what it returns anew, what is the same in all steps, its batches, its number."""

    changing: list[Tensor]
    fixed: list[Tensor]
    drawn: list[Tensor]
    step: Tensor

    @classmethod
    def from_flat(cls, flat: Sequence[Tensor], like: "Arguments") -> "Arguments":
        """The inverse of `flat`."""
        first, second = len(like.changing), len(like.changing) + len(like.fixed)
        return cls(list(flat[:first]), list(flat[first:second]), list(flat[second:-1]), flat[-1])

    def flat(self) -> list[Tensor]:
        """All of them in one list."""
        return [*self.changing, *self.fixed, *self.drawn, self.step]


class Replay(NamedTuple):
    """A step to be replayed: it takes, after its arguments, what `share` makes of those that are fixed.

    The results of `share` are good for a round. A call of `step` uses up what changes.
    """

    share: FlatFunction
    step: FlatFunction


class Recording(NamedTuple):
    """A step as it is first in a round and as it is later, which is mostly the same."""

    first: Replay
    later: Replay


class Recordings:
    """The recordings that were used last, by signature: cohorts of ever new sizes must not pile them up."""

    def __init__(self, most: int = 64) -> None:
        self.most = most
        self._kept: OrderedDict[Hashable, Recording] = OrderedDict()

    def get(self, signature: Hashable, make: Callable[[], Recording]) -> Recording:
        """The recording of that signature, made if there is none."""
        if signature not in self._kept:
            self._kept[signature] = make()
        self._kept.move_to_end(signature)
        if len(self._kept) > self.most:
            self._kept.popitem(last=False)
        return self._kept[signature]


def record(step: Callable[[Arguments], list[Tensor]], example: Arguments) -> Recording:
    """Record a step for arguments of these shapes."""

    def flat_step(*flat: Tensor) -> list[Tensor]:
        return step(Arguments.from_flat(flat, example))

    # Copies: were one tensor given twice, the recording could not tell its two roles apart.
    recorded = make_fx(flat_step)(*(argument.clone() for argument in example.flat()))
    for node in recorded.graph.nodes:
        if node.op == "get_attr":  # a constant of the method: the recorder tells the shapes of all others
            node.meta["tensor_meta"] = getattr(recorded, node.target)
    later = _tidied(recorded, example, first=False)
    *_, step_number = recorded.graph.find_nodes(op="placeholder")
    first = _tidied(recorded, example, first=True) if has_step_tests(step_number) else later
    return Recording(first, later)


def _tidied(recorded: GraphModule, example: Arguments, *, first: bool) -> Replay:
    """The cheaper step."""
    graph = copy.deepcopy(recorded.graph)
    graph.set_codegen(CodeGen())  # flat arguments: no trees to take apart in every step
    placeholders: list[Node] = [node for node in graph.nodes if node.op == "placeholder"]
    changing = placeholders[: len(example.changing)]
    fixed = placeholders[len(changing) : len(changing) + len(example.fixed)]
    settle_step_tests(graph, placeholders[-1], first=first)
    remove_identities(graph)
    merge_equals(graph)
    graph.eliminate_dead_code()
    shrink_inner_products(graph)
    distribute_products(graph)
    merge_equals(graph)
    combine_inner_steps(graph)
    graph.eliminate_dead_code()
    shared = split_off_shared(graph, fixed)
    give_results_own_memory(graph, changing)
    fuse_updates(graph)
    overwrite_what_is_used_up(graph, changing)
    return Replay(GraphModule(recorded, shared).forward, GraphModule(recorded, graph).forward)
