"""Trees of tensors: states, messages and parameters, and the few operations that methods need.

A tree is a tensor, or a dict, tuple or NamedTuple of trees; the empty tuple stands for "nothing here". (Lists
of trees are mapped, too, but are no states or messages.)
Parameters are `dict[str, Tensor]`. Every operation returns a new tree; none changes its arguments.

Trees that are combined must have the same names at all places. They need not have them in the same order:
entries of dicts are found by name, and the result has the order of the first tree.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

Params = dict[str, Tensor]
Tree = Any
T = TypeVar("T")

PATH_SEPARATOR = "/"


def map_tree(function: Callable[..., Any], tree: T, *others: Tree) -> T:
    """Apply `function` leaf by leaf to trees of one structure; the result is ordered as the first one."""
    try:
        return _mapped(function, tree, others)
    except _UnlikeError:
        raise ValueError(_difference(tree, others)) from None


class _UnlikeError(Exception):
    """Trees of different structures met."""


def _mapped(function: Callable[..., Any], tree: Any, others: Sequence[Tree]) -> Any:
    """By recursion, which for trees of a few leaves takes a fraction of the time of torch's own."""
    if isinstance(tree, dict):
        names = tree.keys()
        if not all(isinstance(other, dict) and other.keys() == names for other in others):
            raise _UnlikeError
        return {
            name: _mapped(function, node, [other[name] for other in others]) for name, node in tree.items()
        }
    if isinstance(tree, (tuple, list)):
        if not all(type(other) is type(tree) and len(other) == len(tree) for other in others):
            raise _UnlikeError
        nodes = [_mapped(function, node, own) for node, *own in zip(tree, *others, strict=True)]
        return type(tree)(*nodes) if hasattr(tree, "_fields") else type(tree)(nodes)
    return function(tree, *others)


def _difference(tree: Tree, others: Sequence[Tree]) -> str:
    """What a user's method has to mend, by the names of the fields."""
    expected = to_named(tree).keys()
    odd = next((names for other in others if (names := expected ^ to_named(other).keys())), ())
    return f"two trees that belong together differ in: {', '.join(sorted(odd)) or 'their types'}"


def leaves(tree: Tree, like: Tree | None = None) -> list[Tensor]:
    """The tensors of a tree, in its own order, or in that of another tree of the same structure."""
    found: list[Tensor] = []
    if like is None:
        map_tree(found.append, tree)
    else:
        map_tree(lambda _, leaf: found.append(leaf), like, tree)
    return found


def with_leaves(like: T, values: Iterable[Tensor]) -> T:
    """A tree of the structure of another, with these leaves, in the other's order."""
    following = iter(values)
    return map_tree(lambda _: next(following), like)


def add(a: T, b: T) -> T:
    """a + b."""
    return map_tree(torch.add, a, b)


def subtract(a: T, b: T) -> T:
    """a - b."""
    return map_tree(torch.sub, a, b)


def scale(tree: T, factor: Tensor | float) -> T:
    """factor * tree."""
    return map_tree(lambda leaf: leaf * factor, tree)


def step(a: T, rate: Tensor | float, direction: T) -> T:
    """a - rate * direction: one step of descent."""
    return map_tree(lambda x, g: x - rate * g, a, direction)


def advance(a: T, rate: Tensor | float, direction: T) -> T:
    """a + rate * direction."""
    return map_tree(lambda x, d: x + rate * d, a, direction)


def add_multiple(a: T, factor: Tensor, b: T) -> T:
    """a + factor * b, in one pass over the parameters also where nothing is recorded."""
    return map_tree(lambda x, y: torch.addcmul(x, factor, y), a, b)


def interpolate(a: T, b: T, weight: Tensor | float) -> T:
    """weight * a + (1 - weight) * b."""
    return map_tree(lambda x, y: _between(y, x, weight), a, b)


def pull(a: T, b: T, strength: Tensor | float) -> T:
    """a - strength * (a - b): one step of descent on half the squared distance to b; exactly a for 0."""
    return map_tree(lambda x, y: _between(x, y, strength), a, b)


def _between(x: Tensor, y: Tensor, weight: Tensor | float) -> Tensor:
    """x + weight * (y - x), in one pass over the parameters instead of four."""
    return torch.lerp(x, y, weight.to(x.dtype) if isinstance(weight, Tensor) else weight)


def dot(a: Tree, b: Tree) -> Tensor:
    """The inner product of two trees."""
    return torch.stack(leaves(map_tree(lambda x, y: (x * y).sum(), a, b))).sum()


def squared_norm(tree: Tree) -> Tensor:
    """The squared Euclidean norm of a tree."""
    return dot(tree, tree)


def zeros_like(tree: T) -> T:
    """A tree of zeros of the same shape."""
    return map_tree(torch.zeros_like, tree)


def scalar_of(params: Params) -> Tensor:
    """A scalar of the parameters' type (and, under vmap, of their batch)."""
    return next(iter(params.values())).reshape(-1)[0]


def where(condition: Tensor, a: T, b: T) -> T:
    """a where the condition holds, else b; the condition is broadcast over trailing axes."""

    def choose(x: Tensor, y: Tensor) -> Tensor:
        return torch.where(condition.reshape(condition.shape + (1,) * (x.ndim - condition.ndim)), x, y)

    return map_tree(choose, a, b)


def row(tree: T, index: Tensor | int) -> T:
    """Entry `index` of every leaf's first axis (also under vmap)."""
    if isinstance(index, Tensor):  # which as a place of its own would be asked for its value
        return map_tree(lambda leaf: leaf[index[None]][0], tree)
    return map_tree(lambda leaf: leaf[index], tree)


def select(stacked: T, chosen: Tensor) -> T:
    """The entries of the first axis that a mask or an index names."""
    return map_tree(lambda leaf: leaf[chosen], stacked)


def stack(trees: list[T]) -> T:
    """Stack trees of one structure along a new first axis."""
    return map_tree(lambda *ls: torch.stack(ls), trees[0], *trees[1:])


def concatenate(trees: list[T]) -> T:
    """Join stacked trees along their first axis."""
    return trees[0] if len(trees) == 1 else map_tree(lambda *ls: torch.cat(ls), trees[0], *trees[1:])


def repeat(tree: T, count: int) -> T:
    """`count` copies of a tree along a new first axis, without copying memory."""
    return map_tree(lambda leaf: leaf.expand(count, *leaf.shape), tree)


def weighted_sum(stacked: T, weights: Tensor) -> T:
    """The sum over the first axis, each entry times its weight; of whole numbers, counters, the largest."""

    def total(leaf: Tensor) -> Tensor:
        if not leaf.is_floating_point():
            return leaf.amax(0)
        return torch.tensordot(weights.to(leaf.dtype), leaf, dims=1)

    return map_tree(total, stacked)


def add_sums(a: T, b: T) -> T:
    """The weighted sum of all from those of two parts."""
    return map_tree(lambda x, y: x + y if x.is_floating_point() else torch.maximum(x, y), a, b)


def flatten(tree: Tree, like: Tree | None = None) -> Tensor:
    """All leaves as one vector.

    A vector has no names: of trees whose vectors are compared, all but one are given that one as `like`.
    """
    return torch.cat([leaf.reshape(-1) for leaf in leaves(tree, like)])


def flatten_rows(stacked: Tree, like: Tree | None = None) -> Tensor:
    """A stacked tree as a matrix, one row for each entry of the first axis; `like` as for `flatten`."""
    rows = [leaf.reshape(leaf.shape[0], leaf.shape[1:].numel()) for leaf in leaves(stacked, like)]
    return torch.cat(rows, dim=1)


def unflatten(vector: Tensor, like: T) -> T:
    """The inverse of `flatten`, and, for a matrix, of `flatten_rows`.

    `like` is a single tree, in the order in which the vector was made: `flatten(tree, like)`.
    """
    size = sum(leaf.numel() for leaf in leaves(like))
    if vector.shape[-1] != size:
        raise ValueError(f"a vector of {vector.shape[-1]} entries is no tree of {size}")
    start = 0

    def take(leaf: Tensor) -> Tensor:
        nonlocal start
        part = vector[..., start : start + leaf.numel()]
        start += leaf.numel()
        return part.reshape(vector.shape[:-1] + leaf.shape)

    return map_tree(take, like)


def to_named(tree: Tree) -> dict[str, Tensor]:
    """A flat dictionary `field/field/name -> tensor`: what a checkpoint or a wire carries."""
    named: dict[str, Tensor] = {}

    def visit(node: Tree, path: tuple[str, ...]) -> None:
        if isinstance(node, Tensor):
            named[PATH_SEPARATOR.join(path)] = node
        elif isinstance(node, Mapping):
            for key, value in node.items():
                visit(value, (*path, key))
        elif isinstance(node, tuple):
            names = getattr(node, "_fields", [str(i) for i in range(len(node))])
            for name, value in zip(names, node, strict=True):
                visit(value, (*path, name))
        else:
            raise TypeError(
                f"{PATH_SEPARATOR.join(path) or 'the tree'} is a {type(node).__name__}: states and messages "
                "hold tensors, dicts, tuples and NamedTuples only"
            )

    visit(tree, ())
    return named


def from_named(named: Mapping[str, Tensor], like: T) -> T:
    """The inverse of `to_named`; `like` gives the structure, `named` the values (shapes may differ)."""
    paths = to_named(like)
    if paths.keys() != named.keys():
        odd = sorted(paths.keys() ^ named.keys())
        raise ValueError(f"the stored fields and the expected ones differ in: {', '.join(odd)}")
    return with_leaves(like, (named[path] for path in paths))


def count_bits(message: Tree) -> int:
    """The size of a message as it stands: every element at its own width."""
    return sum(leaf.numel() * leaf.element_size() * 8 for leaf in leaves(message))
