"""What PERM's clients say of their gradients' noise is right in the mean; alike clients are known as such."""

import numpy as np
import pytest
import torch

from idiolect.core import Batch
from idiolect.core.task import Task
from idiolect.data.federation import Federation, Rows
from idiolect.methods.perm import PERM
from idiolect.methods.perm.distances import GradientDistances
from idiolect.methods.perm.matrix import MixingMatrix, mixing_matrix
from idiolect.methods.perm.noise import PARTS, GradientNoise, row_variance
from idiolect.methods.perm.weights import WeightRule
from idiolect.simulation import Simulation

WHOLE = ((),)


def mean_gradient(batch: Batch) -> dict[str, torch.Tensor]:
    """The 'gradient' of a row is the row: its mean is known in closed form."""
    return {"w": (batch.inputs * batch.weights[:, None]).sum(0)}


def rows_of(values: torch.Tensor, padding: int = 0) -> Batch:
    size = len(values)
    weights = torch.cat([torch.full((size,), 1 / size), torch.zeros(padding)]).double()
    inputs = torch.cat([values, values[:1].expand(padding, -1)])
    return Batch(inputs, torch.zeros(size + padding), weights)


def estimate(values: torch.Tensor, padding: int = 0) -> tuple[float, float]:
    variance, square = row_variance(mean_gradient, rows_of(values, padding), WHOLE, torch.tensor(len(values)))
    return float(variance[0]), float(square)


def estimates(values: torch.Tensor) -> np.ndarray:
    """Of many sets of rows at once: the estimate can be vectorised."""
    variance, square = torch.func.vmap(
        lambda rows: row_variance(mean_gradient, rows_of(rows), WHOLE, torch.tensor(len(rows)))
    )(values)
    return torch.cat([variance, square[:, None]], dim=1).numpy()


@pytest.mark.parametrize("size", [2, 3, 7, 8, 9, 13, 40])
def test_variance_and_its_square_are_unbiased_for_uneven_parts(size):
    draw, runs = torch.Generator().manual_seed(size), 4000
    scales = torch.tensor([3.0, 1.0, 0.5]).double()
    values = 5 + torch.randn(runs, size, 3, generator=draw, dtype=torch.float64) * scales
    found = estimates(values)
    error = found.std(0) / np.sqrt(runs)
    assert abs(found[:, 0].mean() - float(scales.square().sum())) < 4 * error[0]
    if size > 2:
        assert abs(found[:, 1].mean() - float((scales**4).sum())) < 4 * error[1]
    else:
        assert (found[:, 1] == 0).all()


def test_of_rows_that_are_not_normal_the_variance_is_unbiased_too():
    draw, runs = torch.Generator().manual_seed(0), 8000
    values = torch.rand(runs, 11, 2, generator=draw, dtype=torch.float64) ** 6  # heavy on one side
    found = estimates(values)[:, 0]
    expected = 2 * (1 / 13 - 1 / 49)  # E u¹² - (E u⁶)²
    assert abs(found.mean() - expected) < 4 * found.std() / np.sqrt(runs)


def test_with_as_many_parts_as_rows_it_is_the_sample_variance():
    values = torch.randn(PARTS, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert estimate(values)[0] == pytest.approx(float(values.var(0).sum()))
    # and for groups the mean square between groups of an analysis of variance
    values = torch.randn(19, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    parts = [values[k::PARTS] for k in range(PARTS)]
    between = sum(len(p) * (p.mean(0) - values.mean(0)).square().sum() for p in parts) / (PARTS - 1)
    assert estimate(values)[0] == pytest.approx(float(between))


def test_padding_changes_nothing_and_a_single_row_says_nothing():
    values = torch.randn(5, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    assert estimate(values, padding=11) == pytest.approx(estimate(values))
    assert estimate(values[:1], padding=4) == (0.0, 0.0)


def regression(sizes: list[int], shifts: np.ndarray, seed: int) -> Federation:
    """Linear regression y = x·(b + shift) + noise, with inputs Normal(0, I): all moments are known."""
    draw, d = np.random.default_rng(seed), shifts.shape[1]
    x = draw.normal(size=(sum(sizes), d))
    owner = np.repeat(np.arange(len(sizes)), sizes)
    y = (x * (1.0 + shifts[owner])).sum(1) + 0.5 * draw.normal(size=len(x))
    index = Rows.of_clients(list(torch.arange(len(x)).split(sizes)))
    names = tuple(map(str, range(len(sizes))))
    return Federation(
        torch.tensor(x), torch.tensor(y)[:, None], Task("regression", 1), names, index, index, index
    )


def first_exchange(federation: Federation, engine: str, **options: object) -> Simulation:
    model = torch.nn.Linear(federation.inputs.shape[1], 1, bias=False, dtype=torch.float64)
    torch.nn.init.zeros_(model.weight)
    method = PERM(local_steps=1, **options)
    return Simulation(method, model, federation, engine=engine, dtype=torch.float64).play(1)


def test_noise_of_a_regression_has_its_closed_form():
    """At w = 0 a row's gradient is -y x; E|y x|² - |b|² = (d + 2)|b|² + d τ² - |b|² for x ~ Normal(0, I)."""
    sizes, d = [12, 30, 90, 45] * 60, 4
    server = first_exchange(regression(sizes, np.zeros((240, d)), 0), "vectorised").server
    found = server.variances[:, 0].numpy()
    expected = (d + 2) * d + 0.25 * d - d
    assert abs(found.mean() - expected) < 4 * found.std() / np.sqrt(240)


def test_distances_without_noise_are_unbiased_for_clients_of_uneven_sizes():
    """z_ij - ŝ_i - ŝ_j against |b_i - b_j|², the distance of the expected gradients at w = 0."""
    draws, shifts = 150, np.array([[0.0, 0.0, 0.0], [0.5, 0.0, -0.3], [0.0, 0.0, 0.0]])
    server = first_exchange(
        regression([10, 25, 60] * draws, np.tile(shifts, (draws, 1)), 1), "vectorised"
    ).server
    g = server.gradients["weight"].reshape(draws, 3, 3)
    s = (server.variances[:, 0] / server.sizes).reshape(draws, 3)
    for i, j in [(0, 1), (0, 2), (1, 2)]:
        raw = (g[:, i] - g[:, j]).square().sum(1)
        found = raw - s[:, i] - s[:, j]
        expected, error = ((shifts[i] - shifts[j]) ** 2).sum(), float(found.std()) / np.sqrt(draws)
        assert abs(float(found.mean()) - expected) < 4 * error
        assert abs(float(raw.mean()) - expected) > 4 * error  # with its noise it is not


@pytest.mark.parametrize("rows", [None, 9])
def test_engines_agree_on_the_noise(rows):
    federation = regression([3, 17, 8, 1], np.zeros((4, 3)), 0)
    first, second = (
        first_exchange(federation, engine, gradient_rows=rows).server
        for engine in ("sequential", "vectorised")
    )
    torch.testing.assert_close(first.variances, second.variances)
    torch.testing.assert_close(first.squares, second.squares)
    assert first.variances[3] == 0  # of one row nothing is known


def test_who_has_one_row_gets_the_mean_of_the_others_by_rows():
    sizes = torch.tensor([10, 30, 1])
    noise = GradientNoise.of(
        torch.tensor([[2.0], [4.0], [0.0]]), torch.ones(3), sizes, None, torch.ones(3) > 0
    )
    torch.testing.assert_close(noise.of_means[:, 0], torch.tensor([0.2, 4 / 30, 3.5]).double())
    assert GradientNoise.of(torch.zeros(3, 1), torch.zeros(3), sizes, None, torch.ones(3) > 0) is None


def helpers(gradients: torch.Tensor, noise: GradientNoise, sizes: torch.Tensor) -> float:
    distances = GradientDistances({"w": gradients}, sizes, None, noise)
    empty = MixingMatrix.empty(torch.zeros((), dtype=torch.float64))
    matrix, _ = mixing_matrix(distances, torch.ones(len(sizes)) > 0, WeightRule(), empty)
    return float(matrix.effective_helpers(len(sizes)).mean())


def test_alike_clients_weigh_by_rows_and_different_ones_as_before():
    draw = torch.Generator().manual_seed(4)
    sizes = torch.randint(20, 60, (40,), generator=draw)
    noisy = torch.randn(40, 12, generator=draw, dtype=torch.float64) / sizes.sqrt()[:, None]
    everybody = torch.ones(40) > 0
    noise = GradientNoise.of(torch.full((40, 1), 12.0), torch.full((40,), 12.0), sizes, None, everybody)
    assert noise is not None
    assert noise.alike == pytest.approx(2 / 12 * (1 + 1 / 14))
    assert helpers(noisy, noise, sizes) == pytest.approx(1 / float((sizes / sizes.sum()).square().sum()))
    apart = noisy + 3 * torch.eye(40, 12).double()[torch.arange(40) % 4]
    distances = GradientDistances({"w": apart}, sizes, None, noise)
    assert distances.difference > 0.99


def test_alike_clients_are_seldom_taken_for_different():
    """The standard error of the mean excess is that of simulations, with ŝ estimated from parts."""
    draw, excesses, errors = torch.Generator().manual_seed(5), [], []
    for _ in range(40):
        sizes = torch.randint(16, 64, (20,), generator=draw)
        rows = [torch.randn(int(n), 6, generator=draw, dtype=torch.float64) for n in sizes]
        found = torch.tensor([estimate(one) for one in rows], dtype=torch.float64)
        noise = GradientNoise.of(found[:, :1], found[:, 1], sizes, None, torch.ones(20) > 0)
        assert noise is not None
        means = {"w": torch.stack([one.mean(0) for one in rows])}
        excesses.append(GradientDistances(means, sizes, None)._excess(noise))
        errors.append((noise.alike / 20) ** 0.5)
    assert abs(np.mean(excesses)) < 4 * np.std(excesses) / np.sqrt(40)
    assert np.std(excesses) == pytest.approx(np.mean(errors), rel=0.35)


def test_a_given_regulariser_asks_for_no_noise():
    federation = regression([5, 9, 7], np.zeros((3, 2)), 0)
    given = first_exchange(federation, "sequential", weights={"regulariser": 3.0})
    assert not given.server.variances.any()
    assert given.server.squares.shape == (3,)


def test_two_scalars_more_go_up():
    federation = regression([5, 9, 7], np.zeros((3, 2)), 0)

    def up(**weights: float) -> dict[str, list[int]]:
        model = torch.nn.Linear(2, 1, bias=False, dtype=torch.float64)
        method = PERM(local_steps=1, weights=weights)
        played = Simulation(method, model, federation, dtype=torch.float64).advance()
        return {part: bits.tolist() for part, bits in played.up_parts.items() if part != "v"}

    gradients = {"g": [2 * 64] * 3}
    assert up(regulariser=3.0) == gradients
    assert up() == gradients | {"variance": [64] * 3, "square": [64] * 3}
