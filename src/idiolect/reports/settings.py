"""What was asked for: the command that makes the runs again, and the hyper-parameters of each method."""

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from idiolect.methods.catalogue import find_method
from idiolect.runs.config import resolve
from idiolect.runs.folder import RunFolder
from idiolect.runs.signatures import fields_of

_NOT_ASKED = ("seed", "threads", "engine", "out")  # said elsewhere, or nothing that changes a number


def command_of(runs: Sequence[RunFolder]) -> str:
    """The command whose runs they are: what was left to its default is not in it."""
    first = _first_of_each(runs)
    seeds = list(dict.fromkeys(run.config.seed for run in runs))
    asked = {name: _differences(run) for name, run in first.items()}
    one = len(runs) == 1
    prefix = {name: "method" if one else name for name in first}
    shared = {
        key: value
        for key, value in next(iter(asked.values())).items()
        if not key.startswith("method.") and all(own.get(key, _MISSING) == value for own in asked.values())
    }
    words = [
        f"method={runs[0].config.method['name']}" if one else f"methods={','.join(_written(first))}",
        f"data={runs[0].config.data['name']}",
        *(f"{key}={_typed(value)}" for key, value in shared.items()),
        *(
            f"{prefix[name]}.{key.removeprefix('method.')}={_typed(value)}"
            for name, own in asked.items()
            for key, value in own.items()
            if key not in shared
        ),
    ]
    if one:
        words += [f"seed={seeds[0]}"] if seeds[0] else []
    elif seeds != [0]:
        counted = seeds == list(range(len(seeds)))
        words.append(f"seeds={len(seeds) if counted else ','.join(map(str, seeds))}")
    return " ".join(["idiolect", "run" if one else "compare", *map(shlex.quote, words)])


def hyper_parameters(runs: Sequence[RunFolder]) -> list[dict[str, str]]:
    """A row for each setting of each method as it was run: its value and what it means."""
    rows = []
    for name, run in _first_of_each(runs).items():
        fields = fields_of(find_method(run.config.method["name"]))
        for setting, field in fields.items():
            told: Any = field.json_schema_extra or {}
            rows.append(
                {
                    "method": name,
                    "setting": setting,
                    "symbol": told.get("symbol", "") if isinstance(told, Mapping) else "",
                    "value": _shown(run.config.method.get(setting)),
                    "meaning": field.description or "",
                }
            )
    return rows


_MISSING = object()


def _first_of_each(runs: Sequence[RunFolder]) -> dict[str, RunFolder]:
    first: dict[str, RunFolder] = {}
    for run in runs:
        first.setdefault(run.config.method_name, run)
    return first


def _written(first: Mapping[str, RunFolder]) -> list[str]:
    return [str(run.config.method["name"]) for run in first.values()]


def _differences(run: RunFolder) -> dict[str, Any]:
    """What was asked for beyond the names of method and data, by dotted keys."""
    asked = run.facts().get("asked") or run.config.plain()
    defaults = resolve(
        {"method": {"name": asked["method"]["name"]}, "data": {"name": asked["data"]["name"]}}
    ).plain()
    found = _changed(asked, defaults, "")
    return {key: value for key, value in found.items() if key.partition(".")[0] not in _NOT_ASKED}


def _changed(asked: Mapping[str, Any], defaults: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    changed: dict[str, Any] = {}
    for key, value in asked.items():
        default = defaults.get(key, _MISSING)
        nested = isinstance(value, Mapping) and isinstance(default, Mapping)
        if nested and value.get("name") == default.get("name"):
            changed |= _changed(value, default, f"{prefix}{key}.")
        elif value != default:
            changed[prefix + key] = value
    return changed


def _typed(value: Any) -> str:
    """As one types it."""
    return value if isinstance(value, str) else json.dumps(value)


def _shown(value: Any) -> str:
    """As one reads it: {initial: 0.4, name: per_round} is "per_round, initial 0.4"."""
    if isinstance(value, Mapping):
        rest = [f"{key} {_shown(item)}" for key, item in value.items() if key != "name"]
        return ", ".join([*([str(value["name"])] if "name" in value else []), *rest])
    if isinstance(value, float):
        return f"{value:.6g}"
    return "–" if value is None else str(value)
