"""Client states in memory: one tensor for each field, with one row for each client."""

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.method import ClientState


class MemoryStore:
    """All client states, stacked; memory is taken when the first state arrives."""

    def __init__(self, clients: int) -> None:
        self.clients = clients
        self.present = torch.zeros(clients, dtype=torch.bool)
        self.states: ClientState = None

    def known(self, ids: Tensor) -> Tensor:
        """Which of the clients have a state."""
        return self.present[ids]

    def get(self, ids: Tensor) -> ClientState:
        """The stacked states of known clients."""
        return tree.select(self.states, ids)

    def put(self, ids: Tensor, states: ClientState) -> None:
        """Keep states."""
        if self.states is None:
            self.states = tree.map_tree(lambda leaf: leaf.new_zeros(self.clients, *leaf.shape[1:]), states)
        tree.map_tree(lambda kept, new: kept.index_copy_(0, ids, new), self.states, states)
        self.present[ids] = True
