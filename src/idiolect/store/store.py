"""Client states behind one interface, whether they are in memory or on disk."""

from pathlib import Path
from typing import Protocol

from torch import Tensor

from idiolect.core.exchange import ClientState


class Store(Protocol):
    """Holds the state of every client that has one, stacked by client number."""

    def known(self, ids: Tensor) -> Tensor:
        """Which of the clients have a state, bool[m]."""
        ...

    def get(self, ids: Tensor) -> ClientState:
        """The stacked states of clients that are known."""
        ...

    def put(self, ids: Tensor, states: ClientState) -> None:
        """Keep the stacked states of some clients."""
        ...

    def save(self, folder: Path) -> None:
        """Write all states into a folder."""
        ...

    def load(self, folder: Path, template: ClientState) -> None:
        """Read what `save` wrote; `template` is any state of the method, for its structure."""
        ...
