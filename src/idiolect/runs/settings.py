"""Settings as people give them, on the command line and in Python: YAML files, `key=value`, mappings.

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
NAMED_SECTIONS = ("method", "data", "model", "engine", "robust", "outer")
OPTIONAL_SECTIONS = ("robust", "outer")  # of these: None is none
# Settings of other sections that are chosen so: `codec.up=topk codec.up.keep=0.1`.
NAMED_SETTINGS = (("codec", "up"), ("codec", "down"), ("participation", "plan"))
# Short names, and what they are short for.
SHORTCUTS = {
    "lr": "method.learning_rate",
    "local_steps": "method.local_steps",
    "local_epochs": "method.local_steps.epochs",
    "evaluate_every": "evaluation.every",
    "choose": "evaluation.choose",
    "metrics": "evaluation.metrics",
    "metric": "evaluation.metric",
}

Source = str | Path | Mapping[str, Any]  # a YAML file, a `key=value`, or settings by name


def read_settings(sources: Sequence[Source]) -> Settings:
    """Merge settings in the order in which they are given.

    >>> read_settings(["method=apfl", "method.mixing=0.5", "lr=1e-3", "local_epochs=2"])
    {'method': {'name': 'apfl', 'mixing': 0.5, 'learning_rate': 0.001, 'local_steps': {'epochs': 2}}}
    >>> read_settings(["method=apfl", {"method.mixing": 0.5, "data": Path("patients.csv")}])
    {'method': {'name': 'apfl', 'mixing': 0.5}, 'data': {'name': 'patients.csv'}}
    """
    settings: Settings = {}
    for source in sources:
        settings = merge(settings, _read(source))
    return settings


def merge(base: Mapping[str, Any], top: Mapping[str, Any]) -> Settings:
    """`base` with the settings of `top` put over it; a section that gets another name starts anew."""
    if "name" in base and "name" in top and base["name"] != top["name"]:
        return dict(top)
    merged = dict(base)
    for key, value in top.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge(merged[key], value) if both else value
    return merged


def normalise(settings: Mapping[str, Any]) -> Settings:
    """Write short forms out: `method: apfl` as `method: {name: apfl}`, `lr` as `method.learning_rate`."""
    plain: Settings = {}
    for key, value in settings.items():
        first, *rest = key.split(".")
        section, *path = [*SHORTCUTS.get(first, first).split("."), *rest]
        value = _plain(value)
        is_absent = value is None and section in OPTIONAL_SECTIONS
        if not path and section in NAMED_SECTIONS and not isinstance(value, Mapping) and not is_absent:
            value = {"name": value}
        for part in reversed(path):
            value = {part: value}
        plain = merge(plain, {section: value})
    for section, setting in NAMED_SETTINGS:
        if isinstance(plain.get(section), dict) and isinstance(plain[section].get(setting), str):
            plain[section][setting] = {"name": plain[section][setting]}
    return plain


def write_settings(settings: Mapping[str, Any]) -> str:
    """Settings as YAML."""
    return OmegaConf.to_yaml(OmegaConf.create(dict(settings)))


def _plain(value: Any) -> Any:
    """Paths as texts and mappings as dictionaries; everything else as it is."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return str(value) if isinstance(value, Path) else value


def _read(source: Source) -> Settings:
    if isinstance(source, Mapping):
        return normalise(source)
    text = str(source)
    return _override(text) if "=" in text and not isinstance(source, Path) else _file(text)


def _file(name: str) -> Settings:
    path = Path(name)
    if path.suffix.lower() in (".csv", ".gz", ".tsv", ".parquet"):
        raise UserError(f"{name!r} is a table, not settings: give it as data={name}")
    if not path.is_file():
        raise UserError(f"{name!r} is neither a setting of the form key=value nor a YAML file that exists")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{name!r} cannot be read as YAML: {_one_line(error)}") from error
    return parse_settings(text, name)


def parse_settings(text: str, name: str) -> Settings:
    """The settings in a YAML text, which is called by a name where it is wrong."""
    try:
        content = OmegaConf.to_container(OmegaConf.create(text), resolve=True)
    except (YAMLError, OmegaConfBaseException) as error:
        raise UserError(f"{name!r} cannot be read as YAML: {_one_line(error)}") from error
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise UserError(f"{name!r} must hold settings by name, such as `rounds: 50`")
    return normalise({str(key): value for key, value in content.items()})


def _override(argument: str) -> Settings:
    key, _, text = argument.partition("=")
    if not all(re.fullmatch(r"[\w-]+", part) for part in key.split(".")):
        raise UserError(f"{argument!r} is not a setting: it must look like rounds=50 or method.mixing=0.5")
    if not text:
        raise UserError(f"{argument!r} has no value: give it as {key}=VALUE (null for none)")
    # A mark, such as "?" for missing values or "|" between columns; or a pattern, such as "*.bias".
    if re.fullmatch(r"[?,;|.:/+*#-]+", text) or text.startswith("*"):
        return normalise({key: text})
    try:
        value = OmegaConf.to_container(OmegaConf.from_dotlist([f"value={text}"]), resolve=True)["value"]  # type: ignore[index, call-overload]
    except (YAMLError, OmegaConfBaseException) as error:
        raise UserError(f"{argument!r} has a value that cannot be read: {_one_line(error)}") from error
    return normalise({key: value})


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
