"""The gradient of a function of a tree, inside and outside of torch's transforms."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack
from torch.func import grad
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _get_current_dispatch_mode as _current_dispatch_mode

from idiolect.core import tree

T = TypeVar("T")
M = TypeVar("M")


def is_transformed() -> bool:
    """Whether values are not at hand: inside vmap, another gradient, or a recording."""
    return peek_interpreter_stack() is not None


def has_kernels() -> bool:
    """Whether operations are only computed, so that any kernel of torch can be taken; not counted, say."""
    return not is_transformed() and _current_dispatch_mode() is None


def gradient_and_more(function: Callable[[T], tuple[Tensor, M]], at: T) -> tuple[T, M]:
    """The gradient of the first of a function's results, and the second: a tree with tensors in it."""
    kept: list[Any] = []  # the leaves and the structure of the second, some of which are no tensors

    def value(at: T) -> tuple[Tensor, list[Tensor]]:
        result, more = function(at)
        kept[:] = pytree.tree_flatten(more)
        return result, [leaf for leaf in kept[0] if isinstance(leaf, Tensor)]

    if not is_transformed():
        slopes = gradient(lambda at: value(at)[0], at)
        return slopes, pytree.tree_unflatten(*kept)
    slopes, tensors = grad(value, has_aux=True)(at)
    taken = iter(tensors)
    leaves = [next(taken) if isinstance(leaf, Tensor) else leaf for leaf in kept[0]]
    return slopes, pytree.tree_unflatten(leaves, kept[1])


def gradient(function: Callable[[T], Tensor], at: T) -> T:
    """The gradient of a scalar function of a tree, as a tree of the same structure."""
    leaves = tree.leaves(at)
    if not leaves:  # a part of a model may be empty
        return at
    if is_transformed():
        return grad(function)(at)
    # Elsewhere plain autograd takes the same derivatives, in half the time where operations are small.
    variables = [leaf.detach().requires_grad_() for leaf in leaves]
    with torch.enable_grad():
        value = function(tree.with_leaves(at, variables))
    # Of a layer that a model has and does not use, nothing is in the function.
    if not value.requires_grad:
        return tree.zeros_like(at)
    return tree.with_leaves(at, torch.autograd.grad(value, variables, materialize_grads=True))
