"""Recorded steps without what need not be computed."""

from typing import Any

import torch
from torch.fx import Graph, Node

from idiolect.engines.compiler.graph import is_like, operands

aten = torch.ops.aten

# Operations that return their first argument when the shape stays the same.
_RESHAPES = {aten.view.default, aten._unsafe_view.default, aten.expand.default, aten.unsqueeze.default}
_TRANSPOSITIONS = {aten.transpose.int, aten.t.default}
# Whether the step's number passes the test "<operation> 0": in the first step, in later ones.
_STEP_TESTS: dict[Any, tuple[bool, bool]] = {
    aten.eq.Scalar: (True, False),
    aten.ne.Scalar: (False, True),
    aten.gt.Scalar: (False, True),
}


def has_step_tests(step: Node) -> bool:
    """Whether anything depends on whether this is the first step."""
    return any(_is_step_test(user) for user in step.users)


def settle_step_tests(step: Node, *, first: bool) -> None:
    """Decide what depends only on whether this is the first step, so that later ones skip its cost."""
    for test in filter(_is_step_test, list(step.users)):
        holds = _STEP_TESTS[test.target][0 if first else 1]
        for choice in list(test.users):
            if choice.target is aten.where.self and choice.args[0] is test:
                chosen: Any = choice.args[1 if holds else 2]
                if is_like(chosen, choice):
                    choice.replace_all_uses_with(chosen)


def _is_step_test(node: Node) -> bool:
    return node.target in _STEP_TESTS and operands(node)[1] == 0


def remove_identities(graph: Graph) -> None:
    """Drop reshapes to the same shape, multiplications by one and double transpositions."""
    ones: set[Node] = set()
    for node in graph.nodes:
        if node.target is aten.ones_like.default or (node.target in _RESHAPES and node.args[0] in ones):
            ones.add(node)
        elif (same := _same_as(node, ones)) is not None:
            node.replace_all_uses_with(same)


def _same_as(node: Node, ones: set[Node]) -> Node | None:
    """An earlier node with the same result."""
    source, *rest = node.args or [None]
    if not isinstance(source, Node):
        return None
    if node.target in _RESHAPES or (node.target is aten.mul.Scalar and rest == [1]):
        return source if is_like(source, node) else None
    if node.target is aten.mul.Tensor:
        factors = {source, *rest}
        others = [factor for factor in factors if factor not in ones]
        return others[0] if len(others) < len(factors) and others and is_like(others[0], node) else None
    if node.target is source.target and node.target in _TRANSPOSITIONS and {*rest} == {*source.args[1:]}:
        return source.args[0]  # type: ignore[return-value]
    return None
