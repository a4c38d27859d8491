"""Codecs over trees: both scopes, one stream for all tensors, keys that differ between tensors."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from idiolect.codecs import (
    NAMES,
    by_name,
    compress_tree,
    compress_tree_rows,
    decode_tree,
    encode_tree,
)
from idiolect.core import rng
from idiolect.core.tree import leaves, row, zeros_like
from idiolect.errors import UserError

KEY = rng.key(1, "trees")


class Message(NamedTuple):
    delta: dict[str, Tensor]
    absent: tuple[()]
    scalar: Tensor


def message(*lead: int, dtype: torch.dtype = torch.float32) -> Message:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn((*lead, *shape), generator=generator, dtype=dtype)

    return Message({"weight": 5 * draw(4, 3), "bias": draw(3)}, (), draw())


def assert_same(actual: object, expected: object) -> None:
    assert all(torch.equal(a, b) for a, b in zip(leaves(actual), leaves(expected), strict=True))


def test_per_tensor_compresses_every_tensor_by_itself():
    codec = by_name("ternary", keep=0.4)
    tree = message()
    compressed, bits = compress_tree(codec, tree)
    assert_same(compressed, [codec.compress(leaf) for leaf in leaves(tree)])
    assert bits == sum(codec.encode(leaf).bits for leaf in leaves(tree))
    assert compressed.absent == ()


def test_flat_compresses_all_entries_together():
    codec = by_name("ternary", keep=0.4)
    tree = message()
    compressed, bits = compress_tree(codec, tree, "flat")
    vector = torch.cat([leaf.reshape(-1) for leaf in leaves(tree)])
    assert torch.equal(torch.cat([leaf.reshape(-1) for leaf in leaves(compressed)]), codec.compress(vector))
    assert bits == codec.encode(vector).bits
    assert {leaf.abs().max().item() for leaf in leaves(compressed)} <= {
        0.0,
        codec.compress(vector).max().item(),
    }


def test_a_tensor_of_one_entry_passes_unchanged_per_tensor():
    tree = message(dtype=torch.float64)
    assert torch.equal(compress_tree(by_name("ternary", keep=0.1), tree)[0].scalar, tree.scalar)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scope", ["per_tensor", "flat"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_decoded_tree_is_the_compressed_one_and_its_stream_has_no_gaps(name, scope, dtype):
    codec = by_name(name)
    tree = message(dtype=dtype)
    sent = encode_tree(codec, tree, scope, KEY)
    compressed, bits = compress_tree(codec, tree, scope, KEY)
    assert sent.bits == bits
    assert len(sent.payload) == (bits + 7) // 8
    like = zeros_like(tree)
    decoded = decode_tree(codec, sent.payload, like, scope)
    assert_same(decoded, compressed)
    assert decoded.absent == ()
    assert decoded.delta["weight"].shape == (4, 3)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scope", ["per_tensor", "flat"])
def test_stacked_trees_are_compressed_as_they_are_one_by_one(name, scope):
    codec = by_name(name)
    stacked = message(6)
    keys = rng.key(2, "clients", torch.arange(6))
    compressed, bits = compress_tree_rows(codec, stacked, scope, keys)
    for client in range(6):
        tree = row(stacked, client)
        alone, alone_bits = compress_tree(codec, tree, scope, keys[client])
        assert_same([leaf[client] for leaf in leaves(compressed)], alone)
        assert bits[client] == alone_bits


def test_equal_tensors_of_a_tree_are_rounded_independently():
    values = torch.randn(200, generator=torch.Generator().manual_seed(3))
    compressed, _ = compress_tree(by_name("stochastic", bits=2), {"a": values, "b": values}, key=KEY)
    assert not torch.equal(compressed["a"], compressed["b"])


def test_scopes_are_checked():
    with pytest.raises(UserError, match=r"scope = 'both' is unknown.*per_tensor, flat"):
        compress_tree(by_name("sign"), message(), "both")
    mixed = {"a": torch.ones(2), "b": torch.ones(2, dtype=torch.float64)}
    with pytest.raises(UserError, match=r"torch\.float32.*torch\.float64.*one dtype"):
        compress_tree(by_name("sign"), mixed, "flat")
    compressed, _ = compress_tree(by_name("sign"), mixed)
    assert [leaf.dtype for leaf in leaves(compressed)] == [torch.float32, torch.float64]
