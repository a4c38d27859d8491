"""Client states that are with the clients themselves, as those of silos are."""

from pathlib import Path

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.exchange import ClientState
from idiolect.errors import UserError
from idiolect.store.files import read_tensors, write_tensors

_FILE = "roster.safetensors"


class Roster:
    """Who has a state, which is elsewhere; here are only first states on their way to an arrival."""

    def __init__(self, clients: int) -> None:
        self.has_state = torch.zeros(clients, dtype=torch.bool)
        self.pending: dict[int, ClientState] = {}

    def known(self, ids: Tensor) -> Tensor:
        """Who has a state, or will be sent one."""
        return self.has_state[ids] | torch.tensor([int(i) in self.pending for i in ids], dtype=torch.bool)

    def get(self, ids: Tensor) -> ClientState:
        """The stacked states of clients that will be sent one; nobody else's are here."""
        if not all(client_id in self.pending for client_id in ids.tolist()):
            raise UserError(
                "the clients' own states are at their silos, and so are the models that need them: "
                "use `idiolect export --state` there"
            )
        return tree.stack([self.pending[client_id] for client_id in ids.tolist()])

    def put(self, ids: Tensor, states: ClientState) -> None:
        """Send an arrival its first state with the first request."""
        for place, client_id in enumerate(ids.tolist()):
            self.pending[client_id] = tree.row(states, place)

    def settled(self, client_id: int) -> None:
        """A client has answered, so it has a state."""
        self.has_state[client_id] = True
        self.pending.pop(client_id, None)

    def save(self, folder: Path) -> None:
        """Write what is here into a folder."""
        states = tree.stack(list(self.pending.values())) if self.pending else ()
        ids = torch.tensor(list(self.pending), dtype=torch.int64)
        write_tensors(folder / _FILE, tree.to_named(_content(self.has_state, ids, states)))

    def load(self, folder: Path, template: ClientState) -> None:
        """Read what `save` wrote; `template` is any state of the method."""
        named = read_tensors(folder / _FILE)
        ids = named["ids"].tolist()
        content = tree.from_named(named, _content(self.has_state, named["ids"], template if ids else ()))
        self.has_state = content["has_state"]
        self.pending = {client_id: tree.row(content["states"], place) for place, client_id in enumerate(ids)}


def _content(has_state: Tensor, ids: Tensor, states: ClientState) -> dict[str, ClientState]:
    return {"has_state": has_state, "ids": ids, "states": states}
