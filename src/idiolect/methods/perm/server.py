"""What PERM's server remembers, in both of its variants. Spec 5.2."""

from typing import NamedTuple

import torch
from torch import Tensor

from idiolect.core import Params, tree
from idiolect.methods.perm.matrix import MixingMatrix
from idiolect.methods.perm.route import Route
from idiolect.methods.perm.sizes import ModelSizes, compared_kinds, each_held, held_by


class Server(NamedTuple):
    """The global model, all personal models, the mixing matrix and what it was computed from."""

    round: Tensor
    w: Params
    v: Params  # stacked: the personal model of every client there ever is
    mixing: MixingMatrix  # A: row i is α_i
    gradients: Params  # stacked: the last gradient of every client
    gradients_at: Params  # the w of the last gradients
    variances: Tensor  # [N, kinds]: σ̂_i², of one row's gradient, where it was asked for
    squares: Tensor  # [N]: t̂_i
    heard: Tensor  # bool[N]: who has sent a gradient
    sizes: Tensor  # int64[N]: n_j
    route: Route
    final_gradient: Params  # stacked: Σ_j α_i(j) ∇f_j(v_i) so far; empty where no last step is asked for

    @classmethod
    def start(
        cls,
        params: Params,
        sizes: Tensor,
        key: Tensor,
        *,
        takes_last_step: bool,
        model_sizes: ModelSizes | None,
    ) -> "Server":
        """w^0, v_i^0 = w^0, no weights yet."""
        clients = len(sizes)
        copies = tree.map_tree(torch.clone, tree.repeat(params, clients))
        return cls(
            round=torch.tensor(0),
            w=params,
            v=copies,
            mixing=MixingMatrix.empty(tree.scalar_of(params)),
            gradients=tree.zeros_like(copies),
            gradients_at=params,
            variances=tree.scalar_of(params).new_zeros(clients, len(compared_kinds(model_sizes))),
            squares=tree.scalar_of(params).new_zeros(clients),
            heard=torch.zeros(clients, dtype=torch.bool),
            sizes=sizes,
            route=Route.start(clients, key),
            final_gradient=tree.zeros_like(copies) if takes_last_step else {},
        )

    @property
    def clients(self) -> int:
        """N."""
        return len(self.sizes)

    @property
    def key(self) -> Tensor:
        """The server's randomness."""
        return self.route.key

    def following(self, started: Tensor, model_sizes: ModelSizes | None) -> "Server":
        """v_i <- w for the personal models that have not started (m_i ⊙ w for a client of small capacity)."""
        if started.all():
            return self
        ratios = held_by(model_sizes, torch.arange(self.clients))
        copies = each_held(tree.repeat(self.w, self.clients), ratios)
        return self._replace(v=tree.where(started, self.v, copies))
