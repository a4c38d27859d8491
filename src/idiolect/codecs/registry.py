"""Codecs by name, as a configuration writes them."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from idiolect.codecs.codec import Codec
from idiolect.codecs.dense import Dense
from idiolect.codecs.quantised import Linear, Stochastic
from idiolect.codecs.sparse import SparseTernary, TopK
from idiolect.plugins import Catalogue, call, kind_of


def _flaw(found: Any) -> str | None:
    if not (inspect.isclass(found) and issubclass(found, Codec)):
        return f"it must be a class derived from idiolect.codecs.Codec, not {kind_of(found)}"
    if inspect.isabstract(found):
        return f"the class {found.__name__} lacks {', '.join(sorted(found.__abstractmethods__))}"
    if "__dataclass_fields__" not in vars(found):  # as which it is sent to silos
        return f"the class {found.__name__} must be a dataclass of its options: @dataclass(frozen=True)"
    return None


# A name stands for a class, and for the options that the name itself settles.
CATALOGUE: Catalogue[Callable[..., Codec]] = Catalogue(
    word="codec",
    several="codecs",
    group="idiolect.codecs",
    own="your own as package.module:Class",
    flaw=_flaw,
    built_in={
        "float32": partial(Dense, precision="float32"),
        "float16": partial(Dense, precision="float16"),
        "bfloat16": partial(Dense, precision="bfloat16"),
        "ternary": SparseTernary,
        "topk": TopK,
        "sign": partial(SparseTernary, keep=1.0),
        "linear": Linear,
        "stochastic": Stochastic,
    },
)
NAMES = tuple(CATALOGUE.built_in)


def by_name(name: str, **options: Any) -> Codec:
    """The codec of a name in `NAMES`, or the user's own, with its options: `by_name("ternary", keep=0.3)`."""
    return call(CATALOGUE.find(name), options, f"codec {name!r}")
