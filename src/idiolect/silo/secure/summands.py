"""An upload as numbers to be summed, and the weighted mean of uploads from their sum.

The server of a method that says how it weighs replies needs Σ a_i x_i only, a_i = c_i / Σ_j c_j, where c_i
follows from what client i has and did: one, its rows, or zero if it did not complete its work. Silo i sends
c_i x_i and c_i, both masked. The coordinator sees Σ c_i x_i and Σ c_i, and divides.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from idiolect.core import tree
from idiolect.core.around import innermost
from idiolect.core.cohort import Cohort, Population
from idiolect.core.exchange import Exchange, Message
from idiolect.errors import UserError


def numbers_of(upload: Message, weight: float) -> NDArray[np.float64]:
    """c_i x_i, entry by entry in the order of names, and then c_i."""
    named = tree.to_named(upload)
    entries = [named[name].detach().double().reshape(-1).numpy() * weight for name in sorted(named)]
    return np.concatenate([*entries, np.array([weight])])


def count_numbers(like: Message) -> int:
    """How many numbers an upload of this kind is."""
    return sum(leaf.numel() for leaf in tree.leaves(like)) + 1


def mean_of(total: NDArray[np.float64], like: Message) -> Message:
    """Σ a_i x_i from the sums of what silos sent; zero where nobody counts, which the method then knows."""
    weight = float(total[-1])
    means = torch.from_numpy(total[:-1] / weight if weight else np.zeros(len(total) - 1))
    start, named = 0, tree.to_named(like)
    means_by_name = {}
    for name in sorted(named):
        leaf = named[name]
        means_by_name[name] = means[start : start + leaf.numel()].reshape(leaf.shape).to(leaf.dtype)
        start += leaf.numel()
    return tree.from_named({name: means_by_name[name] for name in named}, like)


def own_weight(exchange: Exchange, cohort: Cohort) -> float:
    """c_i of a client: how much it counts beside one that has a single row and completes its work."""
    assert cohort.local_steps is not None, "set for each exchange"
    both = Cohort(
        ids=torch.tensor([0, 1]),
        work=torch.cat([cohort.work, torch.ones_like(cohort.work)]),
        replied=torch.tensor([True, True]),
        inclusion=torch.ones(2, dtype=torch.float64),
        population=Population(
            torch.cat([cohort.sizes, torch.ones_like(cohort.sizes)]), torch.tensor([True, True])
        ),
        local_steps=cohort.local_steps.repeat(2),
    )
    weights = innermost(exchange).weights(None, both)
    if weights is None:
        raise UserError(
            f"{type(innermost(exchange)).__name__} is an exchange whose server needs each silo's own upload, "
            "and secure sums show nobody one"
        )
    return float(weights[0] / weights[1])
