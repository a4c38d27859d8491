"""What EFL's server makes of its clients: their weights, their Fisher terms, how often each was heard.

Spec 3.7, 3.6 (S5), 7.3.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from idiolect import core
from idiolect.core import Params, Site, tree
from idiolect.methods.efl.fisher import FisherKind, diagonal_fisher

ReplyWeighting = Literal["unbiased", "literal", "normalised"]


def elastic_weights(steps: Tensor, cohort: core.Cohort, weighting: ReplyWeighting, *, scaled: bool) -> Tensor:
    """p_τ^k, float64[m]: (E / s_k) p^k, divided by the chance of being asked, by nothing, or by Σ p^k.

    p^k = n_k / n over the clients that are present, so that weights are renormalised when somebody leaves.
    `scaled`: the clients have already applied E / s_k.
    """
    assert cohort.local_steps is not None
    shares = cohort.sizes / cohort.population.rows.to(torch.float64)
    weights = shares if scaled else shares * cohort.local_steps / steps
    match weighting:
        case "unbiased":
            draws = 1.0 if cohort.multiplicity is None else cohort.multiplicity
            return weights * draws / cohort.inclusion
        case "normalised":
            return weights / shares.sum()
        case "literal":
            return weights


class Terms(NamedTuple):
    """u and v = u ⊙ ω: of one client, of a stack of clients, or summed."""

    u: Params
    v: Params

    @classmethod
    def zero(cls, model: Params) -> "Terms":
        """Those that pull nowhere."""
        return cls(tree.zeros_like(model), tree.zeros_like(model))

    @classmethod
    def of(cls, kind: FisherKind, model: Params, site: Site, rows: int | None) -> "Terms":
        """u: the diagonal Fisher information of a client's rows at its model, and v."""
        u = diagonal_fisher(kind, model, site, rows)
        return cls(u, tree.map_tree(torch.mul, u, model))


class Elastic(NamedTuple):
    """The sums U and V, whose terms are in them, and the terms one by one where they are needed again."""

    sums: Terms
    contributors: Tensor  # bool[clients]
    table: Terms | tuple[()]  # stacked over all clients; zero for those who do not contribute

    @classmethod
    def begin(cls, params: Params, clients: int, *, keeps_table: bool) -> "Elastic":
        """U = V = 0: nobody has contributed."""
        zero = Terms.zero(params)
        table = tree.map_tree(lambda leaf: leaf.new_zeros(clients, *leaf.shape), zero)
        return cls(zero, torch.zeros(clients, dtype=torch.bool), table if keeps_table else ())

    @property
    def largest(self) -> Tensor:
        """max U."""
        return torch.stack([leaf.max() for leaf in tree.leaves(self.sums.u)]).max()

    def reported(self, terms: Terms, cohort: core.Cohort, *, stale: bool) -> "Elastic":
        """With the terms of this round's reporters instead of all others, or, if stale, of their old ones."""
        reporters = torch.zeros_like(self.contributors).index_fill(0, cohort.ids, True)
        contributors = (reporters | self.contributors if stale else reporters) & cohort.population.present
        if not isinstance(self.table, Terms):
            return Elastic(_total(terms), contributors, ())
        table = tree.map_tree(lambda old, new: old.index_copy(0, cohort.ids, new), self.table, terms)
        table = tree.where(contributors, table, tree.zeros_like(table))
        return Elastic(_total(table), contributors, table)

    def sent(self, without: Tensor | None, *, mean: bool) -> Terms | tuple[()]:
        """U and V for everybody, or, stacked, each `without` the terms of one client; nothing while zero."""
        if not self.contributors.any():
            return ()
        terms, count = self.sums, self.contributors.sum()
        if without is not None:
            assert isinstance(self.table, Terms)
            terms = tree.map_tree(lambda total, own: total - own[without], self.sums, self.table)
            count = count - self.contributors[without].to(torch.int64)
        if not mean:
            return terms
        factor = 1 / count.clamp(min=1).double()  # of integers torch would divide in float32
        return tree.map_tree(
            lambda leaf: (
                leaf * factor.to(leaf.dtype).reshape(factor.shape + (1,) * (leaf.ndim - factor.ndim))
            ),
            terms,
        )


def _total(stacked: Terms) -> Terms:
    return tree.map_tree(lambda leaf: leaf.sum(0), stacked)


class Activity(NamedTuple):
    """How often each client was heard, and how often it would have been, had it always been active."""

    replies: Tensor  # float64[clients]
    expected: Tensor  # float64[clients]

    @classmethod
    def begin(cls, clients: int) -> "Activity":
        """Nobody was asked yet."""
        return cls(torch.zeros(clients, dtype=torch.float64), torch.zeros(clients, dtype=torch.float64))

    def heard(self, cohort: core.Cohort) -> "Activity":
        """After a round. Who was asked in vain is not known, only the chance with which each was asked."""
        chance = cohort.inclusion.mean().clamp(max=1)
        one = torch.ones_like(cohort.inclusion)
        return Activity(
            self.replies.index_add(0, cohort.ids, one), self.expected + chance * cohort.population.present
        )

    @property
    def inactive_rate(self) -> Tensor:
        """y^a: the fraction of expected replies that did not come, float64[clients]."""
        return (1 - self.replies / self.expected.clamp(min=1e-9)).clamp(0, 1)


def diagnostics(
    activity: Activity, elastic: Elastic, elasticity: float, abandon_above: float | None
) -> core.Info:
    """λ max U (stable if rate * (L + λ max U) < 2), and who is often inactive."""
    inactive = activity.inactive_rate
    info = {"inactive_rate": inactive, "elastic_strength": elasticity * elastic.largest}
    return info if abandon_above is None else info | {"abandon": inactive > abandon_above}
