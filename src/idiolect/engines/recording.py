"""A vmapped step, recorded as a flat list of tensor operations and tidied up, to be replayed.

Replaying saves the transforms' bookkeeping. The tidying saves passes over the parameters, which cost more
than the arithmetic: `w - rate * bmm(a, b)`, with w not needed any more, becomes one in-place `baddbmm_`
instead of a product, a scaling and a difference that are each as large as all the models of a chunk.
Every rewrite keeps the value of every result; nothing here knows about methods or models.
"""

import copy
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.graph import CodeGen

aten = torch.ops.aten

FlatStep = Callable[..., list[Tensor]]

# Operations that return their first argument when the shape stays the same.
_RESHAPES = {aten.view.default, aten._unsafe_view.default, aten.expand.default}
# Whether the step's number passes the test "<operation> 0": in the first step, in later ones.
_STEP_TESTS = {aten.eq.Scalar: (True, False), aten.ne.Scalar: (False, True), aten.gt.Scalar: (False, True)}
_MULTIPLICATIONS = {aten.mul.Tensor, aten.mul.Scalar}
_IN_PLACE = {
    aten.baddbmm.default: aten.baddbmm_.default,
    aten.addcmul.default: aten.addcmul_.default,
    aten.sub.Tensor: aten.sub_.Tensor,
}


class Recording(NamedTuple):
    """A step on flat tensors, as it is first in a round and as it is later. A call uses up what changes."""

    first: FlatStep
    later: FlatStep


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


def record(step: FlatStep, arguments: list[Tensor], changing: int) -> Recording:
    """Record a step. It returns the first `changing` arguments anew; the last one is its number."""
    # Copies: were one tensor given twice, the recording could not tell its two roles apart.
    recorded = make_fx(step)(*(argument.clone() for argument in arguments))
    return Recording(_tidied(recorded, changing, first=True), _tidied(recorded, changing, first=False))


def _tidied(recorded: GraphModule, changing: int, *, first: bool) -> FlatStep:
    graph = copy.deepcopy(recorded.graph)
    graph.set_codegen(CodeGen())  # flat arguments: no trees to take apart in every step
    _settle_step_tests(graph, first=first)
    _remove_identities(graph)
    graph.eliminate_dead_code()
    _fuse_updates(graph, changing)
    return GraphModule(recorded, graph).forward


def _settle_step_tests(graph: Graph, *, first: bool) -> None:
    """Decide what depends only on whether this is the first step, so that later ones skip its cost."""
    *_, step = (node for node in graph.nodes if node.op == "placeholder")
    for test in list(step.users):
        if test.target not in _STEP_TESTS or test.args[1] != 0:
            continue
        holds = _STEP_TESTS[test.target][0 if first else 1]
        for choice in list(test.users):
            if choice.target is aten.where.self and choice.args[0] is test:
                chosen = choice.args[1 if holds else 2]
                if _shape(chosen) == _shape(choice) and _dtype(chosen) == _dtype(choice):
                    choice.replace_all_uses_with(chosen)


def _remove_identities(graph: Graph) -> None:
    """Drop reshapes to the same shape, multiplications by one and double transpositions."""
    for node in graph.nodes:
        source = node.args[0] if node.args else None
        if not isinstance(source, Node):
            continue
        if node.target in _RESHAPES:
            if _shape(node) == _shape(source):
                node.replace_all_uses_with(source)
        elif node.target is aten.mul.Scalar:
            if node.args[1] == 1 and _dtype(node) == _dtype(source):
                node.replace_all_uses_with(source)
        elif node.target is source.target is aten.transpose.int and {*node.args[1:]} == {*source.args[1:]}:
            node.replace_all_uses_with(_operands(source)[0])


def _fuse_updates(graph: Graph, changing: int) -> None:
    """Turn every result `old - factor * direction` into one operation, in place where `old` is used up."""
    olds = [node for node in graph.nodes if node.op == "placeholder"][:changing]
    output = next(node for node in graph.nodes if node.op == "output")
    results = list(output.args[0])
    for place, result in enumerate(results):
        if _is_update(result, output):
            # At the end, after every other use of the old value.
            with graph.inserting_before(output):
                results[place] = _difference(graph, *result.args)
    output.args = (results,)
    graph.eliminate_dead_code()
    for old, result in zip(olds, results, strict=True):
        if result.target in _IN_PLACE and result.args[0] is old and _is_last_use(old, result):
            result.target = _IN_PLACE[result.target]


def _is_update(result: Node, output: Node) -> bool:
    """Whether a result is a difference of two tensors of its shape that nothing else needs."""
    if result.target is not aten.sub.Tensor or result.kwargs or list(result.users) != [output]:
        return False
    return all(isinstance(arg, Node) and _shape(arg) == _shape(result) for arg in _operands(result))


def _difference(graph: Graph, old: Node, change: Node) -> Node:
    """old - change as one operation, with the factors of `change` drawn out of it."""
    direction, number, factors, private = _factorised(change)
    factor = _product(graph, factors, _dtype(old))
    if direction.target is aten.bmm.default and private:
        left, right = _operands(direction)
        if factor is not None:
            # Scale whichever side of the product is smaller: both are smaller than the parameters.
            if _shape(left).numel() <= _shape(right).numel():
                left = graph.call_function(aten.mul.Tensor, (left, factor))
            else:
                right = graph.call_function(aten.mul.Tensor, (right, factor))
        return graph.call_function(aten.baddbmm.default, (old, left, right), {"alpha": -number})
    if factor is not None:
        return graph.call_function(aten.addcmul.default, (old, direction, factor), {"value": -number})
    return graph.call_function(aten.sub.Tensor, (old, direction), {"alpha": number})


def _factorised(change: Node) -> tuple[Node, float, list[Node], bool]:
    """A product as direction * number * small tensors, and whether the direction is needed only here."""
    shape, number, factors = _shape(change), 1.0, []
    private = len(change.users) == 1
    while change.target in _MULTIPLICATIONS:
        big, small = _operands(change)
        if not (isinstance(big, Node) and _shape(big) == shape):
            big, small = small, big
        if not (isinstance(big, Node) and _shape(big) == shape):
            break
        if not isinstance(small, Node):
            number *= small
        elif all(size == 1 for size in _shape(small)[1:]):
            factors.append(small)
        else:
            break
        change = big
        private = private and len(change.users) == 1
    return change, number, factors, private


def _product(graph: Graph, factors: list[Node], dtype: torch.dtype) -> Node | None:
    """The product of small tensors, taken in the parameters' precision."""
    total: Node | None = None
    for factor in factors:
        if _dtype(factor) != dtype:
            factor = graph.call_function(aten._to_copy.default, (factor,), {"dtype": dtype})
        total = factor if total is None else graph.call_function(aten.mul.Tensor, (total, factor))
    return total


def _is_last_use(old: Node, update: Node) -> bool:
    """Whether nothing reads the old value, or a view of it, in or after its update, except as its base."""
    if old in update.args[1:]:
        return False
    return all(
        user is update or (user.op != "output" and user < update and not _outlives(user, update))
        for user in old.users
    )


def _outlives(user: Node, update: Node) -> bool:
    """Whether `user` is a view of the updated tensor that is read in or after the update."""
    if not _is_view(user):
        return False
    return any(later.op == "output" or later >= update or _outlives(later, update) for later in user.users)


def _is_view(node: Node) -> bool:
    """Whether a node's result may share its argument's memory."""
    schema: Any = getattr(node.target, "_schema", None)
    if schema is None or node.target is aten._unsafe_view.default:
        return True
    return any(result.alias_info is not None for result in schema.returns)


def _operands(node: Node) -> tuple[Any, ...]:
    return node.args


def _shape(node: Node) -> torch.Size:
    return torch.Size(node.meta["tensor_meta"].shape)


def _dtype(node: Node) -> torch.dtype:
    return node.meta["tensor_meta"].dtype
