"""Shares of clients in min_w max_q Σ q_i f_i(w), q on the simplex: draws by share, and ascent. Spec 6.12."""

import torch
from torch import Tensor

from idiolect import core
from idiolect.core import rng
from idiolect.errors import require_finite


def initial_shares(population: core.Population) -> Tensor:
    """q⁰ = n_i / n over the clients that are present, float64[clients]."""
    rows = (population.sizes * population.present).double()
    return rows / rows.sum()


def ascend(shares: Tensor, slope: Tensor, population: core.Population) -> Tensor:
    """Π(q + slope) on the simplex of the clients that are present."""
    present = population.present
    require_finite(slope, "the losses by which clients' shares are raised")
    raised = torch.zeros_like(shares)
    raised[present] = core.onto_simplex((shares + slope)[present])
    return raised


def drawn_by_share(shares: Tensor, cohort: core.Cohort, key: Tensor) -> core.Cohort:
    """As many draws as the plan asks clients, with replacement, in proportion to q."""
    present = cohort.population.present.double()
    shares = shares * present
    if shares.sum() == 0:  # all who had a share have left
        shares = present
    shares = shares / shares.sum()
    draws = torch.searchsorted(shares.cumsum(0), rng.uniform(key, len(cohort)), right=True)
    draws = draws.clamp_max(int(shares.nonzero().max()))  # the last sum may fall short of 1 by rounding
    ids, counts = draws.unique(return_counts=True)
    inclusion = 1 - (1 - shares[ids]) ** len(cohort)
    return _replaced(cohort, ids, inclusion, counts.double())


def drawn_uniformly(cohort: core.Cohort, key: Tensor) -> core.Cohort:
    """As many present clients as the plan asks, each set of that size equally likely."""
    everybody = cohort.population.present.nonzero()[:, 0]
    chosen = rng.permutation(key, len(everybody))[: len(cohort)]
    ids = everybody[chosen].sort().values
    inclusion = torch.full((len(ids),), len(ids) / len(everybody), dtype=torch.float64)
    return _replaced(cohort, ids, inclusion, None)


def _replaced(
    cohort: core.Cohort, ids: Tensor, inclusion: Tensor, multiplicity: Tensor | None
) -> core.Cohort:
    """The plan's requests, to other clients; those whom the plan did not ask inherit a request's fate."""
    place = torch.searchsorted(cohort.ids, ids).clamp_max(len(cohort) - 1)
    place = torch.where(cohort.ids[place] == ids, place, torch.arange(len(ids)))
    return core.Cohort(
        ids, cohort.work[place], cohort.replied[place], inclusion, cohort.population, None, multiplicity
    )
