"""What all passes ask of a recorded graph: shapes, types, purity, who owns memory."""

import operator
from typing import Any

import torch
from torch.fx import Graph, Node

aten = torch.ops.aten


def output_of(graph: Graph) -> Node:
    """The node that returns the results."""
    return next(node for node in reversed(graph.nodes) if node.op == "output")


def is_pure(node: Node) -> bool:
    """Whether a node is an operation that changes none of its arguments and gives the same each time."""
    if node.target is operator.getitem:  # of several results
        return True
    schema: Any = getattr(node.target, "_schema", None)
    if schema is None or schema.is_mutable:
        return False
    return torch.Tag.nondeterministic_seeded not in node.target.tags  # type: ignore[union-attr]


def drop_unused(graph: Graph) -> None:
    """Erase what nothing reads. torch's own looks up in every node whether it is pure, which takes longer."""
    for node in reversed(graph.nodes):
        if not node.users and (is_pure(node) or node.op == "get_attr"):
            graph.erase_node(node)


def is_like(one: Any, other: Node) -> bool:
    """Whether two results are tensors of the same shape and type."""
    if not (isinstance(one, Node) and _is_tensor(one) and _is_tensor(other)):
        return False
    return shape(one) == shape(other) and dtype(one) == dtype(other)


def shape(node: Node) -> torch.Size:
    """The shape of a node's result."""
    return torch.Size(node.meta["tensor_meta"].shape)


def dtype(node: Node) -> torch.dtype:
    """The type of a node's result."""
    return node.meta["tensor_meta"].dtype


def operands(node: Node) -> tuple[Any, ...]:
    """The arguments of a node, nodes or numbers."""
    return node.args


def call(graph: Graph, operation: Any, *arguments: Any) -> Node:
    """An operation of a graph, with the shape and type of its result."""
    node = graph.call_function(operation, arguments)
    examples = [
        torch.empty(shape(entry), dtype=dtype(entry), device="meta") if isinstance(entry, Node) else entry
        for entry in arguments
    ]
    node.meta = {"tensor_meta": operation(*examples)}
    return node


def owner(node: Node) -> Node:
    """The node whose memory a node's result may lie in."""
    while is_view(node):
        node = node.all_input_nodes[0]
    return node


def is_view(node: Node) -> bool:
    """Whether a node's result may share its argument's memory."""
    if node.op != "call_function" or node.target is operator.mul:
        return False
    schema: Any = getattr(node.target, "_schema", None)
    if schema is None or node.target is aten._unsafe_view.default:
        return True
    return any(result.alias_info is not None for result in schema.returns)


def erase(graph: Graph, unused: Node) -> set[Node]:
    """Erase a node and what only it needed; much faster than looking for dead code everywhere."""
    erased: set[Node] = set()
    candidates = [unused]
    while candidates:
        node = candidates.pop()
        if node.op == "call_function" and not node.users and node not in erased:
            candidates += node.all_input_nodes
            graph.erase_node(node)
            erased.add(node)
    return erased


def _is_tensor(node: Node) -> bool:
    return hasattr(node.meta.get("tensor_meta"), "dtype")
