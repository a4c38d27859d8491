"""What is tuned: of every method its rates and the weight decay, and what the method itself declares.

| setting      | tried                                                       |
|--------------|-------------------------------------------------------------|
| rates        | one factor for all rates that are left to suit the data     |
| weight_decay | the l2 term's factor                                        |
| a method's   | what its `hyper(..., tune=...)` says (`method_space`)       |

What a user gives is not tuned. The local steps are not either: they are what a round costs.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from pydantic.dataclasses import is_pydantic_dataclass

from idiolect.core.hyper import Tunable
from idiolect.core.method import Method
from idiolect.methods.catalogue import find_method
from idiolect.runs.config import RunConfig
from idiolect.runs.decisions import with_rates
from idiolect.runs.settings import Settings, merge
from idiolect.runs.signatures import fields_of

RATES, WEIGHT_DECAY = "rates", "weight_decay"
COMMON: dict[str, Tunable] = {RATES: (0.1, 3.0), WEIGHT_DECAY: (1e-4, 1.0)}

Space = dict[str, Tunable]


def method_space(kind: type[Method]) -> Space:
    """The hyper-parameters that a method declares to be tuned; those of a section in it with a dot.

    >>> from idiolect.methods.perm import PERM
    >>> method_space(PERM)
    {'weights.regulariser_factor': (0.1, 10.0)}
    """
    return _declared(kind, "")


def _declared(checked: type, prefix: str) -> Space:
    space: Space = {}
    for name, field in fields_of(checked).items():
        extra = field.json_schema_extra
        if isinstance(extra, dict) and extra.get("tune"):
            space[prefix + name] = extra["tune"]  # type: ignore[assignment]
        elif is_pydantic_dataclass(type(field.default)):
            space |= _declared(type(field.default), f"{prefix}{name}.")
    return space


def space_of(config: RunConfig, given: Collection[str]) -> Space:
    """What is tuned of one method; `given` are the settings that the user has decided."""
    kind = find_method(config.method["name"])
    taken = {*given, *fields_of(kind)} | (set() if config.open_rates else {RATES})
    common = {name: tried for name, tried in COMMON.items() if name not in taken}
    own = method_space(kind)
    return common | {name: tried for name, tried in own.items() if name.partition(".")[0] not in given}


def contains(tried: Tunable, value: Any) -> bool:
    """Whether a value is among those that are tried.

    >>> contains((0.1, 10.0), 1.0), contains((0.1, 10.0), 0.0), contains(["adaptive", 0.5], "adaptive")
    (True, False, True)
    """
    if isinstance(tried, list):
        return value in tried
    return isinstance(value, int | float) and tried[0] <= value <= tried[1]


def default_point(config: RunConfig, space: Space) -> Settings:
    """The settings that are not tuned, as far as they are among those that are tried."""
    values = {RATES: 1.0, WEIGHT_DECAY: config.weight_decay}
    point = {name: values[name] if name in values else _get(config.method, name) for name in space}
    return {name: value for name, value in point.items() if contains(space[name], value)}


def configured(config: RunConfig, chosen: Mapping[str, Any], smoothness: float, clients: int) -> RunConfig:
    """The configuration with chosen settings: rates are those that suit the data then, times a factor.

    smoothness: of the clients' losses without the l2 term, which adds its factor.
    """
    method = config.method
    for name, value in chosen.items():
        if name not in COMMON:
            method = merge(method, _nested(name, readable(value)))
    weight_decay = readable(chosen.get(WEIGHT_DECAY, config.weight_decay))
    config = replace(config, method=method, weight_decay=weight_decay)
    if not config.open_rates:
        return config
    decided = with_rates(config, smoothness + weight_decay, clients, "").config
    factor = chosen.get(RATES, 1.0)
    rates = {name: _times(decided.method[name], factor) for name in config.open_rates}
    return replace(decided, method=decided.method | rates)


def chosen_settings(config: RunConfig, decided: RunConfig, space: Space) -> Settings:
    """What was open in a configuration and is decided now, as a method's section of a comparison has it."""
    settings: Settings = {name: decided.method[name] for name in config.open_rates}
    for name in space:
        if name == WEIGHT_DECAY:
            settings[name] = decided.weight_decay
        elif name != RATES:
            settings = merge(settings, _nested(name, _get(decided.method, name)))
    return settings


def readable(value: Any) -> Any:
    """A number with as many digits as one can read and type."""
    return float(f"{value:.4g}") if isinstance(value, float) else value


def shown(tried: Tunable) -> str:
    """What is tried, in a table.

    >>> shown((1e-4, 1.0)), shown(["adaptive", 0.5])
    ('0.0001 to 1', 'adaptive, 0.5')
    """
    if isinstance(tried, list):
        return ", ".join(map(str, tried))
    return f"{tried[0]:g} to {tried[1]:g}"


def _times(rate: Any, factor: float) -> Any:
    """A rate, or the start of a schedule, times a factor."""
    if isinstance(rate, dict):
        return rate | {"initial": readable(rate["initial"] * factor)}
    return readable(rate * factor)


def _nested(name: str, value: Any) -> Settings:
    for part in reversed(name.split(".")):
        value = {part: value}
    settings: Settings = value
    return settings


def _get(section: Mapping[str, Any], name: str) -> Any:
    value: Any = section
    for part in name.split("."):
        value = value[part]
    return value
