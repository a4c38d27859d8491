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
from idiolect.engines.tidying import merge_equals, remove_identities, settle_step_tests, split_off_shared
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


class Recording(NamedTuple):
    """A step to be replayed, as it is first in a round and as it is later. A call uses up what changes.

    Later steps take, after their own arguments, what `share` makes once in a round of those that are fixed.
    """

    first: FlatFunction
    share: FlatFunction
    later: FlatFunction


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
    first, _ = _tidied(recorded, example, first=True)
    later, share = _tidied(recorded, example, first=False)
    return Recording(first, share, later)


def _tidied(recorded: GraphModule, example: Arguments, *, first: bool) -> tuple[FlatFunction, FlatFunction]:
    """The cheaper step, and the function of what is fixed whose results it takes as further arguments."""
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
    # The first step shares nothing with others: it is the only one of its kind in a round.
    shared = split_off_shared(graph, [] if first else fixed)
    give_results_own_memory(graph, changing)
    fuse_updates(graph)
    overwrite_what_is_used_up(graph, changing)
    return GraphModule(recorded, graph).forward, GraphModule(recorded, shared).forward
