"""Parts of a model: its parameters split by their names, and joined again.

A part is chosen by patterns of names, or by a rule, which looks at the model itself:

    head    the last module that owns parameters           body    everything else
    norm    all batch normalisation, found by the type of a module and never by its name
    adapter what was put beside layers to be trained in their place: parameters of modules named `adapter`

    parts = Parts.of(params, {"head": ("output.*",)}, rest="body")
    parts.split(params)              ->  {"head": {"output.weight": ..}, "body": {"hidden.0.weight": ..}}
    parts.take(params, "head")       ->  {"output.weight": .., "output.bias": ..}
    parts.join(head=.., body=..)     ->  params, in the model's own order of names
    parts.replace(params, body=..)   ->  params with another body

Only names are looked at and no tensor is copied, so the same works for one client, for a stack of clients,
and in functions that are vmapped or recorded.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator
from torch import nn

from idiolect.core.tree import Params
from idiolect.errors import UserError, did_you_mean

Patterns = tuple[str, ...]  # "output.*", "*.bias": as in a shell, and "*" also goes over dots
PartRule = Literal["head", "body", "norm", "adapter"]
_LISTED = 12  # names that an error shows


def _one_pattern_is_a_list(value: Any) -> Any:
    return (value,) if isinstance(value, str) and value not in get_args(PartRule) else value


# How a hyper-parameter says which part it means; an empty list is an empty part.
PartChoice = Annotated[PartRule | Patterns, BeforeValidator(_one_pattern_is_a_list)]


@dataclass(frozen=True)
class Parts:
    """Which part of a model each of its names belongs to: to one and only one."""

    names: tuple[str, ...]  # of all parameters, in the model's own order
    owners: tuple[str, ...]  # the part of each name
    labels: tuple[str, ...]  # of all parts, also of those without a name

    @classmethod
    def of(cls, names: Iterable[str], patterns: Mapping[str, Patterns], rest: str) -> "Parts":
        """The parts that patterns make of a model's names; `rest` is the part of whatever they do not name.

        A part without patterns is empty; a pattern that matches nothing is an error.
        """
        if rest in patterns:
            raise UserError(f"rest={rest!r} is a part that has patterns already: take another name")
        names = tuple(names)
        owner: dict[str, str] = {}
        for label, wanted in patterns.items():
            for name in _matching(wanted, names, label):
                if owner.setdefault(name, label) != label:
                    raise UserError(
                        f"the parts {owner[name]!r} and {label!r} overlap: both have the parameter {name!r}; "
                        "a parameter belongs to one part"
                    )
        return cls(names, tuple(owner.get(name, rest) for name in names), (*patterns, rest))

    def names_of(self, label: str) -> tuple[str, ...]:
        """The names in one part, in the model's own order."""
        if label not in self.labels:
            meant = did_you_mean(label, self.labels)
            raise UserError(f"there is no part {label!r}{meant}; there are {', '.join(self.labels)}")
        return tuple(name for name, owner in zip(self.names, self.owners, strict=True) if owner == label)

    def take(self, params: Params, label: str) -> Params:
        """One part of a model's parameters."""
        require_names(params, self.names, "the model")
        return {name: params[name] for name in self.names_of(label)}

    def split(self, params: Params) -> dict[str, Params]:
        """Every part of a model's parameters."""
        return {label: self.take(params, label) for label in self.labels}

    def replace(self, params: Params, **parts: Params) -> Params:
        """A model's parameters with some of its parts from elsewhere."""
        return self.join(**{**self.split(params), **parts})

    def join(self, **parts: Params) -> Params:
        """A model's parameters from all of its parts: the inverse of `split`."""
        for label in self.labels:
            if label not in parts:
                raise UserError(f"the part {label!r} is missing: a model is joined from all of its parts")
        for label, params in parts.items():
            require_names(params, self.names_of(label), f"the part {label!r}")
        return {name: parts[owner][name] for name, owner in zip(self.names, self.owners, strict=True)}


def names_by_rule(rule: PartRule, module: nn.Module) -> Patterns:
    """The names of the parameters that a rule means in a model; those that are fixed are in no part.

    >>> names_by_rule("head", nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1)))
    ('2.weight', '2.bias')
    >>> names_by_rule("norm", nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 1)))
    ('1.weight', '1.bias')
    """
    names = tuple(name for name, parameter in module.named_parameters() if parameter.requires_grad)
    if rule == "adapter":
        return tuple(name for name in names if "adapter" in name.split("."))
    if rule == "norm":
        norms = {
            path
            for path, layer in module.named_modules()
            if isinstance(layer, nn.modules.batchnorm._BatchNorm)
        }
        return tuple(name for name in names if name.rpartition(".")[0] in norms)
    owned = list(module.named_parameters(remove_duplicate=False))
    of_head = {parameter for name, parameter in owned if layer_of(name) == last_module(module)}
    # By the names that they are known by: what the head shares with another layer is of the head.
    last = tuple(name for name, parameter in module.named_parameters() if parameter in of_head)
    head = tuple(name for name in last if name in names)
    if not head:
        raise UserError(
            f"the part {rule!r} is not possible: the head of the model, {', '.join(last)}, is fixed, so no "
            "method trains it; choose parts by patterns of names"
        )
    return head if rule == "head" else tuple(name for name in names if name not in head)


def last_module(module: nn.Module) -> str:
    """The name of the head: of the last module that owns parameters, also if it shares them with others."""
    names = [name for name, _ in module.named_parameters(remove_duplicate=False)]
    if not names:
        raise UserError(f"the model {type(module).__name__} has no parameters, so nothing can be trained")
    return layer_of(names[-1])


def layer_of(name: str) -> str:
    """The name of the layer that a parameter is of; what parametrizations have are their layer's.

    >>> layer_of("output.weight"), layer_of("output.parametrizations.weight.original0"), layer_of("weight")
    ('output', 'output', '')
    """
    path = name.split(".")[:-1]
    return ".".join(path[: path.index("parametrizations")] if "parametrizations" in path else path)


def last_layer(names: Iterable[str]) -> Patterns:
    """Patterns for the parameters of the last layer that has any.

    >>> last_layer(["hidden.0.weight", "hidden.0.bias", "output.weight", "output.bias"])
    ('output.weight', 'output.bias')
    """
    names = tuple(names)
    return tuple(name for name in names if layer_of(name) == layer_of(names[-1]))


def require_names(params: Params, known: Collection[str], whole: str) -> None:
    """Refuse parameters that are not exactly those of a whole, in whatever order."""
    if params.keys() == set(known):
        return
    for name in params:
        if name not in known:
            raise UserError(
                f"{whole} has {name!r}, which is none of its parameters{did_you_mean(name, known)}"
            )
    lacking = next(name for name in known if name not in params)
    raise UserError(f"{whole} lacks its parameter {lacking!r}")


def _matching(patterns: Patterns, names: Sequence[str], label: str) -> list[str]:
    """The names that at least one of the patterns matches."""
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise UserError(
                f"the part {label!r} has the pattern {pattern!r}, which matches no parameter"
                f"{did_you_mean(pattern, names)}; the model has {_listed(names)}"
            )
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]


def _listed(names: Sequence[str]) -> str:
    """Names for a sentence; of a large model the first ones."""
    further = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + further
