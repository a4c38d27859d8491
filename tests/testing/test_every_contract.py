"""Every method, codec and engine keeps the contract of its kind; a new one is in it by itself."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from families import each_family
from idiolect.codecs import NAMES, by_name
from idiolect.codecs.bits import BitReader, Bits
from idiolect.codecs.choice import CodecConfig
from idiolect.codecs.codec import Codec, constant_bits, read_floats, write_floats
from idiolect.core import Method, tree
from idiolect.engines.engine import Outcome
from idiolect.engines.sequential import Sequential
from idiolect.engines.vectorised import Vectorised
from idiolect.engines.ways import Way
from idiolect.methods.additive import Additive
from idiolect.methods.apfl import APFL
from idiolect.methods.efl import EFL
from idiolect.methods.fedavg import FedAvg
from idiolect.methods.perm import PERM
from idiolect.testing import ContractError, check_codec, check_engine, check_method


def short(kind: type[Method]) -> Method:
    """With little local work, where the method lets one choose."""
    fixed = kind.__pydantic_fields__["local_steps"].annotation  # type: ignore[attr-defined]
    return kind() if "Literal" in str(fixed) else kind(local_steps=3)


@each_family("kind")
def test_every_method_keeps_the_contract(kind: type[Method]) -> None:
    check_method(short(kind))


VARIANTS: dict[str, Method] = {
    "efl without its codec": EFL(local_steps=3, keep=None, elasticity=0.05, exclude_self=True),
    "efl with terms for each": EFL(local_steps=3, elasticity=0.05, exclude_self=True, stale_terms=True),
    "additive, averaged": Additive(local_steps=3, output="average", log_consensus_error=True),
    "additive, averaged at home": Additive(local_steps=3, output="local_average"),
    "apfl, averaged": APFL(local_steps=3, mixing=0.4, average_offset=2.0),
    "perm with sizes": PERM(local_steps=2, model_sizes={"capacities": (1.0, 0.6)}),
    "fedavg through codecs": CodecConfig(up="stochastic", down="ternary", bits=3).wrap(FedAvg(local_steps=3)),
    "additive through codecs, averaged": CodecConfig(up="topk", down="topk").wrap(
        Additive(local_steps=3, output="average")
    ),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_what_stands_around_a_method_keeps_the_contract(name: str) -> None:
    check_method(VARIANTS[name])


@pytest.mark.parametrize("name", NAMES)
def test_every_codec_keeps_the_contract(name: str) -> None:
    check_codec(by_name(name))


ENGINES: dict[str, Any] = {
    "sequential": Sequential,
    "vectorised": Vectorised,
    "two clients at once": partial(Vectorised, way=Way(2, is_recorded=True)),
    "one client at a time": partial(Vectorised, way=Way(1, is_recorded=True)),
    "not recorded": partial(Vectorised, passes=None),
}


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_keeps_the_contract(name: str) -> None:
    check_engine(ENGINES[name])


class Halves(Codec):
    """Half of every number, sent as it is; what follows breaks it in one place each."""

    def operator(self, rows: Tensor, keys: Tensor | None) -> Tensor:
        return rows / 2

    def count_bits(self, compressed: Tensor) -> Tensor:
        return constant_bits(compressed.shape[1] * compressed.itemsize * 8, compressed)

    def write(self, compressed: Tensor) -> Bits:
        return write_floats(compressed)

    def read(self, reader: BitReader, size: int, dtype: torch.dtype) -> Tensor:
        return read_floats(reader, size, dtype)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))


class ReadsTwiceAsMuch(Halves):
    def read(self, reader: BitReader, size: int, dtype: torch.dtype) -> Tensor:
        return 2 * super().read(reader, size, dtype)


class CountsTooFew(Halves):
    def count_bits(self, compressed: Tensor) -> Tensor:
        return super().count_bits(compressed) - 1


class LooksAtTheOthers(Halves):
    def operator(self, rows: Tensor, keys: Tensor | None) -> Tensor:
        return rows - rows.mean(0)


class Forgetful(Halves):
    def operator(self, rows: Tensor, keys: Tensor | None) -> Tensor:
        return rows * torch.tensor(np.random.default_rng().uniform(), dtype=rows.dtype)


class Overflows(Halves):
    def operator(self, rows: Tensor, keys: Tensor | None) -> Tensor:
        return rows.half().to(rows.dtype)


class BranchesOnValues(Halves):
    def operator(self, rows: Tensor, keys: Tensor | None) -> Tensor:
        return rows / 2 if float(rows.sum()) > 0 else rows / 4


class AcceptsAnything(Halves):
    def read(self, reader: BitReader, size: int, dtype: torch.dtype) -> Tensor:
        try:
            return super().read(reader, size, dtype)
        except Exception:
            return torch.zeros(size, dtype=dtype)


class IsNoKey(Halves):
    __hash__ = None  # type: ignore[assignment]


BROKEN_CODECS: list[tuple[type[Codec], str]] = [
    (ReadsTwiceAsMuch, "a message carries"),
    (CountsTooFew, "bits are counted"),
    (LooksAtTheOthers, "every row is compressed by itself"),
    (Forgetful, "the same key gives the same message"),
    (Overflows, "nothing becomes infinite"),
    (BranchesOnValues, "many clients at once"),
    (AcceptsAnything, "a damaged message"),
    (IsNoKey, "it can be a key"),
]


def test_a_codec_of_ones_own_keeps_the_contract() -> None:
    check_codec(Halves())


@pytest.mark.parametrize(("broken", "clause"), BROKEN_CODECS)
def test_a_broken_codec_is_named_with_the_clause_that_it_breaks(broken: type[Codec], clause: str) -> None:
    with pytest.raises(ContractError, match=clause):
        check_codec(broken())


class SumsWrongly(Sequential):
    def carry_out(self, *arguments: Any) -> Outcome:
        outcome = super().carry_out(*arguments)
        if outcome.replies is None:
            return outcome
        return outcome._replace(replies=tree.map_tree(lambda leaf: leaf * (1 + 1e-6), outcome.replies))


class CountsTwice(Sequential):
    def carry_out(self, *arguments: Any) -> Outcome:
        outcome = super().carry_out(*arguments)
        for bits in outcome.traffic.up.values():
            bits *= 2
        return outcome


class SortsClients(Sequential):
    def survey(self, look: Any, server: Any, part: Any, ids: Tensor, round_number: int) -> Any:
        return super().survey(look, server, part, ids.sort().values, round_number)


@pytest.mark.parametrize(
    ("broken", "clause"),
    [
        (SumsWrongly, "fedavg: all clients"),
        (CountsTwice, "fedavg: bits"),
        (SortsClients, "in the order in which they are asked for"),
    ],
)
def test_a_broken_engine_is_named_with_the_clause_that_it_breaks(broken: Any, clause: str) -> None:
    with pytest.raises(ContractError, match=clause):
        check_engine(broken, [FedAvg(local_steps=2)])
