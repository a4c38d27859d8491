"""Linear combinations of stacks of matrices in recorded steps: sums, mixtures and multiples of models."""

import math
from collections import defaultdict
from functools import reduce
from typing import Any

import torch
from torch.fx import Graph, Node

from idiolect.engines.compiler.graph import call, is_like, operands, shape

aten = torch.ops.aten

SUMS: dict[Any, float] = {aten.add.Tensor: 1.0, aten.sub.Tensor: -1.0}  # the sign of the second operand
MULTIPLES = {aten.mul.Scalar, aten.mul.Tensor}
_MIXTURES = {aten.lerp.Scalar, aten.lerp.Tensor}

Coefficient = Node | float


def summands(node: Node) -> list[Node]:
    """The stacks of matrices that a node is a linear combination of; none if it is something else."""
    if node.op != "call_function" or node.kwargs:
        return []
    *parts, last = operands(node)
    if node.target in MULTIPLES:
        matrices = [part for part in operands(node) if _is_summand(part, node)]
        return matrices if len(matrices) == 1 and any(map(_is_number, node.args)) else []
    if node.target in SUMS:
        parts.append(last)
    elif node.target not in _MIXTURES or not _is_number(last):
        return []
    return parts if all(_is_summand(part, node) for part in parts) else []


def is_multiple(node: Node) -> bool:
    """Whether a node is a stack of matrices times one number."""
    if node.target not in MULTIPLES or not summands(node):
        return False
    return any(not isinstance(factor, Node) or not shape(factor) for factor in node.args)


def is_thin(node: Node) -> bool:
    """Whether a node is a product of matrices that are together no larger: what a batch adds to a layer."""
    if node.target is not aten.bmm.default:
        return False
    return sum(shape(side).numel() for side in operands(node)) <= shape(node).numel()


def combine_inner_steps(graph: Graph) -> None:
    """Let a model move once for several steps on one batch x: (w + a x)/2 + b x becomes w/2 + (a/2 + b) x."""
    taken_apart: set[Node] = set()
    for node in reversed(list(graph.nodes)):
        if node in taken_apart or not summands(node):
            continue
        with graph.inserting_before(node):
            combination = _Combination(graph, node)
            if any(len(lefts) > 1 for lefts in combination.products.values()):
                node.replace_all_uses_with(combination.total())
        taken_apart |= combination.taken_apart


class _Combination:
    """A linear combination, taken apart: matrices, and products of matrices by their right side."""

    def __init__(self, graph: Graph, node: Node) -> None:
        self.graph = graph
        self.matrices: dict[Node, Coefficient] = {}
        self.products: dict[Node, dict[Node, Coefficient]] = defaultdict(dict)
        self.taken_apart: set[Node] = set()
        parts: dict[Node, Coefficient] = {node: 1.0}
        while parts:
            part = max(parts)  # the last of the graph: what it is a part of has been here
            coefficient = parts.pop(part)
            is_needed_elsewhere = part is not node and not self.taken_apart.issuperset(part.users)
            if summands(part) and not is_needed_elsewhere:
                self.taken_apart.add(part)
                for each, weight in _weighted_summands(graph, part):
                    self._add(parts, each, _times(graph, coefficient, weight))
            elif is_thin(part) and not is_needed_elsewhere:
                left, right = operands(part)
                self._add(self.products[right], left, coefficient)
            else:
                self._add(self.matrices, part, coefficient)

    def _add(self, terms: dict[Node, Coefficient], node: Node, factor: Coefficient) -> None:
        terms[node] = _plus(self.graph, terms[node], factor) if node in terms else factor

    def total(self) -> Node:
        """The combination, with one product for each right side."""
        parts = [_weighted_sum(self.graph, self.matrices)] if self.matrices else []
        for right, lefts in self.products.items():
            parts.append(call(self.graph, aten.bmm.default, _weighted_sum(self.graph, lefts), right))
        return reduce(lambda one, other: call(self.graph, aten.add.Tensor, one, other), parts)


def _weighted_summands(graph: Graph, node: Node) -> list[tuple[Node, Coefficient]]:
    """The parts of a linear combination with their coefficients."""
    parts = summands(node)
    if node.target in MULTIPLES:
        (factor,) = (entry for entry in operands(node) if entry is not parts[0])
        return [(parts[0], factor)]
    if node.target in SUMS:
        return [(parts[0], 1.0), (parts[1], SUMS[node.target])]
    *_, weight = operands(node)
    rest = call(graph, aten.rsub.Scalar, weight, 1) if isinstance(weight, Node) else 1 - weight
    return [(parts[0], rest), (parts[1], weight)]


def _weighted_sum(graph: Graph, unsorted: dict[Node, Coefficient]) -> Node:
    """Matrices times their coefficients, the first argument of a step first: it may be overwritten."""
    terms = {node: unsorted[node] for node in sorted(unsorted)}
    numbers = [number for number in terms.values() if not isinstance(number, Node)]
    if len(terms) == len(numbers) == 2 and math.isclose(sum(numbers), 1):
        return call(graph, aten.lerp.Scalar, *terms, numbers[1])  # one pass
    scaled = [
        node if coefficient == 1 else call(graph, aten.mul.Tensor, node, coefficient)
        for node, coefficient in terms.items()
    ]
    return reduce(lambda one, other: call(graph, aten.add.Tensor, one, other), scaled)


def _times(graph: Graph, one: Coefficient, other: Coefficient) -> Coefficient:
    if 1 in (one, other):
        return one if other == 1 else other
    if isinstance(one, Node) or isinstance(other, Node):
        return call(graph, aten.mul.Tensor, one, other)
    return one * other


def _plus(graph: Graph, one: Coefficient, other: Coefficient) -> Coefficient:
    if isinstance(one, Node) or isinstance(other, Node):
        return call(graph, aten.add.Tensor, one, other)
    return one + other


def _is_number(factor: Any) -> bool:
    """Whether a factor is a number, or a number for each client."""
    return not isinstance(factor, Node) or not shape(factor) or shape(factor)[1:] == (1, 1)


def _is_summand(part: Any, node: Node) -> bool:
    return is_like(part, node) and len(shape(node)) == 3
