"""Client states in memory: one tensor for each field, with one row for each client."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.device import CPU, has_room, to_device, to_host
from idiolect.core.exchange import ClientState
from idiolect.store.files import read_tensors, write_tensors

_FILE = "clients.safetensors"
_PRESENT = "present"
_STATES = "states"


class MemoryStore:
    """All client states, stacked; memory is taken when the first state arrives.

    They are on the `device` on which clients are computed if all fit there, else in the host's memory.
    """

    def __init__(self, clients: int, device: torch.device = CPU) -> None:
        self.clients = clients
        self.device = device
        self.present = torch.zeros(clients, dtype=torch.bool)
        self.states: ClientState = None

    def known(self, ids: Tensor) -> Tensor:
        """Which of the clients have a state."""
        return self.present[ids]

    def get(self, ids: Tensor) -> ClientState:
        """The stacked states of known clients."""
        places = to_device(ids, self.device)
        return tree.map_tree(lambda leaf: leaf.index_select(0, places), self.states)

    def put(self, ids: Tensor, states: ClientState) -> None:
        """Keep states."""
        if self.states is None:
            self._find_room(states)
            states = to_device(states, self.device)
            self.states = tree.map_tree(lambda leaf: leaf.new_zeros(self.clients, *leaf.shape[1:]), states)
        states, places = to_device((states, ids), self.device)
        tree.map_tree(lambda kept, new: kept.index_copy_(0, places, new), self.states, states)
        self.present[ids] = True

    def save(self, folder: Path) -> None:
        """Write all states into a folder."""
        content = {_PRESENT: self.present, _STATES: self.states if self.present.any() else ()}
        write_tensors(folder / _FILE, tree.to_named(to_host(content)))

    def load(self, folder: Path, template: ClientState) -> None:
        """Read what `save` wrote; `template` is any state of the method, which may have no tensors at all."""
        named = read_tensors(folder / _FILE)
        anybody = bool(named[_PRESENT].any())
        content: dict[str, Any] = tree.from_named(
            named, {_PRESENT: self.present, _STATES: template if anybody else ()}
        )
        self.present = content[_PRESENT]
        self.states = None
        if anybody:
            self._find_room(content[_STATES])
            self.states = to_device(content[_STATES], self.device)

    def _find_room(self, states: ClientState) -> None:
        """Stay off the device if the states of all clients do not fit there; these are some of them."""
        size = sum(leaf[:1].nbytes for leaf in tree.leaves(states)) * self.clients
        if not has_room(self.device, size):
            self.device = CPU
