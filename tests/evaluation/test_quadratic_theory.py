"""The constants of quadratics are those of their losses, found by other means."""

from itertools import combinations

import numpy as np
import pytest
import torch

from idiolect.data.quadratics import quadratic_line, quadratic_pair, quadratics
from idiolect.errors import UserError
from idiolect.evaluation.theory.quadratics import QuadraticProblem
from idiolect.testing.problems import uneven_classification


def noisy(rows=5, **options):
    shape = {"clients": 4, "dimensions": 3, "rows": rows, "double": True}
    return quadratics(seed=3, smallest=0.2, largest=1.5, noise=0.7, **shape, **options)


def row_gradients(federation, client, w):
    """∇ of ½ Σ (w x - y)² for each row of a client, from the rows as they are."""
    part = federation.train
    rows = part.index[part.offsets[client] : part.offsets[client] + part.sizes[client]]
    x, y = federation.inputs[rows], federation.targets[rows]
    return x * (w * x - y)


def test_gradients_are_the_means_of_the_rows_gradients():
    federation, w = noisy(), torch.tensor([0.3, -1.2, 2.0]).double()
    expected = torch.stack([row_gradients(federation, client, w).mean(0) for client in range(4)])
    torch.testing.assert_close(QuadraticProblem.of(federation).gradients(w), expected)


def test_curvatures_reach_both_ends_and_the_optimum_has_no_gradient():
    problem = QuadraticProblem.of(noisy())
    assert problem.strong_convexity == pytest.approx(0.2)
    assert problem.smoothness == pytest.approx(1.5)
    assert problem.condition_number == pytest.approx(7.5)
    torch.testing.assert_close(problem.gradients(problem.optimum).mean(0), torch.zeros(3).double())
    torch.testing.assert_close(problem.gradients(problem.optima[2])[2], torch.zeros(3).double())


@pytest.mark.parametrize("batch_size", [1, 2, 4, 5, 9])
def test_gradient_variance_is_that_over_all_batches(batch_size):
    federation, w = noisy(), torch.tensor([0.3, -1.2, 2.0]).double()
    found = QuadraticProblem.of(federation).gradient_variance(batch_size)
    for client in range(4):
        rows = row_gradients(federation, client, w)
        batches = [rows[list(chosen)].mean(0) for chosen in combinations(range(5), min(batch_size, 5))]
        expected = (torch.stack(batches) - rows.mean(0)).square().sum(1).mean()
        assert float(found[client]) == pytest.approx(float(expected), abs=1e-12)


def test_all_rows_have_no_noise():
    assert QuadraticProblem.of(noisy()).gradient_variance(None).abs().max() == 0
    assert QuadraticProblem.of(quadratic_pair()).gradient_variance(1).abs().max() == 0


def test_figure_1b():
    problem = QuadraticProblem.of(quadratic_pair(double=True))
    torch.testing.assert_close(problem.optimum, torch.tensor([43 / 3, 49 / 3]).double())
    gaps = [(7 - 43 / 3) ** 2 + (18 - 49 / 3) ** 2, (18 - 43 / 3) ** 2 + (13 - 49 / 3) ** 2]
    torch.testing.assert_close(problem.optimum_gaps, torch.tensor(gaps).double())
    assert problem.heterogeneity == pytest.approx(4 * np.sqrt(np.mean(gaps)))
    assert problem.radius == pytest.approx(np.hypot(18, 13))
    first = 0.5 * (2 * (7 - 43 / 3) ** 2 + 4 * (18 - 49 / 3) ** 2)
    assert float(problem.loss_gaps[0]) == pytest.approx(first)
    ends = torch.tensor([[7.0, 18.0], [17.0, 13.0]])
    assert problem.mean_squared_distance(ends) == pytest.approx(0.5)
    assert problem.mean_excess_loss(ends) == pytest.approx(0.5 * (0.5 * 4 * 1))


def test_the_line_has_the_diversity_of_its_distance():
    problem = QuadraticProblem.of(quadratic_line(optimum=0.7, distance=1.5, double=True))
    torch.testing.assert_close(problem.gradient_diversity(), torch.full((2,), 1.5**2).double())
    assert problem.heterogeneity == pytest.approx(1.5)
    far = problem.gradient_diversity(torch.tensor([100.0]))
    torch.testing.assert_close(far, problem.gradient_diversity())


def test_diversity_without_a_point_needs_equal_curvatures():
    problem = QuadraticProblem.of(noisy())
    with pytest.raises(UserError, match="equal curvatures"):
        problem.gradient_diversity()
    gradients = problem.gradients(torch.ones(3))
    expected = (gradients - gradients.mean(0)).square().sum(1)
    torch.testing.assert_close(problem.gradient_diversity(torch.ones(3)), expected)


def test_constants_of_the_elastic_bound():
    problem = QuadraticProblem.of(noisy())
    constants = problem.for_elastic(torch.zeros(3), radius=4.0, batch_size=2)
    assert constants.start_distance == pytest.approx(float(problem.optimum.square().sum()))
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):  # no gradient in the box is longer
        w = 8 * torch.rand(3, generator=generator).double() - 4
        assert problem.gradients(w).square().sum(1).max() <= constants.gradient_bound


def test_other_data_are_refused():
    with pytest.raises(UserError, match="one shape"):
        QuadraticProblem.of(uneven_classification())
