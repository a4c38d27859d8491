"""The noise of gradients that are means of few rows, and whether clients differ by more. Spec 5.4.

A client's rows, in random order, are dealt to B parts of b_k rows with mean gradients m_k. With M_k the mean
of the first k parts, which have a_k rows, the contrasts (Helmert's)

    h_k = sqrt(b_k a_{k-1} / a_k) (m_k - M_{k-1}),    k = 2 .. B

have mean 0 and the covariance Σ of one row's gradient each, and are uncorrelated. So, without bias,

    σ̂² = mean_k |h_k|²             is tr Σ: the mean of n rows has the variance s = σ²/n
    t̂  = mean_k (h_k · h_{k+1})²   is tr Σ² (for normal gradients), d = σ⁴/t their effective dimension
    z_ij - ŝ_i - ŝ_j               is |E g_i - E g_j|²;  where that is 0, its variance is 2 (s_i + s_j)² / d

All parts together cost what one gradient of all rows costs. docs/methods/perm.md derives what is made of it.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from idiolect import core
from idiolect.core import Params, Site, rng, tree
from idiolect.core.inputs import take_rows
from idiolect.methods.perm.sizes import Held, held

PARTS = 8  # B: the error of ŝ adds 1 / (2 (B - 1)) to the variance of a distance, 7 %
DOUBT = 3.0  # standard errors within which clients count as alike


def alike_variance(variances: Tensor, squares: Tensor, shares: Tensor) -> Tensor:
    """2/d (1 + 1/(2(B-1))): the variance of (z_ij - ŝ_i - ŝ_j) / (s_i + s_j) among equal clients."""
    inverse_dimension = (shares @ squares) / (shares @ variances.square())
    return 2 * inverse_dimension * (1 + 1 / (2 * (PARTS - 1)))


class GradientNoise(NamedTuple):
    """What a server knows of the noise in all gradients."""

    of_means: Tensor  # s_i = σ_i² / m_i, float64[clients, kinds]
    alike: float  # the variance of z_ij / (s_i + s_j) among equal clients
    known: Tensor  # bool[clients]: who counts

    @classmethod
    def of(
        cls, variances: Tensor, squares: Tensor, sizes: Tensor, drawn_rows: int | None, known: Tensor
    ) -> "GradientNoise | None":
        """From σ̂_i² and t̂_i of those that are known; None if they say nothing.

        Gradients were of m_i = min(n_i, M) rows, M = `drawn_rows`. Who has one row, or was not asked yet,
        gets the mean of the others.
        """
        all_variances = variances.to(torch.float64)
        whole = all_variances[:, -1]  # the last kind holds most
        shares = (known & (whole > 0)) * sizes.to(torch.float64)
        if not shares.any():
            return None
        shares = shares / shares.sum()
        filled = torch.where(shares[:, None] > 0, all_variances, shares @ all_variances)
        alike = alike_variance(whole, squares.to(torch.float64), shares)
        return cls(filled / sizes.clamp(min=1, max=drawn_rows)[:, None], float(alike), known)

    def difference(self, excess: float) -> float:
        """How much of the distances counts: max(0, 1 - (3 e / x̄)⁴), 0 if clients may well be alike.

        x̄ = `excess` is the mean of (z_ij - ŝ_i - ŝ_j) / (ŝ_i + ŝ_j) over all pairs, and e its standard error
        among equal clients: the noise of each of the N is in N - 1 pairs, so e² is a pair's variance over N.
        """
        error = (self.alike / max(int(self.known.sum()), 1)) ** 0.5
        return max(0.0, 1 - (DOUBT * error / excess) ** 4) if excess > 0 else 0.0


def drawn(site: Site, count: int, tag: int) -> core.Batch:
    """Some of a client's training rows in random order, without replacement; all if it has fewer."""
    rows, size = site.all_rows, site.size.clamp_min(1)
    place = torch.arange(count, device=size.device)
    chosen = rng.permute(place % size, size, rng.fold(site.key, tag))
    weights = (place < size).to(rows.weights.dtype) / size.clamp_max(count)
    return rows._replace(inputs=take_rows(rows.inputs, chosen), targets=rows.targets[chosen], weights=weights)


def gradient_variance(
    site: Site, w: Params, drawn_rows: int | None, ratio: Held, kinds: Sequence[Held]
) -> tuple[Tensor, Tensor]:
    """σ̂² [kinds] and t̂ of a client's rows at w; of as many as its gradient was computed from."""
    width = len(site.all_rows.weights) if drawn_rows is None else drawn_rows
    rows = drawn(site, width, tag=drawn_rows or 0)

    def gradient(batch: core.Batch) -> Params:
        return held(site.objective.data_gradient(w, batch), ratio)

    variance, square = row_variance(gradient, rows, kinds, site.size.clamp_max(width))
    if site.objective.clip is None:
        return variance, square
    # A gradient that is shortened to `clip` has its noise shortened with it.
    longest = site.objective.clip**2
    factor = longest / tree.squared_norm(gradient(rows)).clamp_min(longest)
    return variance * factor, square * factor.square()


def row_variance(
    gradient: Callable[[core.Batch], Params], rows: core.Batch, kinds: Sequence[Held], count: Tensor
) -> tuple[Tensor, Tensor]:
    """σ̂² for the parameters that each kind holds, and t̂; of the first `count` rows, which have weight.

    Zero for a single row, of which nothing can be said.
    """
    mean, last = None, None
    seen, norms, products = rows.weights.new_zeros(()), [], []
    for part in range(min(PARTS, len(rows.weights))):
        weights = rows.weights[part::PARTS]
        share = weights.sum()  # b_k / n; zero where there are fewer rows than parts
        scaled = weights / torch.where(share > 0, share, 1)
        inputs, targets = take_rows(rows.inputs, slice(part, None, PARTS)), rows.targets[part::PARTS]
        found = gradient(rows._replace(inputs=inputs, targets=targets, weights=scaled))
        if mean is None:
            mean, seen = found, share
            continue
        change, total = tree.subtract(found, mean), seen + share
        step = share / torch.where(total > 0, total, 1)
        contrast = tree.scale(change, (count * seen * step).sqrt())
        norms.append(torch.stack([tree.squared_norm(held(contrast, kind)) for kind in kinds]))
        if last is not None:
            products.append(tree.dot(contrast, last).square())
        mean, seen, last = tree.add(mean, tree.scale(change, step)), total, contrast
    parts = count.clamp(1, PARTS)
    nothing = rows.weights.new_zeros(len(kinds))
    variance = sum(norms, start=nothing) / (parts - 1).clamp_min(1)
    return variance, sum(products, start=nothing[0]) / (parts - 2).clamp_min(1)
