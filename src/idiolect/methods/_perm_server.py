"""What PERM's server remembers, in both of its variants, and how a round ends. Spec 5.2, 5.5."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from idiolect.core import Params, Population, onto_ball, tree
from idiolect.core.submodel import Chain
from idiolect.methods._mixing import ModelSizes
from idiolect.methods._mixing_matrix import MixingMatrix
from idiolect.methods._shuffling import Route


class Server(NamedTuple):
    """The global model, all personal models, the mixing matrix and what it was computed from."""

    round: Tensor
    w: Params
    v: Params  # stacked: the personal model of every client there ever is
    mixing: MixingMatrix  # A: row i is α_i
    gradients: Params  # stacked: the last gradient of every client
    compared_at: Params  # the w of the last gradients
    heard: Tensor  # bool[N]: who has sent a gradient
    sizes: Tensor  # int64[N]: n_j
    route: Route
    final_gradient: (
        Params | tuple[()]
    )  # stacked: Σ_j α_i(j) ∇f_j(v_i) so far, where the last step is asked for

    @property
    def clients(self) -> int:
        """N."""
        return len(self.sizes)

    @property
    def key(self) -> Tensor:
        """The server's randomness."""
        return self.route.key


class Brief(NamedTuple):
    """To client i, to predict with: the global model and v_i."""

    w: Params
    v: Params


def start(
    params: Params, population: Population, key: Tensor, sizes: ModelSizes | None, *, sums_gradients: bool
) -> Server:
    """w^0, v_i^0 = w^0, no weights yet."""
    if sizes:
        Chain.of(params).refuse_empty_layers(sizes.capacities)
    clients = len(population.sizes)
    personal = _repeated(params, clients)
    server = Server(
        round=torch.tensor(0),
        w=params,
        v=personal,
        mixing=MixingMatrix.empty(tree.scalar_of(params)),
        gradients=tree.zeros_like(personal),
        compared_at=params,
        heard=torch.zeros(clients, dtype=torch.bool),
        sizes=population.sizes,
        route=Route.start(clients, key),
        final_gradient=tree.zeros_like(personal) if sums_gradients else (),
    )
    return follow(server, server.heard, sizes)


def follow(server: Server, started: Tensor, sizes: ModelSizes | None) -> Server:
    """v_i <- w for the personal models that have not started (m_i ⊙ w for a client of small capacity)."""
    if started.all():
        return server
    copies = _repeated(server.w, server.clients)
    if sizes:
        chain = Chain.of(server.w)
        copies = vmap(lambda v, ratio: chain.restrict(v, chain.first_units(ratio)))(
            copies, sizes.ratios(server.clients)
        )
    return server._replace(v=tree.where(started, server.v, copies))


def end_visits(
    server: Server, ball_radius: float | None, epochs: int | None, final_step: float | None
) -> Server:
    """After a round of visits: at the end of an epoch v_i <- Π_W(v_i), and of the last one v_i <- v̂_i."""
    route = server.route.advanced(server.mixing)
    v = server.v
    if route.epoch > server.route.epoch:
        if (
            final_step is not None
            and server.route.epoch == epochs
            and isinstance(server.final_gradient, dict)
        ):
            v = tree.step(v, final_step, server.final_gradient)
        if ball_radius is not None:
            v = vmap(lambda one: onto_ball(one, ball_radius))(v)
    return server._replace(v=v, route=route)


def _repeated(params: Params, clients: int) -> Params:
    """Copies for all clients, each in memory of its own."""
    return tree.map_tree(lambda leaf: leaf.expand(clients, *leaf.shape).clone(), params)
