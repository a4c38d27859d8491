"""The sparse mixing matrix: the same in blocks as at once, and small where most weights are zero."""

import numpy as np
import pytest
import torch

from idiolect.methods.perm.distances import GradientDistances
from idiolect.methods.perm.matrix import MixingMatrix, mixing_matrix
from idiolect.methods.perm.sizes import ModelSizes
from idiolect.methods.perm.weights import WeightRule

EMPTY = MixingMatrix.empty(torch.zeros((), dtype=torch.float64))


def grouped(clients: int, groups: int, seed: int = 0) -> tuple[GradientDistances, torch.Tensor]:
    """Gradients around a few centres."""
    draw = np.random.default_rng(seed)
    group = torch.as_tensor(draw.integers(groups, size=clients))
    centres = torch.as_tensor(draw.normal(size=(groups, 12)) * 3)
    gradients = {"weight": centres[group] + torch.as_tensor(draw.normal(size=(clients, 12))) * 0.3}
    return GradientDistances(gradients, torch.as_tensor(draw.integers(20, 200, clients)), None), group


@pytest.mark.parametrize("rule", [WeightRule(), WeightRule(regulariser=3.0), WeightRule(projected_steps=4)])
def test_blocks_of_rows_give_the_matrix_that_all_rows_give(monkeypatch, rule):
    distances, _ = grouped(11, 3)
    active = torch.arange(11) != 4
    whole, change = mixing_matrix(distances, active, rule, EMPTY)
    again, no_change = mixing_matrix(distances, active, WeightRule(regulariser=1e9), whole)
    monkeypatch.setattr("idiolect.methods.perm.distances.AT_ONCE", 3 * 11 + 1)
    pieces, same_change = mixing_matrix(distances, active, rule, EMPTY)
    assert torch.equal(pieces.places, whole.places)
    assert torch.allclose(pieces.weights, whole.weights, rtol=1e-12)
    assert float(same_change) == pytest.approx(float(change), rel=1e-12)
    resolved, moved = mixing_matrix(distances, active, WeightRule(regulariser=1e9), whole)
    assert torch.equal(resolved.places, again.places)
    assert float(moved) == pytest.approx(float(no_change), rel=1e-9)


@pytest.mark.parametrize("at_once", [1, 30, 10**6])
@pytest.mark.parametrize("clients", [7, 8])
def test_distances_regulariser_and_weights_equal_a_dense_transcription(monkeypatch, at_once, clients):
    """Two leaves, uneven rows, one client not heard; the weights by bisection on the multiplier."""
    monkeypatch.setattr("idiolect.methods.perm.distances.AT_ONCE", at_once)
    draw = np.random.default_rng(clients)
    weight, bias = draw.normal(size=(clients, 2, 3)), 2 * draw.normal(size=(clients, 5))
    sizes, active = draw.integers(3, 60, clients), np.arange(clients) != 2
    vectors = np.concatenate([weight.reshape(clients, 6), bias], axis=1)
    z = ((vectors[:, None] - vectors[None]) ** 2).sum(-1)
    others = active[:, None] & active & ~np.eye(clients, dtype=bool)
    lam = 0.5 * sizes[active].mean() * 0.8 * np.median(z[others])
    alpha = np.zeros((clients, clients))
    for i in np.flatnonzero(active):
        low, high = 0.0, z.max() + 2 * lam
        for _ in range(200):
            nu = (low + high) / 2
            alpha[i] = active * sizes / (2 * lam) * np.maximum(0, nu - z[i])
            low, high = (nu, high) if alpha[i].sum() < 1 else (low, nu)
    prior = active * sizes / sizes[active].sum()

    gradients = {"weight": torch.as_tensor(weight), "bias": torch.as_tensor(bias)}
    distances = GradientDistances(gradients, torch.as_tensor(sizes), None)
    rule = WeightRule(regulariser_factor=0.8)
    matrix, change = mixing_matrix(distances, torch.as_tensor(active), rule, EMPTY)
    assert np.abs(distances.of(torch.arange(clients)).numpy() - z).max() < 1e-12
    assert distances.regulariser(torch.as_tensor(active), rule) == pytest.approx(lam, rel=1e-12)
    assert np.abs(matrix.rows(0, clients, clients).numpy() - alpha).max() < 1e-12
    assert float(change) == pytest.approx(np.sqrt(((alpha - prior)[active] ** 2).sum()), rel=1e-12)


@pytest.mark.parametrize("at_once", [1, 40, 10**6])
def test_distances_of_submodels_equal_a_dense_transcription(monkeypatch, at_once):
    """Where both clients hold parameters: a hidden layer of four units, of which some hold only two."""
    monkeypatch.setattr("idiolect.methods.perm.distances.AT_ONCE", at_once)
    draw, held = np.random.default_rng(3), np.array([4, 2, 4, 2, 2])
    units = np.arange(4) < held[:, None]
    into = draw.normal(size=(5, 4, 3)) * units[:, :, None]
    out = draw.normal(size=(5, 2, 4)) * units[:, None, :]
    masks = np.concatenate([np.repeat(units, 3, axis=1), np.tile(units, 2)], axis=1)
    vectors = np.concatenate([into.reshape(5, 12), out.reshape(5, 8)], axis=1)
    z = (((vectors[:, None] - vectors) * masks[:, None] * masks) ** 2).sum(-1)

    gradients = {"0.weight": torch.as_tensor(into), "1.weight": torch.as_tensor(out)}
    rule = ModelSizes(capacities=(1.0, 0.5, 1.0, 0.5, 0.5), support="intersection")
    distances = GradientDistances(gradients, torch.tensor([9, 4, 5, 7, 6]), rule)
    assert np.abs(distances.of(torch.tensor([1, 4, 0])).numpy() - z[[1, 4, 0]]).max() < 1e-12


def test_entries_rows_and_row_statistics_agree_with_the_dense_matrix():
    distances, _ = grouped(9, 2)
    matrix, _ = mixing_matrix(distances, torch.arange(9) != 7, WeightRule(), EMPTY)
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
    distances, group = grouped(1000, 20)
    matrix, _ = mixing_matrix(distances, torch.ones(1000, dtype=torch.bool), WeightRule(), EMPTY)
    rows, columns = matrix.places // 1000, matrix.places % 1000
    assert (group[rows] == group[columns]).all()
    assert len(matrix.places) < 1000 * 80
    totals = torch.zeros(1000, dtype=torch.float64).index_add(0, rows, matrix.weights)
    assert torch.allclose(totals, torch.ones_like(totals), rtol=1e-9)
