"""The contract of a codec as checks that any codec, also a user's own, can be put through."""

import copy
from collections.abc import Iterator

import torch
from torch import Tensor

from idiolect.codecs.codec import Codec
from idiolect.core import rng
from idiolect.errors import UserError
from idiolect.testing.contract import Clause, require_clauses

DTYPES = (torch.float32, torch.float64)
SIZES = (1, 2, 7, 64, 1000)


def check_codec(codec: Codec) -> None:
    """Put a codec through its contract; raise `ContractError` naming each clause that it breaks."""
    clauses: list[Clause] = [
        ("a message carries C(x), bit for bit", lambda: _carries(codec)),
        ("bits are counted as they are written", lambda: _counts(codec)),
        ("every row is compressed by itself", lambda: _rows_apart(codec)),
        ("the same key gives the same message", lambda: _repeats(codec)),
        ("shape and type stay, and nothing becomes infinite", lambda: _keeps_form(codec)),
        ("it runs for many clients at once", lambda: _vectorises(codec)),
        ("a damaged message is refused in words", lambda: _refuses_damage(codec)),
        ("it can be a key, and its copies are equal", lambda: _hashable(codec)),
    ]
    require_clauses(type(codec).__name__, clauses)


def vectors() -> Iterator[Tensor]:
    """Vectors of all sizes, small and large numbers, zeros, equal entries, both signs of zero."""
    generator = torch.Generator().manual_seed(7)
    for dtype in DTYPES:
        for size in SIZES:
            normal = torch.randn(size, generator=generator, dtype=dtype)
            zeros, sparse = torch.zeros_like(normal), normal * (normal > 1)
            yield from (
                normal,
                1e-30 * normal,
                1e30 * normal,
                normal.round(),
                zeros,
                sparse,
                -sparse,
                zeros - 1,
            )


def _key(place: int) -> Tensor:
    return rng.key(3, "codec contract", place)


def _carries(codec: Codec) -> None:
    for place, vector in enumerate(vectors()):
        message = codec.encode(vector, _key(place))
        decoded = codec.decode(message.payload, vector.shape, vector.dtype)
        if not _identical(decoded, codec.compress(vector, _key(place))):
            raise AssertionError(f"of {len(vector)} entries of {vector.dtype} something else is received")


def _counts(codec: Codec) -> None:
    for place, vector in enumerate(vectors()):
        counted = int(codec.bits_rows(vector[None], _key(place)[None]))
        written = codec.encode(vector, _key(place))
        if counted != written.bits or len(written.payload) != -(-written.bits // 8):
            raise AssertionError(f"{counted} bits are counted, {written.bits} are written")


def _rows_apart(codec: Codec) -> None:
    generator = torch.Generator().manual_seed(8)
    rows, keys = torch.randn(5, 33, generator=generator), rng.key(3, "rows", torch.arange(5))
    together = codec.compress_rows(rows, keys)
    for row, key, compressed in zip(rows, keys, together, strict=True):
        if not _identical(codec.compress(row, key), compressed):
            raise AssertionError("a row depends on the rows beside it")


def _repeats(codec: Codec) -> None:
    vector = torch.linspace(-2, 3, 50)
    again = copy.deepcopy(codec)
    if codec.encode(vector, _key(0)) != again.encode(vector, _key(0)):
        raise AssertionError("two messages with one key differ")


def _keeps_form(codec: Codec) -> None:
    for place, vector in enumerate(vectors()):
        compressed = codec.compress(vector, _key(place))
        if compressed.shape != vector.shape or compressed.dtype != vector.dtype:
            raise AssertionError(f"{vector.dtype}{list(vector.shape)} becomes {compressed.dtype}")
        if not compressed.isfinite().all():
            raise AssertionError(f"finite numbers up to {float(vector.abs().max()):.3g} become infinite")


def _vectorises(codec: Codec) -> None:
    rows, keys = torch.linspace(-1, 2, 24).reshape(4, 6), rng.key(3, "rows", torch.arange(4))
    mapped = torch.vmap(lambda row, key: codec.operator(row[None], key[None])[0])(rows, keys)
    if not _identical(mapped, codec.compress_rows(rows, keys)):
        raise AssertionError("under vmap the result is another one")


def _refuses_damage(codec: Codec) -> None:
    vector = torch.linspace(-2, 3, 50)
    payload = codec.encode(vector, _key(1)).payload
    for damaged in (b"", payload[:-1], payload + b"\0"):
        try:
            codec.decode(damaged, vector.shape, vector.dtype)
        except UserError:
            continue
        raise AssertionError(f"a message of {len(damaged)} bytes instead of {len(payload)} is accepted")


def _hashable(codec: Codec) -> None:
    if codec != copy.deepcopy(codec) or hash(codec) != hash(copy.deepcopy(codec)):
        raise AssertionError("a copy is not equal to it")


def _identical(a: Tensor, b: Tensor) -> bool:
    """Bit for bit but for the sign of zero, which no sum tells."""
    return a.dtype == b.dtype and torch.equal(a, b)
