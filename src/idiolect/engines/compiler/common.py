"""Equal operations of a recorded step, computed once."""

from collections.abc import Hashable
from typing import Any

from torch.fx import Graph, Node

from idiolect.engines.compiler.graph import is_pure


def merge_equals(graph: Graph) -> None:
    """Compute only once what is computed several times, such as the targets' part of two gradients.

    Equal recipes give equal values because recordings are functional: nothing changes a value afterwards.
    """
    known: dict[Hashable, Node] = {}
    for node in graph.nodes:
        if not is_pure(node):
            continue
        recipe = (node.target, _hashable(node.args), _hashable(node.kwargs))
        twin = known.setdefault(recipe, node)
        if twin is not node:
            node.replace_all_uses_with(twin)


def _hashable(value: Any) -> Hashable:
    """Arguments as a key; numbers of different types differ, and so do 0.0 and -0.0."""
    if isinstance(value, list | tuple):
        return tuple(_hashable(entry) for entry in value)
    if isinstance(value, dict):
        return tuple((name, _hashable(entry)) for name, entry in sorted(value.items()))
    return type(value), repr(value) if isinstance(value, float) else value
