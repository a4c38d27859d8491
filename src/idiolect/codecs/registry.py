"""Codecs by name, as a configuration writes them."""

from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError

from idiolect.codecs.codec import Codec
from idiolect.codecs.dense import Dense
from idiolect.codecs.quantised import Linear, Stochastic
from idiolect.codecs.sparse import SparseTernary, TopK
from idiolect.errors import UserError

# A name stands for a class and the options that the name itself settles.
_REGISTRY: dict[str, tuple[type[Codec], dict[str, Any]]] = {
    "float32": (Dense, {"precision": "float32"}),
    "float16": (Dense, {"precision": "float16"}),
    "bfloat16": (Dense, {"precision": "bfloat16"}),
    "ternary": (SparseTernary, {}),
    "topk": (TopK, {}),
    "sign": (SparseTernary, {"keep": 1.0}),
    "linear": (Linear, {}),
    "stochastic": (Stochastic, {}),
}
NAMES = tuple(_REGISTRY)


def by_name(name: str, **options: object) -> Codec:
    """The codec of a name in `NAMES`, with its options: `by_name("ternary", keep=0.3)`."""
    if name not in _REGISTRY:
        raise UserError(f"codec = {name!r} is unknown: {_suggestion(name, list(NAMES))}")
    kind, settled = _REGISTRY[name]
    known = [field.name for field in fields(kind) if field.name not in settled]  # type: ignore[arg-type]
    for option in options:
        if option not in known:
            raise UserError(f"the codec {name} has no option {option!r}: {_suggestion(option, known)}")
    try:
        return kind(**settled, **options)
    except ValidationError as error:
        first = error.errors()[0]
        problem = first["msg"].replace("Input should", "it should")
        raise UserError(f"codec {name}: {first['loc'][0]} = {first['input']!r}, but {problem}") from None


def _suggestion(word: str, known: list[str]) -> str:
    nearest = get_close_matches(word, known, n=1, cutoff=0.4)
    meant = f"did you mean {nearest[0]!r}? " if nearest else ""
    return f"{meant}it can be one of {', '.join(known)}" if known else "it takes no options"
