"""Messages that many methods have."""

from typing import NamedTuple

from idiolect.core.tree import Params


class Nothing(NamedTuple):
    """A message, or a state, without content."""


class SharedModel(NamedTuple):
    """To every client: the model that the server has for all."""

    w: Params


class LocalModel(NamedTuple):
    """From each client: its copy of the shared model after the local steps."""

    w: Params
