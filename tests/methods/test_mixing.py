"""The sparse mixing matrix: the same in blocks as at once, and small where most weights are zero."""

import numpy as np
import pytest
import torch

from idiolect.methods import _mixing
from idiolect.methods._mixing import Comparison, MixingMatrix, WeightRule, mixing_matrix

EMPTY = MixingMatrix.empty(torch.zeros((), dtype=torch.float64))


def grouped(clients: int, groups: int, seed: int = 0) -> tuple[Comparison, torch.Tensor]:
    """Gradients around a few centres."""
    draw = np.random.default_rng(seed)
    group = torch.as_tensor(draw.integers(groups, size=clients))
    centres = torch.as_tensor(draw.normal(size=(groups, 12)) * 3)
    gradients = {"weight": centres[group] + torch.as_tensor(draw.normal(size=(clients, 12))) * 0.3}
    like = {"weight": torch.zeros(12, dtype=torch.float64)}
    return Comparison(gradients, like, torch.as_tensor(draw.integers(20, 200, clients)), None), group


@pytest.mark.parametrize("rule", [WeightRule(), WeightRule(regulariser=3.0), WeightRule(projected_steps=4)])
def test_blocks_of_rows_give_the_matrix_that_all_rows_give(monkeypatch, rule):
    comparison, _ = grouped(11, 3)
    active = torch.arange(11) != 4
    whole, change = mixing_matrix(comparison, active, rule, EMPTY)
    again, no_change = mixing_matrix(comparison, active, WeightRule(regulariser=1e9), whole)
    monkeypatch.setattr(_mixing, "BLOCK", 3)
    pieces, same_change = mixing_matrix(comparison, active, rule, EMPTY)
    assert torch.equal(pieces.places, whole.places)
    assert torch.allclose(pieces.weights, whole.weights, rtol=1e-12)
    assert float(same_change) == pytest.approx(float(change), rel=1e-12)
    resolved, moved = mixing_matrix(comparison, active, WeightRule(regulariser=1e9), whole)
    assert torch.equal(resolved.places, again.places)
    assert float(moved) == pytest.approx(float(no_change), rel=1e-9)


def test_entries_rows_and_row_statistics_agree_with_the_dense_matrix():
    comparison, _ = grouped(9, 2)
    matrix, _ = mixing_matrix(comparison, torch.arange(9) != 7, WeightRule(), EMPTY)
    dense = matrix.rows(0, 9, 9)
    pairs = torch.cartesian_prod(torch.arange(9), torch.arange(9))
    assert torch.equal(matrix.at(pairs[:, 0], pairs[:, 1], 9).reshape(9, 9), dense)
    assert torch.equal(matrix.rows(3, 6, 9), dense[3:6])
    expected = torch.ones(9, dtype=torch.float64)
    expected[7] = 0  # who is not active has no row, and no weight in others' rows
    assert torch.allclose(dense.sum(1), expected, rtol=1e-12)
    assert (dense[:, 7] == 0).all()
    assert torch.allclose(matrix.largest(9), torch.where(expected > 0, dense.max(1).values, 1))
    assert torch.allclose(matrix.row_entropy(9), torch.special.entr(dense).sum(1))


def test_a_thousand_clients_in_groups_take_memory_for_their_helpers_only():
    comparison, group = grouped(1000, 20)
    matrix, _ = mixing_matrix(comparison, torch.ones(1000, dtype=torch.bool), WeightRule(), EMPTY)
    rows, columns = matrix.places // 1000, matrix.places % 1000
    assert (group[rows] == group[columns]).all()
    assert len(matrix.places) < 1000 * 80
    totals = torch.zeros(1000, dtype=torch.float64).index_add(0, rows, matrix.weights)
    assert torch.allclose(totals, torch.ones_like(totals), rtol=1e-9)
