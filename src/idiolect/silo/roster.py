"""The silos as the coordinator knows them: their rows, and who has a state already."""

from pathlib import Path

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.exchange import ClientState


class Roster:
    """A store whose states are at the silos; here are only first states on their way there."""

    def __init__(self, clients: int) -> None:
        self.has_state = torch.zeros(clients, dtype=torch.bool)
        self.pending: dict[int, ClientState] = {}

    def known(self, ids: Tensor) -> Tensor:
        """Who has a state, or will be sent one."""
        return self.has_state[ids] | torch.tensor([int(i) in self.pending for i in ids], dtype=torch.bool)

    def get(self, ids: Tensor) -> ClientState:
        """States never come here."""
        raise NotImplementedError("client states stay at the silos")

    def put(self, ids: Tensor, states: ClientState) -> None:
        """Send a newcomer its first state with the first request."""
        for place, number in enumerate(ids.tolist()):
            self.pending[number] = tree.row(states, place)

    def settled(self, number: int) -> None:
        """A silo has answered, so it has a state."""
        self.has_state[number] = True
        self.pending.pop(number, None)

    def save(self, folder: Path) -> None:
        """The coordinator's checkpoint has what there is to save."""
        raise NotImplementedError

    def load(self, folder: Path, template: ClientState) -> None:
        """The coordinator's checkpoint has what there is to load."""
        raise NotImplementedError
