"""Products of a batch with models, where they can stand for passes over the models' parameters.

The product of a batch of 20 rows with a layer of 784 x 200 parameters is 40 times smaller than the layer. So
what is linear in the parameters is better done to the products, in particular if these are there already.
"""

from collections import defaultdict
from itertools import permutations
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, Node

from idiolect.engines.compiler.graph import call, is_like, operands, shape
from idiolect.engines.compiler.linear import is_thin, summands

aten = torch.ops.aten

_TRANSPOSITION = (1, 2)  # the axes of a stack of matrices


def shrink_inner_products(graph: Graph) -> None:
    """Turn ⟨d, a b⟩, a sum over parameters, into ⟨aᵀ, b dᵀ⟩, a sum over a batch."""
    for node in _operations(graph, aten.sum.dim_IntList):
        summand, axes, *options = node.args
        if summand.target is not aten.mul.Tensor or len(summand.users) > 1 or options or node.kwargs:
            continue
        pairs = [
            (direction, product)
            for direction, product in permutations(summand.args)
            if is_like(direction, summand) and is_like(product, summand) and is_thin(product)
        ]
        if not pairs or tuple(axes) != _TRANSPOSITION:
            continue
        direction, product = pairs[0]
        a, b = product.args
        with graph.inserting_before(node):
            smaller = call(graph, aten.bmm.default, b, _turned(graph, direction))
            total = call(graph, aten.mul.Tensor, _turned(graph, a), smaller)
            total = call(graph, aten.sum.dim_IntList, total, axes)
        node.replace_all_uses_with(total)


def distribute_products(graph: Graph) -> None:
    """Turn x (w + v) into x w + x v, where at most one of these products is not there already.

    This goes through all sums, multiples and mixtures of models down to what a step adds to a model: a
    product a b whose inner size is that of a batch, so that x a b is cheap. Then models that are only
    multiplied by batches, such as those after the inner steps of a method, are never made.
    """
    known: dict[_Factor, dict[Node, Node]] = defaultdict(dict)
    for node in _operations(graph, aten.bmm.default):
        batch, right = node.args
        factor = _Factor(batch, is_transposed=_is_transposition(right))
        model = right.args[0] if factor.is_transposed else right
        products = known[factor]
        parts = _unknown_parts(model, products)
        if _saves_passes(node, model, parts):
            with graph.inserting_before(node):
                for part in parts:
                    products[part] = factor.multiply(graph, part, products)
            node.replace_all_uses_with(products[model])
        products.setdefault(model, node)


def _unknown_parts(model: Node, products: dict[Node, Node]) -> list[Node]:
    """A model and what it is a combination of, down to what has a product already; in the graph's order."""
    parts: set[Node] = set()
    unexplored = [model]
    while unexplored:
        part = unexplored.pop()
        if part not in products and part not in parts:
            parts.add(part)
            unexplored += summands(part)
    return sorted(parts)


def _saves_passes(product: Node, model: Node, parts: list[Node]) -> bool:
    """Whether to make a product with a model from the products with its parts.

    It may take one product with a whole model, as before, if the model itself need not be made then.
    """
    small = [part for part in parts if is_thin(part)]
    full = [part for part in parts if part not in small and not summands(part)]
    if full == [model] or shape(product).numel() > shape(model).numel():
        return False
    return len(small) <= 1 and len(full) <= (1 if _is_only_multiplied_and_added(model) else 0)


class _Factor(NamedTuple):
    """What models are multiplied with: batch model, or batch modelᵀ."""

    batch: Node
    is_transposed: bool

    def multiply(self, graph: Graph, model: Node, known: dict[Node, Node]) -> Node:
        """The product with a model; for a combination of models, the combination of their products."""
        if is_thin(model):  # x (a b) = (x a) b, and (a b)ᵀ = bᵀ aᵀ
            first, second = reversed(model.args) if self.is_transposed else model.args
            return self._times(graph, self._times(graph, self.batch, first), second)
        parts = summands(model)
        if not parts:
            return self._times(graph, self.batch, model)
        arguments = (known[entry] if entry in parts else entry for entry in operands(model))
        return call(graph, model.target, *arguments)

    def _times(self, graph: Graph, left: Node, right: Any) -> Node:
        turned = _turned(graph, right) if self.is_transposed else right
        return call(graph, aten.bmm.default, left, turned)


def _is_only_multiplied_and_added(model: Node) -> bool:
    """Whether nothing but products and sums needs a model."""
    return all(
        user.target is aten.bmm.default
        or model in summands(user)
        or (_is_transposition(user) and all(next_.target is aten.bmm.default for next_ in user.users))
        for user in model.users
    )


def _turned(graph: Graph, matrices: Node) -> Node:
    """The transposed matrices."""
    return call(graph, aten.transpose.int, matrices, *_TRANSPOSITION)


def _is_transposition(node: Any) -> bool:
    if node.target is not aten.transpose.int or len(shape(node)) != 3:
        return False
    return {axis % 3 for axis in node.args[1:]} == {*_TRANSPOSITION}


def _operations(graph: Graph, target: Any) -> list[Any]:
    return [node for node in graph.nodes if node.target is target]
