"""What makes a run this run: all of its settings, but for those that came later and are at their defaults.

The names of folders follow from it, so runs that were kept before there was such a setting are found again.
"""

from collections.abc import Mapping
from typing import Any

from idiolect.runs.settings import Settings

# Settings that the configuration did not have from the beginning, and the values at which a run is what it
# was without them. Whoever adds a setting adds a line; a dot leads into a section, as in "evaluation.train".
ADDED_LATER: dict[str, Any] = {
    "device": "cpu",
    "robust": None,
    "statistics": None,
    "train": None,
    "outer": None,
    "privacy": None,
}


def identity(settings: Mapping[str, Any], later: Mapping[str, Any] = ADDED_LATER) -> Settings:
    """Plain settings without those that came later and have their defaults.

    >>> identity({"rounds": 5, "device": "cpu"}, {"device": "cpu"})
    {'rounds': 5}
    >>> identity({"rounds": 5, "device": "cuda"}, {"device": "cpu"})
    {'rounds': 5, 'device': 'cuda'}
    >>> identity({"model": {"name": "mlp", "weights": None}}, {"model.weights": None})
    {'model': {'name': 'mlp'}}
    """
    kept: Settings = {}
    for name, value in settings.items():
        inside = {path.partition(".")[2]: later[path] for path in later if path.startswith(f"{name}.")}
        if inside and isinstance(value, Mapping):
            kept[name] = identity(value, inside)
        elif name not in later or value != later[name]:
            kept[name] = value
    return kept
