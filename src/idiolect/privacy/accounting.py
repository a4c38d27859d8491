"""What a run has spent: Gaussian releases, composed by the Rényi accountant of dp-accounting.

A release adds Gaussian noise, of `noise` times its sensitivity, to a sum over rows of which each takes part
with the probability `rate`, independently of all others and anew for each release. Releases of the same
sample, of which each may depend on those before it, are one with less noise:

    g releases with noise σ at one sample  =  one release with noise σ / sqrt(g)

A batch has room for so many rows, and is cut short, with a probability of `cut`, where more were drawn. So
what is computed differs from what is counted with a probability of at most τ, the sum of all `cut`, and

    (ε, δ') for what is counted  =>  (ε, δ' + (1 + e^ε) τ) for what is computed

of which the last term may be a hundredth of δ.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from idiolect.errors import UserError

# Of the Rényi divergence. Whole numbers: for others the accountant sums series that need not converge.
ORDERS = (*range(2, 65), *range(72, 257, 16), 512)
FOR_CUT_BATCHES = 0.01  # of δ
# Noise that hides nothing, and more than anybody needs: beyond them the accountant's numbers leave the range
# of floating point, and what is infinitely much comes out as nothing.
_LEAST_NOISE, _MOST_NOISE = 1e-9, 1e50
_DIGITS = 4  # of noise that was found, so that it can be read and typed


class Release(NamedTuple):
    """One release of a noisy sum."""

    noise: float  # the standard deviation by the sensitivity
    rate: float = 1.0  # the probability with which a row takes part
    cut: float = 0.0  # at most the probability that the batch had no room for all that were drawn


Spending = Mapping[Release, int]  # how often each was made


def batch_release(noise: float, gradients: int, rate: float = 1.0, cut: float = 0.0) -> Release:
    """Some gradients at one batch."""
    return Release(noise / math.sqrt(gradients), rate, cut)


def together(*spendings: Spending) -> Spending:
    """What several spendings are in sum."""
    return sum((Counter(spending) for spending in spendings), Counter())


def epsilon_of(spending: Spending, delta: float) -> float:
    """The smallest ε that is known to hold with δ; infinite where none is."""
    cut = sum(count * release.cut for release, count in spending.items())
    curve = np.zeros(len(ORDERS))
    for release, count in spending.items():
        if count:
            curve = curve + count * _curve(release.noise, release.rate)
    if not curve.any():
        return 0.0
    rdp = accounting().rdp
    epsilon = float(rdp.compute_epsilon(ORDERS, curve, delta * (1 - FOR_CUT_BATCHES))[0])
    return epsilon if _allows(epsilon, cut, delta) else math.inf


def noise_for(epsilon: float, delta: float, spending: Callable[[float], Spending]) -> float:
    """The least noise with which work costs no more than (ε, δ); `spending` is what it costs by the noise."""
    library = accounting()

    def event(noise: float) -> Any:
        return library.ComposedDpEvent(
            [
                library.SelfComposedDpEvent(_event(release.noise, release.rate), count)
                for release, count in spending(noise).items()
            ]
        )

    found = library.calibrate_dp_mechanism(
        _accountant,
        event,
        epsilon,
        delta * (1 - FOR_CUT_BATCHES),
        bracket_interval=library.LowerEndpointAndGuess(0.0, 1.0),
        tol=1e-4,
    )
    noise = _rounded_up(found)
    while (spent := epsilon_of(spending(noise), delta)) > epsilon:
        if math.isinf(spent):
            raise UserError(
                f"privacy.epsilon={epsilon:g} is too much to be counted: give less, or privacy.noise instead"
            )
        noise = _rounded_up(noise * (1 + 10**-_DIGITS))
    return noise


def accounting() -> Any:
    """The library."""
    try:
        import dp_accounting
        import dp_accounting.rdp
    except ImportError:
        raise UserError("privacy needs dp-accounting: pip install 'idiolect[privacy]'") from None
    return dp_accounting


@lru_cache(maxsize=4096)
def _curve(noise: float, rate: float) -> np.ndarray[Any, Any]:
    """The Rényi divergences of one release."""
    if noise < _LEAST_NOISE:
        return np.full(len(ORDERS), math.inf)
    accountant = _accountant()
    accountant.compose(_event(min(noise, _MOST_NOISE), rate))
    curve = np.asarray(accountant.rdp)
    return np.where(np.isnan(curve), math.inf, curve)


def _accountant() -> Any:
    library = accounting()
    return library.rdp.RdpAccountant(ORDERS, library.NeighboringRelation.REPLACE_SPECIAL)


def _event(noise: float, rate: float) -> Any:
    library = accounting()
    gaussian = library.GaussianDpEvent(noise)
    return gaussian if rate == 1 else library.PoissonSampledDpEvent(rate, gaussian)


def _allows(epsilon: float, cut: float, delta: float) -> bool:
    """Whether (1 + e^ε) τ is small enough; by logarithms, since e^ε may be too large for a number."""
    if cut == 0:
        return True
    return float(np.logaddexp(0.0, epsilon)) + math.log(cut) <= math.log(FOR_CUT_BATCHES * delta)


def _rounded_up(number: float) -> float:
    grain = 10.0 ** (math.floor(math.log10(number)) + 1 - _DIGITS)
    return float(f"{math.ceil(number / grain) * grain:.{_DIGITS}g}")
