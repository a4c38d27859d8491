"""How long codecs take and what they save, measured."""

import time
from collections.abc import Callable
from typing import TypeVar

import torch

from idiolect.codecs.codec import Codec
from idiolect.codecs.registry import NAMES, by_name
from idiolect.core import rng

T = TypeVar("T")

_RUNS = 3


def benchmark(clients: int = 100, parameters: int = 200_000, seed: int = 0) -> list[dict[str, str | float]]:
    """Seconds that one round of messages from all clients costs, and bits for each parameter, by codec.

    `compress` and `count bits` are what a simulated round pays for all clients; `encode` and `decode` are
    what real messages cost for all clients together, one after the other. Entries are normal random numbers.
    """
    generator = torch.Generator().manual_seed(rng.generator_seed(rng.key(seed, "codec benchmark")))
    rows = torch.randn(clients, parameters, generator=generator)
    keys = rng.key(seed, "codec benchmark", torch.arange(clients))
    return [{"codec": name, **_measure(by_name(name), rows, keys)} for name in NAMES]


def _measure(codec: Codec, rows: torch.Tensor, keys: torch.Tensor) -> dict[str, str | float]:
    """One codec's line of the table."""
    compressed, compress_seconds = _timed(lambda: codec.compress_rows(rows, keys))
    bits, count_seconds = _timed(lambda: codec.compressed_bits(compressed))
    messages, encode_seconds = _timed(
        lambda: [codec.encode(row, key) for row, key in zip(rows, keys, strict=True)]
    )
    _, decode_seconds = _timed(
        lambda: [codec.decode(message.payload, rows[0].shape, rows.dtype) for message in messages]
    )
    return {
        "bits per parameter": bits.sum().item() / rows.numel(),
        "compress seconds": compress_seconds,
        "count bits seconds": count_seconds,
        "encode seconds": encode_seconds,
        "decode seconds": decode_seconds,
    }


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    """The result, and the shortest time of a few runs: the first pays for set-up, any may be interrupted."""
    seconds = []
    for _ in range(_RUNS):
        start = time.perf_counter()
        result = work()
        seconds.append(time.perf_counter() - start)
    return result, min(seconds)
