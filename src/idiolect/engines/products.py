"""Products of a batch with models, where they can stand for passes over the models' parameters.

The product of a batch of 20 rows with a layer of 784 x 200 parameters is 40 times smaller than the layer. So
what is linear in the parameters is better done to the products, in particular if these are there already.
"""

from itertools import permutations
from typing import Any

import torch
from torch.fx import Graph, Node

from idiolect.engines.tidying import dtype, is_like, shape

aten = torch.ops.aten

_TRANSPOSITION = (1, 2)  # the axes of a stack of matrices


def mix_products(graph: Graph) -> None:
    """Turn x (mixture of w and v) into the mixture of x w and x v, where one of these is there already."""
    for node in _operations(graph, aten.bmm.default):
        batch, factor = node.args
        is_transposed = _is_transposition(factor)
        mixture = factor.args[0] if is_transposed else factor
        if mixture.target is not aten.lerp.Tensor or len(factor.users) > 1 or len(mixture.users) > 1:
            continue
        *models, weight = mixture.args
        known = [_earlier_product(batch, model, node, is_transposed=is_transposed) for model in models]
        if not any(known) or shape(weight)[1:].numel() > 1:
            continue
        with graph.inserting_before(node):
            products = [
                product or _product(graph, batch, model, is_transposed=is_transposed)
                for product, model in zip(known, models, strict=True)
            ]
            mixed = _call(graph, aten.lerp.Tensor, (*products, weight), like=node)
        node.replace_all_uses_with(mixed)


def shrink_inner_products(graph: Graph) -> None:
    """Turn ⟨d, a b⟩, a sum over parameters, into ⟨aᵀ, b dᵀ⟩, a sum over a batch."""
    for node in _operations(graph, aten.sum.dim_IntList):
        summand, axes, *options = node.args
        if summand.target is not aten.mul.Tensor or len(summand.users) > 1 or options or node.kwargs:
            continue
        pairs = [
            (direction, product)
            for direction, product in permutations(summand.args)
            if is_like(direction, summand)
            and is_like(product, summand)
            and product.target is aten.bmm.default
        ]
        if not pairs or tuple(axes) != _TRANSPOSITION:
            continue
        direction, product = pairs[0]
        a, b = product.args
        if shape(a)[-1] >= min(shape(product)[1:]):
            continue
        with graph.inserting_before(node):
            smaller = _product_with_difference(graph, b, direction, node)
            turned = _call(graph, aten.transpose.int, (a, *_TRANSPOSITION), like=smaller)
            total = _call(graph, aten.mul.Tensor, (turned, smaller), like=smaller)
            total = _call(graph, aten.sum.dim_IntList, (total, axes), like=node)
        node.replace_all_uses_with(total)


def _product_with_difference(graph: Graph, batch: Node, direction: Node, before: Node) -> Node:
    """batch directionᵀ; if the direction is v - w, from the products with v and w where there is one."""
    if direction.target is aten.sub.Tensor and not direction.kwargs:
        models: Any = direction.args
        known = [_earlier_product(batch, model, before, is_transposed=True) for model in models]
        if any(known):
            products = [
                product or _product(graph, batch, model, is_transposed=True)
                for product, model in zip(known, models, strict=True)
            ]
            return _call(graph, aten.sub.Tensor, tuple(products), like=products[0])
    return _product(graph, batch, direction, is_transposed=True)


def _earlier_product(batch: Node, model: Node, before: Node, *, is_transposed: bool) -> Node | None:
    """The product of a batch and a model, if there is one already."""
    for product in batch.users:
        if product.target is aten.bmm.default and product.args[0] is batch and product < before:
            factor: Any = product.args[1]
            if (_is_transposition(factor) and factor.args[0] is model) if is_transposed else factor is model:
                return product
    return None


def _product(graph: Graph, batch: Node, model: Node, *, is_transposed: bool) -> Node:
    """The product of a batch and a model."""
    if is_transposed:
        model = _call(graph, aten.transpose.int, (model, *_TRANSPOSITION), like=model)
        *clients, rows, columns = shape(model)
        model.meta = {"tensor_meta": torch.empty(*clients, columns, rows, dtype=dtype(model), device="meta")}
    product = graph.call_function(aten.bmm.default, (batch, model))
    result = torch.empty(*shape(batch)[:-1], shape(model)[-1], dtype=dtype(model), device="meta")
    product.meta = {"tensor_meta": result}
    return product


def _is_transposition(node: Any) -> bool:
    if node.target is not aten.transpose.int or len(shape(node)) != 3:
        return False
    return {axis % 3 for axis in node.args[1:]} == {*_TRANSPOSITION}


def _call(graph: Graph, operation: Any, arguments: tuple[Any, ...], like: Node) -> Node:
    """An operation whose result has the shape of another's."""
    node = graph.call_function(operation, arguments)
    node.meta = like.meta
    return node


def _operations(graph: Graph, target: Any) -> list[Any]:
    return [node for node in graph.nodes if node.target is target]
