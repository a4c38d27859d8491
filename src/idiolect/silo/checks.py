"""What is looked at before anything that came from the other side is used."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.tree import Params, Tree
from idiolect.errors import UserError
from idiolect.silo.wire import signature


def whole_number(header: Mapping[str, Any], key: str, least: int, most: int) -> int:
    """A whole number of a header, from `least` to `most`."""
    value = header.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise UserError(f"{key}={value!r} is not possible here: it must be from {least} to {most}")
    return value


def fraction(header: Mapping[str, Any], key: str) -> float:
    """A number of a header above 0 and up to 1."""
    value = header.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise UserError(f"{key}={value!r} is not possible here: it must be a part of 1")
    return float(value)


def looks(content: Tree) -> dict[str, Any]:
    """Structure, shapes and types of what a coordinator sends.

    Models are real numbers. What is none, such as a mask of rows, may be as long as another silo's table.
    """
    content_signature = signature(content)
    shapes = {
        name: leaf if "float" in leaf[1] else leaf[1] for name, leaf in content_signature["leaves"].items()
    }
    return {**content_signature, "leaves": shapes}


def require_alike(content: Tree, like: Tree, what: str) -> None:
    """Refuse a message that is not of the structure, shapes and types that were agreed."""
    if content is None or signature(content) != signature(like):
        raise UserError(f"{what} has another structure, shape or type than the method has")


def is_near(content: Tree, like: Tree) -> bool:
    """Whether two trees that look the same are, up to what processors compute differently."""
    pairs = zip(tree.leaves(content), tree.leaves(like), strict=True)
    return all(torch.allclose(one, other, rtol=1e-4, atol=1e-6) for one, other in pairs)


def require_finite(content: Tree, what: str) -> None:
    """Refuse numbers that are none."""
    if not all(bool(leaf.isfinite().all()) for leaf in tree.leaves(content)):
        raise UserError(f"{what} has numbers that are not finite (NaN or infinite numbers)")


def named_tensors(content: Tree) -> Params:
    """Parameters by name, all of them finite; anything else is refused."""
    if not isinstance(content, Mapping) or not all(isinstance(leaf, Tensor) for leaf in content.values()):
        raise UserError("the weights of the model are not tensors by name")
    require_finite(content, "the weights of the model")
    return dict(content)


def rounded(value: float, digits: int) -> float:
    """A number with so many significant digits.

    >>> rounded(0.123456, 3)
    0.123
    """
    return float(f"{value:.{digits}g}") if math.isfinite(value) else value
