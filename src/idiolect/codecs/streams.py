"""Codecs over messages: a tree of tensors compressed one by one (`per_tensor`) or as one vector (`flat`).

A tree holds at least one tensor: a part of a message that is empty is not sent.
"""

from collections.abc import Iterable
from typing import TypeVar, get_args

import numpy as np
import torch
from torch import Tensor

from idiolect.codecs.bits import BitReader, pack
from idiolect.codecs.codec import Codec, Encoded
from idiolect.core import rng
from idiolect.core.transport import Scope
from idiolect.core.tree import Tree, leaves, map_tree, repeat, row
from idiolect.errors import UserError

T = TypeVar("T")


def compress_tree_rows(
    codec: Codec, stacked: T, scope: Scope = "per_tensor", keys: Tensor | None = None
) -> tuple[T, Tensor]:
    """What receivers get of a tree stacked over clients, and the bits of each client's message, int64."""
    compressed = [
        codec.compress_rows(rows, None if keys is None else rng.fold(keys, index))
        for index, rows in enumerate(_vectors(stacked, scope))
    ]
    bits = torch.stack([codec.compressed_bits(rows) for rows in compressed]).sum(0)
    return _rebuild(compressed, stacked, scope), bits


def compress_tree(
    codec: Codec, tree: T, scope: Scope = "per_tensor", key: Tensor | None = None
) -> tuple[T, int]:
    """What a receiver gets of one tree, and the bits of the message."""
    keys = None if key is None else key.reshape(1)
    compressed, bits = compress_tree_rows(codec, repeat(tree, 1), scope, keys)
    return row(compressed, 0), int(bits)


def encode_tree(codec: Codec, tree: Tree, scope: Scope = "per_tensor", key: Tensor | None = None) -> Encoded:
    """The message that carries a tree: those of its vectors without a gap, in the order of `leaves`."""
    compressed, _ = compress_tree(codec, tree, scope, key)
    return write_tree(codec, compressed, scope)


def write_tree(codec: Codec, compressed: Tree, scope: Scope = "per_tensor") -> Encoded:
    """The message that carries a tree which was compressed already."""
    messages = [codec.write(rows[0]) for rows in _vectors(repeat(compressed, 1), scope)]
    bits = np.concatenate(messages)
    return Encoded(pack(bits), len(bits))


def decode_tree(codec: Codec, payload: bytes, like: T, scope: Scope = "per_tensor") -> T:
    """What a message carries; `like` is any tree of the same structure, shapes and dtypes."""
    template = repeat(like, 1)
    reader = BitReader(payload)
    vectors = [codec.read(reader, rows.shape[1], rows.dtype)[None] for rows in _vectors(template, scope)]
    reader.finish()
    return row(_rebuild(vectors, template, scope), 0)


def _vectors(stacked: Tree, scope: Scope) -> list[Tensor]:
    """The matrices [m, n] that a codec sees."""
    matrices = [leaf.reshape(leaf.shape[0], -1) for leaf in leaves(stacked)]
    match scope:
        case "per_tensor":
            return matrices
        case "flat":
            if len(dtypes := {matrix.dtype for matrix in matrices}) > 1:
                raise UserError(
                    f"scope = flat joins all tensors, but they have the dtypes {sorted(map(str, dtypes))}: "
                    "use one dtype or scope = per_tensor"
                )
            return [torch.cat(matrices, dim=1)]
        case _:
            raise UserError(f"scope = {scope!r} is unknown: it is one of {', '.join(get_args(Scope))}")


def _rebuild(vectors: list[Tensor], stacked: T, scope: Scope) -> T:
    """The inverse of `_vectors`; `stacked` gives the structure."""
    parts: Iterable[Tensor] = vectors
    if scope == "flat":
        parts = torch.split(vectors[0], [leaf[0].numel() for leaf in leaves(stacked)], dim=1)
    remaining = iter(parts)
    return map_tree(lambda leaf: next(remaining).reshape(leaf.shape), stacked)
