"""A vmapped step, recorded as a flat list of tensor operations and rewritten by passes, to be replayed.

Replaying saves the transforms' bookkeeping, and what is recorded can be made cheaper. Passes know nothing of
methods or models, and may rely on one thing: a recording is functional. No operation in it changes a value
that another one has computed, so a value is what its recipe says, wherever it is read.
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from idiolect.engines.compiler.graph import is_pure
from idiolect.engines.compiler.passes import PASSES, Program, apply_passes
from idiolect.engines.compiler.simplify import has_step_tests
from idiolect.engines.compiler.trace import trace

aten = torch.ops.aten

FlatFunction = Callable[..., list[Tensor]]

# Passes change strides. Whatever depends on these alone must still be possible; what reads memory by its
# layout has no meaning of its own, so that a step with such an operation is replayed as it was recorded.
_RESHAPES: dict[Any, Any] = {
    aten.view.default: aten.reshape.default,
    aten._unsafe_view.default: aten.reshape.default,
}
_LAYOUT_DEPENDENT = {aten.as_strided.default, aten.as_strided_scatter.default, aten.view.dtype}


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


Step = Callable[[Arguments], list[Tensor]]  # the new values of what changes


@dataclass(eq=False)
class Replay:
    """A step to be replayed: it takes, after its arguments, what `share` makes of those that are fixed.

    The results of `share` are good for a round. A call of `step` uses up what changes.
    """

    share: FlatFunction
    step: FlatFunction
    is_vouched: bool = False  # whether it was compared with the plain step

    def tried(self, arguments: Arguments) -> list[Tensor]:
        """The results for copies of some arguments; an error if it writes into any that does not change."""
        copies = Arguments.from_flat([leaf.clone() for leaf in arguments.flat()], arguments)
        shared = self.share(*copies.fixed)
        kept = [*copies.fixed, *copies.drawn, copies.step, *shared]
        versions = [leaf._version for leaf in kept]
        results = self.step(*copies.flat(), *shared)
        if [leaf._version for leaf in kept] != versions:
            raise RuntimeError("it writes into what later steps read")
        return results


class Recording(NamedTuple):
    """A step as it is first in a round and as it is later, which is mostly the same."""

    first: Replay
    later: Replay

    def at(self, step: int) -> Replay:
        """The one for a step of this number."""
        return self.first if step == 0 else self.later


def record(step: Step, example: Arguments, passes: Iterable[str] = PASSES) -> Recording:
    """Record a step for arguments of these shapes and rewrite it by some of the passes."""

    def flat_step(*flat: Tensor) -> list[Tensor]:
        return step(Arguments.from_flat(flat, example))

    recorded = trace(flat_step, example.flat())
    chosen = frozenset(passes) if _may_be_rewritten(recorded) else frozenset()
    later = _rewritten(recorded, example, chosen, first=False)
    *_, step_number = recorded.graph.find_nodes(op="placeholder")
    has_first = "settle" in chosen and has_step_tests(step_number)
    return Recording(_rewritten(recorded, example, chosen, first=True) if has_first else later, later)


def _may_be_rewritten(recorded: GraphModule) -> bool:
    """Whether every operation is pure, and what it gives depends on values alone."""
    operations = [
        node for node in recorded.graph.nodes if node.op not in {"placeholder", "get_attr", "output"}
    ]
    return all(is_pure(node) and node.target not in _LAYOUT_DEPENDENT for node in operations)


def _rewritten(recorded: GraphModule, example: Arguments, passes: frozenset[str], *, first: bool) -> Replay:
    """The step after some passes."""
    graph = copy.deepcopy(recorded.graph)
    placeholders: list[Node] = [node for node in graph.nodes if node.op == "placeholder"]
    changing = placeholders[: len(example.changing)]
    fixed = placeholders[len(changing) : len(changing) + len(example.fixed)]
    program = Program(graph, changing, fixed, placeholders[-1], first)
    if passes:
        apply_passes(program, passes)
        for node in (*program.shared.nodes, *graph.nodes):
            node.target = _RESHAPES.get(node.target, node.target)
    return Replay(GraphModule(recorded, program.shared).forward, GraphModule(recorded, graph).forward)
