"""The inputs of rows: one tensor, or several by name or in order, all with the rows along their first axis.

A model gets one tensor as its argument, several in order as arguments, several by name as keywords:

    ids [rows, length]                            ->  model(ids)
    (ids, lengths)                                ->  model(ids, lengths)
    {"ids": ids, "mask": mask}                    ->  model(ids=ids, mask=mask)
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from idiolect.core import tree

Inputs = Any  # Tensor | dict[str, Tensor] | tuple[Tensor, ...]


def as_arguments(inputs: Inputs) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """What a model is called with."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (inputs if isinstance(inputs, tuple) else (inputs,)), {}


def row_count(inputs: Inputs) -> int:
    """How many rows there are."""
    return len(tree.leaves(inputs)[0])


def take_rows(inputs: Inputs, rows: Tensor | slice) -> Inputs:
    """Some of the rows."""
    return tree.map_tree(lambda leaf: leaf[rows], inputs)


def in_real_precision(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    """The same inputs, real numbers in some precision; codes and masks are what they are."""
    return tree.map_tree(lambda leaf: leaf.to(dtype) if leaf.is_floating_point() else leaf, inputs)


def row_shapes(inputs: Inputs) -> Any:
    """The shape of one row of each input, as plain data."""
    return tree.map_tree(lambda leaf: list(leaf.shape[1:]), inputs)


def shown_shapes(inputs: Inputs) -> str:
    """The shapes of inputs for a sentence.

    >>> shown_shapes(torch.zeros(2, 3)), shown_shapes({"ids": torch.zeros(2, 4), "mask": torch.zeros(2, 4)})
    ('(2, 3)', 'ids (2, 4), mask (2, 4)')
    """
    named = tree.to_named(inputs)
    return ", ".join(f"{name} {tuple(leaf.shape)}".strip() for name, leaf in named.items())
