"""Updates of recorded steps in as few passes over the parameters as there can be.

Passes over the parameters cost more than the arithmetic: `w - rate * bmm(a, b)` becomes one `baddbmm` instead
of a product, a scaling and a difference that are each as large as all the models of a chunk.
"""

import math
import operator
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, Node

from idiolect.engines.compiler.graph import dtype, erase, is_like, operands, output_of, shape
from idiolect.engines.compiler.in_place import IN_PLACE
from idiolect.engines.compiler.linear import MULTIPLES, SUMS

aten = torch.ops.aten

_ADDED: dict[Any, Any] = {
    aten.bmm.default: aten.baddbmm.default,
    aten.mm.default: aten.addmm.default,
}
_CHEAP_INNER_SIZE = 32  # a product of two matrices then costs no more than a pass over its result


def fuse_updates(graph: Graph) -> None:
    """Turn sums of tensors and scaled products into operations that do both at once; results come last."""
    output = output_of(graph)
    for result in dict.fromkeys(output.all_input_nodes):
        _postpone(result, output)
    taken_in: set[Node] = set()
    # From the end, since a sum may take in the sums before it.
    for node in reversed([node for node in graph.nodes if node.target in SUMS]):
        if node in taken_in or not _is_sum_of_alike(node):
            continue
        total, change = _base_and_change(node)
        _postpone(total, node)
        with graph.inserting_before(node):
            for term in sorted(_terms(change, SUMS[node.target]), key=lambda term: term.is_product):
                total = _plus(graph, total, term)
                total.meta = node.meta
        node.replace_all_uses_with(total)
        taken_in |= erase(graph, node)


def _postpone(node: Node, user: Node) -> None:
    """Move an update that only `user` needs to just before it, after other uses of what it updates."""
    if node.op != "call_function" or len(node.users) != 1 or node.target not in IN_PLACE:
        return
    user.prepend(node)
    base = node.args[0]
    if isinstance(base, Node):
        _postpone(base, node)


class Term(NamedTuple):
    """A summand: number * factors * direction, the factors much smaller than the direction."""

    direction: Node
    number: float
    factors: tuple[Node, ...]
    is_product: bool  # of two matrices, to be added as it is computed


def _terms(change: Node, number: float, factors: tuple[Node, ...] = ()) -> list[Term]:
    """A change as a sum of terms, as far as that saves a pass."""
    whole = [Term(change, number, factors, _is_better_added(change))]
    only_here = len(change.users) == 1
    if change.target in MULTIPLES:
        big, small = operands(change) if is_like(change.args[0], change) else reversed(operands(change))
        if not is_like(big, change) or (isinstance(small, Node) and not _is_small(small)):
            return whole
        if isinstance(small, Node):
            parts = _terms(big, number, (*factors, small))
        else:
            parts = _terms(big, number * small, factors)
        of_clients = not isinstance(small, Node) or _is_for_clients(small)
        return parts if (only_here and of_clients) or all(part.is_product for part in parts) else whole
    if change.target in SUMS and _is_sum_of_alike(change) and only_here:
        left, right = operands(change)
        if left is right:  # it would be taken apart twice, and what it consists of four times
            return whole
        parts = [*_terms(left, number, factors), *_terms(right, SUMS[change.target] * number, factors)]
        return parts if any(part.is_product for part in parts) else whole
    return whole


def _is_better_added(product: Node) -> bool:
    """Whether a product of matrices is only ever added, once or so cheap that it may be computed again."""
    if product.target not in _ADDED:
        return False
    left, _ = operands(product)
    additions = _additions(product)
    return additions == 1 or (additions < math.inf and shape(left)[-1] <= _CHEAP_INNER_SIZE)


def _additions(change: Node) -> float:
    """How often a change, scaled or not, is added to something; infinity if it is used in other ways too."""
    count = 0.0
    for user in change.users:
        if user.target in MULTIPLES and is_like(change, user):
            count += _additions(user)
        else:
            count += 1 if user.target in SUMS and _is_sum_of_alike(user) else math.inf
    return count


def _is_small(factor: Node) -> bool:
    """Whether a factor is a number, or the same for all rows or all columns of a matrix."""
    return _is_for_clients(factor) or 1 in shape(factor)[-2:]


def _is_for_clients(factor: Node) -> bool:
    """Whether a factor is a number, or a number for each client."""
    return shape(factor)[1:].numel() == 1


def _is_sum_of_alike(node: Node) -> bool:
    return (
        not node.kwargs and all(is_like(part, node) for part in node.args) and dtype(node).is_floating_point
    )


def _base_and_change(node: Node) -> tuple[Node, Node]:
    """The two sides of a sum or difference; what is a matrix product is better added to the other."""
    left, right = operands(node)
    if node.target is aten.add.Tensor and _has_product(left) and not _has_product(right):
        return right, left
    return left, right


def _has_product(change: Node) -> bool:
    return any(term.is_product for term in _terms(change, 1.0))


def _plus(graph: Graph, base: Node, term: Term) -> Node:
    """base + term as one operation."""
    numbers = [factor for factor in term.factors if not shape(factor)]
    factors = [factor for factor in term.factors if shape(factor)]
    scale: Any = term.number
    if numbers:  # a learning rate: as a plain number it costs no pass at all
        value = graph.call_method("item", (_product(graph, numbers, dtype(base)),))
        scale = graph.call_function(operator.mul, (value, term.number))
    if term.is_product:
        left, right = operands(term.direction)
        # A factor of rows belongs to the left side, one of columns to the right, one of both to the smaller.
        left_is_smaller = shape(left).numel() <= shape(right).numel()
        of_left = [
            factor
            for factor in factors
            if shape(factor)[-1] == 1 and (left_is_smaller or shape(factor)[-2:].numel() > 1)
        ]
        left = _product(graph, [left, *of_left], dtype(base))
        right = _product(graph, [right, *(f for f in factors if f not in of_left)], dtype(base))
        add_product = _ADDED[term.direction.target]
        return graph.call_function(add_product, (base, left, right), {"alpha": scale})
    if factors:
        factor = _product(graph, factors, dtype(base))
        return graph.call_function(aten.addcmul.default, (base, term.direction, factor), {"value": scale})
    return graph.call_function(aten.add.Tensor, (base, term.direction), {"alpha": scale})


def _product(graph: Graph, factors: list[Node], wanted: torch.dtype) -> Node:
    """The product of small tensors, taken in the parameters' precision."""
    total, *others = [
        factor
        if dtype(factor) == wanted
        else graph.call_function(aten._to_copy.default, (factor,), {"dtype": wanted})
        for factor in factors
    ]
    for factor in others:
        total = graph.call_function(aten.mul.Tensor, (total, factor))
    return total
