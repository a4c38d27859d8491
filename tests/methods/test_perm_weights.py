"""The weight problem of PERM against its optimality conditions and against projected gradient descent."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from idiolect.methods.perm.weights import automatic_regulariser, optimal_weights, projected_weights

costs_and_sizes = st.integers(1, 9).flatmap(
    lambda n: st.tuples(
        st.lists(st.floats(0, 5), min_size=n, max_size=n),
        st.lists(st.integers(1, 300), min_size=n, max_size=n),
    )
)
regularisers = st.floats(-1, 3).map(lambda exponent: 10.0**exponent)


def vectors(problem: tuple[list[float], list[int]]) -> tuple[Tensor, Tensor]:
    costs, sizes = problem
    return torch.tensor(costs, dtype=torch.float64), torch.tensor(sizes)


@given(costs_and_sizes, regularisers)
def test_the_solution_satisfies_the_optimality_conditions(problem, regulariser):
    """Gradient z + 2λα/n equals one multiplier ν on the support and is at least ν off it."""
    costs, sizes = vectors(problem)
    weights = optimal_weights(costs, sizes, regulariser)
    assert (weights >= 0).all()
    assert float(weights.sum()) == pytest.approx(1, rel=1e-9)
    gradient = costs + 2 * regulariser * weights / sizes
    level = float(gradient[weights > 0].mean())
    scale = max(1.0, float(costs.max()), 2 * regulariser / float(sizes.min()))
    assert (gradient[weights > 0] - level).abs().max() <= 1e-9 * scale
    assert (gradient[weights == 0] >= level - 1e-9 * scale).all()


@settings(max_examples=30, deadline=None)
@given(costs_and_sizes, regularisers)
def test_pe4_projected_gradient_descent_reaches_the_closed_form(problem, regulariser):
    costs, sizes = vectors(problem)
    sizes = sizes.clamp_min(60)  # condition number n_max / n_min of at most 5: 400 steps are plenty
    start = torch.full_like(costs, 1 / len(costs))
    reached = projected_weights(costs, sizes, regulariser, start, 400)
    assert torch.allclose(reached, optimal_weights(costs, sizes, regulariser), rtol=0, atol=1e-10)


@given(costs_and_sizes, regularisers, st.integers(1, 300), st.integers(0, 2**20))
def test_pe4_with_equal_sizes_one_projected_step_from_anywhere_is_exact(problem, regulariser, size, seed):
    costs, _ = vectors(problem)
    sizes = torch.full((len(costs),), size)
    start = torch.as_tensor(np.random.default_rng(seed).dirichlet(np.ones(len(costs))))
    once = projected_weights(costs, sizes, regulariser, start, 1)
    assert torch.allclose(once, optimal_weights(costs, sizes, regulariser), rtol=0, atol=1e-10)


@given(costs_and_sizes, regularisers)
def test_pe5_equal_gradients_give_weights_by_rows_for_every_regulariser(problem, regulariser):
    costs, sizes = vectors(problem)
    weights = optimal_weights(torch.zeros_like(costs), sizes, regulariser)
    assert torch.allclose(weights, sizes / sizes.sum().double(), rtol=1e-12, atol=0)


@given(costs_and_sizes)
def test_pe5_a_large_regulariser_gives_weights_by_rows(problem):
    costs, sizes = vectors(problem)
    weights = optimal_weights(costs, sizes, 1e12)
    assert torch.allclose(weights, sizes / sizes.sum().double(), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("factor", "alone"), [(0.999999, True), (1.0, True), (1.000001, False)])
def test_pe6_a_client_is_alone_iff_the_nearest_is_beyond_its_budget(factor, alone):
    costs, sizes = torch.tensor([0.0, 0.3, 0.05, 2.0], dtype=torch.float64), torch.tensor([40, 90, 70, 10])
    threshold = 40 * 0.05 / 2  # λ = n_i min z / 2
    weights = optimal_weights(costs, sizes, factor * threshold)
    assert (weights[1:].sum() == 0) == alone
    assert (float(weights[0]) == pytest.approx(1, abs=1e-12)) == alone


def test_pe8_golden():
    costs, sizes = torch.tensor([0.0, 0.3, 0.05, 2.0], dtype=torch.float64), torch.full((4,), 100)
    # By hand: 2λ = 14, support {0, 2}, ν = (14 + 5) / 200 = 0.095, α = (0.095, 0.045) / 0.14.
    expected = torch.tensor([0.095 / 0.14, 0.0, 0.045 / 0.14, 0.0], dtype=torch.float64)
    assert torch.allclose(optimal_weights(costs, sizes, 7.0), expected, rtol=1e-12, atol=0)
    assert [round(x, 6) for x in expected.tolist()] == [0.678571, 0.0, 0.321429, 0.0]


def test_pe9_permuting_clients_permutes_the_weights():
    costs, sizes = torch.tensor([0.0, 0.3, 0.05, 0.07], dtype=torch.float64), torch.tensor([4, 90, 70, 10])
    order = torch.tensor([2, 0, 3, 1])
    assert torch.allclose(
        optimal_weights(costs[order], sizes[order], 3.0),
        optimal_weights(costs, sizes, 3.0)[order],
        rtol=1e-12,
    )


def test_infinite_costs_forbid_and_the_rest_is_solved_as_if_they_were_not_there():
    costs, sizes = torch.tensor([0.1, 0.3, 0.05], dtype=torch.float64), torch.tensor([40, 90, 70])
    with_forbidden = torch.tensor([0.1, torch.inf, 0.3, 0.05, torch.inf], dtype=torch.float64)
    more_sizes = torch.tensor([40, 500, 90, 70, 3])
    alone = optimal_weights(costs, sizes, 20.0)
    among = optimal_weights(with_forbidden, more_sizes, 20.0)
    assert torch.allclose(among[[0, 2, 3]], alone, rtol=1e-12)
    assert (among[[1, 4]] == 0).all()
    start = torch.full((5,), 0.2, dtype=torch.float64)
    stepped = projected_weights(with_forbidden, more_sizes, 20.0, start, 2000)
    assert torch.allclose(stepped, among, rtol=0, atol=1e-9)


def test_rows_are_solved_independently():
    draw = np.random.default_rng(4)
    costs, sizes = torch.as_tensor(draw.exponential(size=(6, 9))), torch.as_tensor(draw.integers(5, 90, 9))
    together = optimal_weights(costs, sizes, 30.0)
    apart = torch.stack([optimal_weights(row, sizes, 30.0) for row in costs])
    assert torch.equal(together, apart)


@pytest.mark.parametrize(
    ("distances", "expected"),
    [([0.0, 1.0, 4.0], 1.0), ([1.0, 2.0, 4.0, 9.0], 3.0), ([0.0, 0.0, 0.0, 2.0], 0.5), ([0.0, 0.0], 1.0)],
    ids=["median", "even", "mean where the median is zero", "anything where all are zero"],
)
def test_automatic_regulariser(distances, expected):
    sizes = torch.tensor([10, 30])
    found = automatic_regulariser(torch.tensor(distances, dtype=torch.float64), sizes, 0.7)
    assert found == pytest.approx(0.5 * 20 * 0.7 * expected, rel=1e-12)
