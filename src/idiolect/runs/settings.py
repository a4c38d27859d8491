"""Settings as people give them: a YAML file and dotted overrides, merged by OmegaConf.

`method=apfl method.mixing=0.5` is short for `method.name=apfl method.mixing=0.5`, `lr=0.1` for
`method.learning_rate=0.1`. Later settings win; a section whose name changes starts anew.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from idiolect.errors import UserError

Settings = dict[str, Any]

# Sections that are chosen by a name and have options of their own.
NAMED_SECTIONS = ("method", "data", "model", "engine")
# Settings of other sections that are chosen so: `codec.up=topk codec.up.keep=0.1`.
_NAMED_SETTINGS = {"codec": ("up", "down"), "participation": ("plan",)}
_SHORTCUTS = {"lr": "method.learning_rate", "local_steps": "method.local_steps"}


def read_settings(arguments: Sequence[str]) -> Settings:
    """Merge what the command line gives: YAML files and `key=value` in their order.

    >>> read_settings(["method=apfl", "method.mixing=0.5", "lr=1e-3", "local_epochs=2"])
    {'method': {'name': 'apfl', 'mixing': 0.5, 'learning_rate': 0.001, 'local_steps': {'epochs': 2}}}
    """
    settings: Settings = {}
    for argument in arguments:
        settings = merge(settings, _override(argument) if "=" in argument else _file(argument))
    return settings


def merge(base: Mapping[str, Any], top: Mapping[str, Any]) -> Settings:
    """`base` with the settings of `top` put over it; a section that gets another name starts anew."""
    if "name" in top and base.get("name", top["name"]) != top["name"]:
        return dict(top)
    merged = dict(base)
    for key, value in top.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge(merged[key], value) if both else value
    return merged


def normalise(settings: Mapping[str, Any]) -> Settings:
    """Write shortcuts out: `method: apfl` as `method: {name: apfl}`, `lr` as `method.learning_rate`."""
    plain: Settings = {}
    for key, value in settings.items():
        if key == "local_epochs":
            key, value = "method.local_steps", {"epochs": value}
        section, dot, field = _SHORTCUTS.get(key, key).partition(".")
        if dot:
            value = {field: value}
        elif section in NAMED_SECTIONS and not isinstance(value, Mapping):
            value = {"name": value}
        elif section in _NAMED_SETTINGS and isinstance(value, Mapping):
            named = _NAMED_SETTINGS[section]
            value = {k: {"name": v} if k in named and isinstance(v, str) else v for k, v in value.items()}
        plain = merge(plain, {section: dict(value) if isinstance(value, Mapping) else value})
    return plain


def write_settings(settings: Mapping[str, Any]) -> str:
    """Settings as YAML."""
    return OmegaConf.to_yaml(OmegaConf.create(dict(settings)))


def _file(name: str) -> Settings:
    path = Path(name)
    if not path.is_file():
        raise UserError(f"{name!r} is neither a setting of the form key=value nor a YAML file that exists")
    try:
        content = OmegaConf.to_container(OmegaConf.create(path.read_text(encoding="utf-8")), resolve=True)
    except (OSError, UnicodeDecodeError, YAMLError, OmegaConfBaseException) as error:
        raise UserError(f"{name!r} cannot be read as YAML: {_one_line(error)}") from error
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise UserError(f"{name!r} must hold settings by name, such as `rounds: 50`")
    return normalise({str(key): value for key, value in content.items()})


def _override(argument: str) -> Settings:
    key, _, text = argument.partition("=")
    parts = key.split(".")
    if not all(re.fullmatch(r"[\w-]+", part) for part in parts):
        raise UserError(f"{argument!r} is not a setting: it must look like rounds=50 or method.mixing=0.5")
    if not text:
        raise UserError(f"{argument!r} has no value: give it as {key}=VALUE (null for none)")
    try:
        value = OmegaConf.to_container(OmegaConf.from_dotlist([f"value={text}"]), resolve=True)["value"]  # type: ignore[index, call-overload]
    except (YAMLError, OmegaConfBaseException) as error:
        raise UserError(f"{argument!r} has a value that cannot be read: {_one_line(error)}") from error
    for part in reversed(parts[1:]):
        value = {part: value}
    return normalise({parts[0]: value})


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
