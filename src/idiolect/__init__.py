"""Personalized federated learning: many clients learn together, each ends with a model of its own."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from idiolect.api import Result, method, train
    from idiolect.data.catalogue import load
    from idiolect.data.federation import Federation
    from idiolect.errors import UserError
    from idiolect.participation import Participation
    from idiolect.runs.client_model import load_model
    from idiolect.runs.folder import RunFolder

__all__ = [
    "Federation",
    "Participation",
    "Result",
    "RunFolder",
    "UserError",
    "load",
    "load_model",
    "method",
    "train",
]

_HOMES = {
    "Federation": "data.federation",
    "Participation": "participation",
    "Result": "api",
    "RunFolder": "runs.folder",
    "UserError": "errors",
    "load": "data.catalogue",
    "load_model": "runs.client_model",
    "method": "api",
    "train": "api",
}


def __getattr__(name: str) -> Any:
    # Only what is used is imported: the command line answers before torch is loaded.
    if name not in _HOMES:
        raise AttributeError(f"module 'idiolect' has no attribute {name!r}")
    return getattr(import_module(f"idiolect.{_HOMES[name]}"), name)
