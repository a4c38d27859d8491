"""ε against closed forms, against the library's own numbers, and with what batches leave out."""

import math

import dp_accounting
import pytest
from dp_accounting import rdp
from dp_accounting.gaussian_mechanism import get_epsilon_gaussian
from scipy.stats import binom

from idiolect.privacy.accounting import Release, batch_release, epsilon_of, noise_for, together

DELTA = 1e-5


@pytest.mark.parametrize(("noise", "count"), [(1.0, 1), (3.0, 1), (5.0, 40), (20.0, 200)])
def test_gaussian_releases_cost_what_renyi_says_and_no_less_than_they_do(noise: float, count: int) -> None:
    # RDP of the Gaussian mechanism is α / (2 σ²); ε by Proposition 12 of Canonne et al. 2020, at the best α.
    counted = epsilon_of({Release(noise): count}, DELTA)
    delta = 0.99 * DELTA
    by_hand = min(
        a * count / (2 * noise**2) + math.log1p(-1 / a) - math.log(delta * a) / (a - 1)
        for a in (1 + k / 1000 for k in range(100, 200_000))
    )
    exact = get_epsilon_gaussian(noise / math.sqrt(count), delta)  # the analytic formula (Balle, Wang 2018)
    assert exact < counted
    assert by_hand - 1e-9 <= counted <= 1.02 * by_hand + 0.01


def test_sampled_releases_cost_what_the_library_and_the_closed_form_of_whole_orders_say() -> None:
    # DP-SGD on MNIST as in the tutorials of the field: batches of 256 of 60,000, noise 1.1, 60 epochs.
    steps, rate, noise, delta = 60 * 60_000 // 256, 256 / 60_000, 1.1, 0.99 * DELTA
    counted = epsilon_of({Release(noise, rate): steps}, DELTA)
    accountant = rdp.RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_SPECIAL)
    accountant.compose(dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise)), steps)
    assert counted == pytest.approx(accountant.get_epsilon(delta), rel=5e-3)

    def moment(a: int) -> float:  # of order a (Mironov, Talwar, Zhang 2019)
        terms = (
            math.comb(a, k) * (1 - rate) ** (a - k) * rate**k * math.exp(k * (k - 1) / (2 * noise**2))
            for k in range(a + 1)
        )
        return math.log(sum(terms)) / (a - 1)

    by_hand = min(
        steps * moment(a) + math.log1p(-1 / a) - math.log(delta * a) / (a - 1) for a in range(2, 33)
    )
    assert counted == pytest.approx(by_hand, rel=1e-9)


def test_gradients_at_one_batch_are_one_release_with_less_noise() -> None:
    # Without sampling: g releases of noise σ cost the same as one of noise σ / sqrt(g).
    one, several = {batch_release(6.0, 3): 10}, {Release(6.0): 30}
    assert epsilon_of(one, DELTA) == pytest.approx(epsilon_of(several, DELTA), rel=1e-12)
    # With sampling: a batch that is seen three times costs more than three batches.
    assert epsilon_of({batch_release(6.0, 3, 0.1): 10}, DELTA) > epsilon_of({Release(6.0, 0.1): 30}, DELTA)


def test_epsilon_grows_with_work_and_with_the_rate_and_falls_with_noise() -> None:
    base = epsilon_of({Release(2.0, 0.2): 50}, DELTA)
    assert epsilon_of({Release(2.0, 0.2): 51}, DELTA) > base
    assert epsilon_of({Release(2.0, 0.25): 50}, DELTA) > base
    assert epsilon_of({Release(2.1, 0.2): 50}, DELTA) < base
    assert epsilon_of({Release(2.0, 0.2): 50, Release(9.0): 1}, DELTA) > base
    assert epsilon_of({}, DELTA) == 0
    assert epsilon_of({Release(0.0): 1}, DELTA) == math.inf
    assert epsilon_of({Release(0.0): 0}, DELTA) == 0
    assert together({Release(1.0): 2}, {Release(1.0): 3, Release(2.0): 1}) == {
        Release(1.0): 5,
        Release(2.0): 1,
    }


@pytest.mark.parametrize("rate", [1.0, 0.5, 1e-9])
def test_epsilon_falls_with_noise_to_the_ends_of_what_numbers_can_say(rate: float) -> None:
    """Nothing that hides less may cost less, however the library's numbers overflow."""
    for noise in (1e-8, 1e-30, 1e-155, 1e-160, 1e-162, 1e-200, 5e-324):
        assert epsilon_of({Release(noise, rate): 3}, DELTA) >= epsilon_of({Release(1e-3, rate): 3}, DELTA)
    for noise in (1e9, 1e60, 1e200, 1e308):
        assert 0 <= epsilon_of({Release(noise, rate): 3}, DELTA) <= epsilon_of({Release(1e3, rate): 3}, DELTA)


def test_what_batches_leave_out_costs_delta_or_makes_epsilon_infinite() -> None:
    cheap, dear = {Release(2.0, 0.2, 1e-18): 50}, {Release(2.0, 0.2, 1e-9): 50}
    assert epsilon_of(cheap, DELTA) == epsilon_of({Release(2.0, 0.2): 50}, DELTA)
    assert epsilon_of(dear, DELTA) == math.inf
    cut = binom.sf(10, 40, 0.2)  # of a batch with room for ten rows: far too often
    assert epsilon_of({Release(2.0, 0.2, cut): 50}, DELTA) == math.inf


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
@pytest.mark.parametrize(("gradients", "rate", "count"), [(1, 1.0, 20), (2, 0.25, 100)])
def test_noise_is_what_epsilon_needs_and_hardly_more(
    epsilon: float, gradients: int, rate: float, count: int
) -> None:
    noise = noise_for(epsilon, DELTA, lambda noise: {batch_release(noise, gradients, rate): count})
    assert 0.98 * epsilon < epsilon_of({batch_release(noise, gradients, rate): count}, DELTA) <= epsilon
    assert epsilon_of({batch_release(0.995 * noise, gradients, rate): count}, DELTA) > epsilon
