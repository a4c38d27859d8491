"""Shuffling Local SGD: every personal model visits every client that has weight in it. Spec 5.5, 5.11.

In an epoch with permutation σ, round j sends model i to client c = σ((i + j) mod N) for all i at once, so
every client serves one model. Visits of weight zero would change nothing and are left out. A visit whose
client is offline, or whose reply is lost, waits: after the N rounds of the epoch come further ones in which
every client is offered the model that has waited for it longest, until nothing waits or N more rounds have
passed.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from idiolect.core import rng
from idiolect.methods.perm.matrix import MixingMatrix

NOBODY = -1


class Route(NamedTuple):
    """Where an epoch stands."""

    key: Tensor  # draws the permutations
    epoch: Tensor  # finished epochs
    position: Tensor  # finished rounds of this one
    order: Tensor  # int64[N]: σ of this epoch
    visitors: Tensor  # int64[N]: the model that visits each client in this round, or nobody
    returned: Tensor  # bool[N]: the clients from which a model has come back in this round
    waiting: Tensor  # int64: visits still to be made up for, as model · N + client, oldest first

    @classmethod
    def start(cls, clients: int, key: Tensor) -> "Route":
        """Before the first epoch, with nobody on the way."""
        return cls(
            key=key,
            epoch=torch.tensor(0),
            position=torch.tensor(0),
            order=_order(key, torch.tensor(0), clients),
            visitors=torch.full((clients,), NOBODY),
            returned=torch.zeros(clients, dtype=torch.bool),
            waiting=torch.zeros(0, dtype=torch.int64),
        )

    @property
    def starts_epoch(self) -> bool:
        """Whether the next round is the first of an epoch."""
        return int(self.position) == 0

    def planned(self, mixing: MixingMatrix) -> "Route":
        """With the visits of this round."""
        clients = len(self.visitors)
        visitors = torch.full((clients,), NOBODY)
        if self.position < clients:
            models = torch.arange(clients)
            hosts = self.order[(models + self.position) % clients]
        else:
            models, hosts = _offered(self.waiting // clients, self.waiting % clients, clients)
        due = mixing.at(models, hosts, clients) > 0
        visitors[hosts[due]] = models[due]
        return self._replace(visitors=visitors, returned=torch.zeros(clients, dtype=torch.bool))

    def back_from(self, hosts: Tensor) -> "Route":
        """With the models at these clients returned."""
        return self._replace(returned=self.returned.index_fill(0, hosts, True))

    def advanced(self, mixing: MixingMatrix) -> "Route":
        """After this round: visits that did not take place wait, and the next ones are planned."""
        clients = len(self.visitors)
        hosts = (self.visitors != NOBODY).nonzero()[:, 0]
        due = self.visitors[hosts] * clients + hosts
        waiting = torch.cat([self.waiting[~torch.isin(self.waiting, due)], due[~self.returned[hosts]]])
        waiting = waiting[mixing.at(waiting // clients, waiting % clients, clients) > 0]
        route = self._replace(position=self.position + 1, waiting=waiting)
        if route.position >= 2 * clients or (route.position >= clients and not len(waiting)):
            route = route._next_epoch()
        return route.planned(mixing)

    def _next_epoch(self) -> "Route":
        epoch = self.epoch + 1
        order = _order(self.key, epoch, len(self.order))
        return self._replace(
            epoch=epoch, position=torch.zeros_like(self.position), order=order, waiting=self.waiting[:0]
        )


def _order(key: Tensor, epoch: Tensor, clients: int) -> Tensor:
    return rng.permutation(rng.fold(key, epoch), clients)


def _offered(models: Tensor, hosts: Tensor, clients: int) -> tuple[Tensor, Tensor]:
    """Of the waiting visits, the oldest of each client, and of those the oldest of each model."""
    oldest = _first_places(hosts, clients)
    models, hosts = models[oldest], hosts[oldest]
    oldest = _first_places(models, clients)
    return models[oldest], hosts[oldest]


def _first_places(numbers: Tensor, clients: int) -> Tensor:
    """Where each number occurs first, ascending."""
    places = torch.arange(len(numbers))
    first = torch.full((clients,), len(numbers)).scatter_reduce(0, numbers, places, "amin")
    return first[first < len(numbers)].sort().values
