"""The passes in their order. Each keeps the value of every result, alone as well as after the others."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import MappingProxyType

from torch.fx import Graph, Node

from idiolect.engines.compiler.common import merge_equals
from idiolect.engines.compiler.fuse import fuse_updates
from idiolect.engines.compiler.graph import drop_unused
from idiolect.engines.compiler.hoist import split_off_shared
from idiolect.engines.compiler.in_place import give_results_own_memory, overwrite_what_is_used_up
from idiolect.engines.compiler.linear import combine_inner_steps
from idiolect.engines.compiler.products import distribute_products, shrink_inner_products
from idiolect.engines.compiler.simplify import remove_identities, settle_step_tests


@dataclass
class Program:
    """A recorded step as passes see it: a graph without side effects, and what its arguments are."""

    graph: Graph
    changing: list[Node]  # arguments that the step returns anew
    fixed: list[Node]  # arguments that are the same in all steps of a round
    step: Node  # the number of the step
    first: bool  # whether this is the first step of a round
    shared: Graph = field(default_factory=Graph)  # of the fixed arguments: what is computed once in a round

    def __post_init__(self) -> None:
        for node in self.fixed:
            self.shared.placeholder(node.name)
        self.shared.output([])


Pass = Callable[[Program], None]


def _settle(program: Program) -> None:
    settle_step_tests(program.step, first=program.first)


def _simplify(program: Program) -> None:
    remove_identities(program.graph)


def _common(program: Program) -> None:
    merge_equals(program.graph)


def _shrink(program: Program) -> None:
    shrink_inner_products(program.graph)


def _distribute(program: Program) -> None:
    distribute_products(program.graph)


def _combine(program: Program) -> None:
    combine_inner_steps(program.graph)


def _hoist(program: Program) -> None:
    program.shared = split_off_shared(program.graph, program.fixed)


def _fuse(program: Program) -> None:
    fuse_updates(program.graph)


def _in_place(program: Program) -> None:
    give_results_own_memory(program.graph, program.changing)
    overwrite_what_is_used_up(program.graph, program.changing)


PASSES: MappingProxyType[str, Pass] = MappingProxyType(
    {
        "settle": _settle,  # tests whether this is the first step
        "simplify": _simplify,  # reshapes to the same shape, factors of one
        "common": _common,  # equal operations, once
        "shrink": _shrink,  # inner products over a batch instead of over parameters
        "distribute": _distribute,  # x (w + v) where x w is there already
        "combine": _combine,  # several steps on one batch, added at once
        "hoist": _hoist,  # what all steps of a round share, once in a round
        "fuse": _fuse,  # products that are added as they are computed
        "in-place": _in_place,  # memory that nothing reads any more, written over
    }
)
# They ask for a number's value, for which a device would be waited for in every step.
ON_CPU_ONLY = frozenset({"fuse"})
# Distributed products are often equal to others.
_ORDER = (
    "settle",
    "simplify",
    "common",
    "shrink",
    "distribute",
    "common",
    "combine",
    "hoist",
    "fuse",
    "in-place",
)


def apply_passes(program: Program, chosen: frozenset[str]) -> None:
    """Apply the chosen passes, in their order."""
    for name in _ORDER:
        if name in chosen:
            PASSES[name](program)
            drop_unused(program.graph)
