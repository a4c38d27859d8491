"""Settings that suit a data set, where the user gives none."""

from idiolect.core.method import Method
from idiolect.runs.checks import fields_of
from idiolect.runs.settings import Settings, merge, normalise

_GENERAL: Settings = {"model": "linear"}
_BY_DATA: dict[str, Settings] = {
    "vowels": {"model": "linear", "rounds": 100, "lr": 0.5, "batch_size": 20},
    "shakespeare": {"model": "char-lstm"},
    "quadratics": {"model": "quadratic"},
    "quadratic-pair": {"model": "quadratic"},
    "quadratic-line": {"model": "quadratic"},
}


def defaults_for(data: str, method: type[Method]) -> Settings:
    """The settings for a data set, without hyper-parameters that the method does not have."""
    settings = merge(normalise(_GENERAL), normalise(_BY_DATA.get(data, {})))
    known = fields_of(method)
    settings["method"] = {key: v for key, v in settings.get("method", {}).items() if key in known}
    return settings
