"""What crosses between coordinator and silos: a header in JSON and named tensors, as safetensors.

A tree of tensors describes itself (which NamedTuples, which names), an exchange is its class and its fields.
Nothing is unpickled; a name in a message can only mean a NamedTuple or a dataclass of this package, or of
`modules` that whoever reads it admits: those of methods and codecs of its own installation.
"""

import dataclasses
import hashlib
import importlib
import json
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, NoReturn

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from idiolect.core import tree
from idiolect.core.tree import PATH_SEPARATOR, Tree
from idiolect.errors import UserError

_HOMES = ("idiolect.core.", "idiolect.methods.", "idiolect.codecs.")
_PLAIN = (bool, int, float, str, type(None))
# safetensors checks the length of its own header; ours is one of its entries.
_HEADER = "idiolect"


class Packet(NamedTuple):
    """A message as it was sent."""

    header: dict[str, Any]
    trees: dict[str, Tree]


def pack(header: Mapping[str, Any], trees: Mapping[str, Tree] | None = None) -> bytes:
    """A message as bytes."""
    trees = dict(trees or {})
    named = {name: leaf.detach().clone().contiguous() for name, leaf in tree.to_named(trees).items()}
    shapes = {name: describe(content) for name, content in trees.items()}
    return save(named, {_HEADER: json.dumps({**header, "trees": shapes})})


def digest(header: Mapping[str, Any], trees: Mapping[str, Tree] | None = None) -> str:
    """What tells a message from any other."""
    return hashlib.sha256(pack(header, trees)).hexdigest()


def peek(message: bytes) -> dict[str, Any]:
    """The header of a message, without its tensors; empty if it cannot be read."""
    try:
        header = json.loads(_metadata(message)[_HEADER])
    except (KeyError, ValueError, TypeError, RecursionError):
        return {}
    return header if isinstance(header, dict) else {}


def unpack(message: bytes, most_bytes: int | None = None, modules: Collection[str] = ()) -> Packet:
    """A message from bytes; whatever it is not is said in one sentence."""
    if most_bytes is not None and len(message) > most_bytes:
        raise UserError(
            f"a message of {len(message)} bytes is larger than the {most_bytes} that are admitted"
        )
    try:
        named = load(message)
        header = json.loads(_metadata(message)[_HEADER], parse_constant=_refuse_constant)
        shapes = header.pop("trees")
        trees = {name: _rebuild(shape, named, (name,), modules) for name, shape in shapes.items()}
        return Packet(header, trees)
    except (
        SafetensorError,
        KeyError,
        ValueError,
        TypeError,
        AttributeError,
        ImportError,
        RecursionError,
    ) as error:
        raise UserError(f"a message cannot be read: {error}") from error


def describe(node: Tree) -> Any:
    """The structure of a tree, without its tensors."""
    if isinstance(node, Tensor):
        return "tensor"
    if isinstance(node, Mapping):
        return {"dict": {key: describe(value) for key, value in node.items()}}
    if hasattr(node, "_fields"):
        return {"type": _name(type(node)), "fields": [describe(value) for value in node]}
    return {"tuple": [describe(value) for value in node]}


def signature(content: Tree) -> dict[str, Any]:
    """Structure, shapes and types of a tree: what a reply must agree with."""
    leaves = {name: [list(leaf.shape), str(leaf.dtype)] for name, leaf in tree.to_named(content).items()}
    return {"structure": describe(content), "leaves": leaves}


def modules_in(node: Tree) -> set[str]:
    """The modules of the NamedTuples of which a tree consists."""
    if isinstance(node, Tensor):
        return set()
    own = {type(node).__module__} if hasattr(node, "_fields") else set()
    parts = node.values() if isinstance(node, Mapping) else node
    return own.union(*map(modules_in, parts))


def describe_object(value: Any) -> Any:
    """A dataclass of settings, such as an exchange, as plain data."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, tuple | list):
        return {"tuple": [describe_object(entry) for entry in value]}
    if isinstance(value, Mapping):
        return {"dict": {key: describe_object(entry) for key, entry in value.items()}}
    if not dataclasses.is_dataclass(value):
        raise TypeError(f"{type(value).__name__} is not a setting that can be sent")
    fields = {f.name: describe_object(getattr(value, f.name)) for f in dataclasses.fields(value) if f.init}
    return {"object": _name(type(value)), "fields": fields}


def rebuild_object(plain: Any, modules: Collection[str] = ()) -> Any:
    """The inverse of `describe_object`; values are checked as those of a configuration are."""
    if not isinstance(plain, dict):
        return plain
    if "tuple" in plain:
        return tuple(rebuild_object(entry, modules) for entry in plain["tuple"])
    if "dict" in plain:
        return {key: rebuild_object(entry, modules) for key, entry in plain["dict"].items()}
    kind = _find(plain["object"], modules)
    if not dataclasses.is_dataclass(kind):
        raise UserError(f"a message names {plain['object']}, which is not a class of settings")
    return kind(**{name: rebuild_object(entry, modules) for name, entry in plain["fields"].items()})


def _rebuild(
    shape: Any, named: Mapping[str, Tensor], path: tuple[str, ...], modules: Collection[str]
) -> Tree:
    def part(name: str, shape: Any) -> Tree:
        return _rebuild(shape, named, (*path, name), modules)

    if shape == "tensor":
        return named[PATH_SEPARATOR.join(path)]
    if "dict" in shape:
        return {key: part(key, value) for key, value in shape["dict"].items()}
    if "tuple" in shape:
        return tuple(part(str(i), value) for i, value in enumerate(shape["tuple"]))
    kind = _find(shape["type"], modules)
    if not (issubclass(kind, tuple) and hasattr(kind, "_fields")):
        raise UserError(f"a message names {shape['type']}, which is not a state or message")
    fields = zip(kind._fields, shape["fields"], strict=True)
    return kind(*(part(name, value) for name, value in fields))


def _name(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _find(name: str, modules: Collection[str]) -> type:
    module, _, attribute = name.partition(":")
    if not f"{module}.".startswith(_HOMES) and module not in modules:
        raise UserError(f"a message names {name}, which is not part of this package and was not allowed")
    kind = getattr(importlib.import_module(module), attribute)
    if not isinstance(kind, type) or _name(kind) != name:  # what a module imported is not its own
        raise UserError(f"a message names {name}, which is not a class of that module")
    return kind


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of a header")


def _metadata(message: bytes) -> dict[str, str]:
    """The free text that safetensors carries before the tensors."""
    length = int.from_bytes(message[:8], "little")
    metadata: dict[str, str] = json.loads(message[8 : 8 + length])["__metadata__"]
    return metadata
