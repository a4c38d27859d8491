"""The generators against their definitions: moments, exact identities and the caveats in the docstrings."""

import numpy as np
import pytest
import torch

from idiolect.data.image_like import image_like
from idiolect.data.quadratics import quadratic_line, quadratic_pair, quadratics
from idiolect.data.synthetic import opposed_signs, synthetic, three_clusters
from idiolect.errors import UserError
from idiolect.models import build_model


def rows_of(federation, client):
    return torch.cat([part.of(client) for part in (federation.train, federation.validation, federation.test)])


def sizes_of(federation):
    return (federation.train.sizes + federation.validation.sizes + federation.test.sizes).numpy()


def least_squares_accuracy(train_x, train_y, x, y):
    """How well one linear rule explains the labels."""
    augmented = torch.cat([train_x, torch.ones(len(train_x), 1)], 1).double()
    weights = torch.linalg.lstsq(augmented, torch.nn.functional.one_hot(train_y).double()).solution
    scores = torch.cat([x, torch.ones(len(x), 1)], 1).double() @ weights
    return (scores.argmax(1) == y).double().mean().item()


def test_synthetic_has_the_stated_inputs_and_size_law():
    federation = synthetic(seed=3, clients=80, gamma=0.0, beta=0.0)
    assert federation.inputs.shape[1] == 60
    assert federation.task.outputs == 10
    deviations = torch.stack([federation.inputs[rows_of(federation, c)].var(0) for c in range(80)]).mean(0)
    expected = torch.arange(1, 61) ** -1.2
    assert torch.allclose(deviations, expected, rtol=0.1)
    logs = np.log(sizes_of(federation) - 50 + 0.5)
    assert sizes_of(federation).min() >= 50
    assert logs.mean() == pytest.approx(4.0, abs=4 * 2 / np.sqrt(80))
    assert logs.std() == pytest.approx(2.0, abs=0.6)


def test_beta_moves_the_input_means():
    def spread_of_centres(beta):
        federation = synthetic(seed=0, clients=60, beta=beta)
        return np.std([federation.inputs[rows_of(federation, c)].mean().item() for c in range(60)])

    # the mean over 60 coordinates of ν_k is Normal(0, β² + 1/60)
    for beta in (0.0, 1.0):
        assert spread_of_centres(beta) == pytest.approx(np.sqrt(beta**2 + 1 / 60), rel=0.35)


def test_labels_ignore_gamma():
    """The caveat: u_k shifts all logits alike, so two values of γ give the same labels and inputs."""
    small, large = (synthetic(seed=1, clients=5, gamma=g, beta=0.5) for g in (0.0, 2.0))
    assert torch.equal(small.inputs, large.inputs)
    assert (small.targets == large.targets).double().mean() > 0.999  # ties aside


def test_iid_shares_the_labelling_and_zero_spreads_do_not():
    def cross_accuracy(**options):
        federation = synthetic(seed=2, clients=2, variant="pfedme", **options)
        first, second = rows_of(federation, 0), rows_of(federation, 1)
        x, y = federation.inputs, federation.targets
        own = least_squares_accuracy(x[first], y[first], x[first], y[first])
        cross = least_squares_accuracy(x[first], y[first], x[second], y[second])
        return own, cross

    own, cross = cross_accuracy(iid=True)
    assert cross > own - 0.15
    own, cross = cross_accuracy()
    assert cross < own - 0.3


def test_model_spread_interpolates_from_a_shared_model():
    shared, near, far = (synthetic(seed=4, clients=3, model_spread=s) for s in (0.0, 0.1, 3.0))
    assert torch.equal(shared.inputs, far.inputs)
    agree_near = (shared.targets == near.targets).double().mean()
    agree_far = (shared.targets == far.targets).double().mean()
    assert agree_near > 0.8 > 0.5 > agree_far


def test_variants():
    fedprox, pfedme = (synthetic(seed=9, clients=10, variant=v) for v in ("fedprox", "pfedme"))
    assert (sizes_of(pfedme) == 5 * sizes_of(fedprox)).all()
    fedtorch = synthetic(seed=9, clients=40, variant="fedtorch")
    assert fedtorch.task.outputs == 2
    assert sizes_of(fedtorch).min() >= 500
    assert sizes_of(fedtorch).max() <= 1000


def test_more_clients_do_not_change_the_first_ones():
    few, many = synthetic(seed=0, clients=2), synthetic(seed=0, clients=4)
    assert torch.equal(few.inputs, many.inputs[: len(few.inputs)])
    assert torch.equal(few.train.of(1), many.train.of(1))
    assert not torch.equal(few.inputs[:50], synthetic(seed=1, clients=2).inputs[:50])


def test_three_clusters_lie_three_deviations_apart():
    federation = three_clusters(seed=0)
    centres = np.array([federation.inputs[rows_of(federation, c)].mean().item() for c in range(60)])
    groups = federation.groups.numpy()
    assert np.bincount(groups).tolist() == [20, 20, 20]
    for block, centre in enumerate((-1.5, 0.0, 1.5)):
        assert centres[groups == block].mean() == pytest.approx(centre, abs=4 * 0.52 / np.sqrt(20))


def test_shared_weights_make_blocks_share_labels():
    def cross(shared_weights):
        federation = three_clusters(seed=5, clients=9, shared_weights=shared_weights)
        pooled = [torch.cat([rows_of(federation, 3 * b + i) for i in range(2)]) for b in range(3)]
        held = [rows_of(federation, 3 * b + 2) for b in range(3)]
        x, y = federation.inputs, federation.targets
        scores = [least_squares_accuracy(x[p], y[p], x[h], y[h]) for p, h in zip(pooled, held, strict=True)]
        return np.mean(scores)

    assert cross(True) > cross(False) + 0.15


def test_opposed_signs_follow_one_linear_rule_with_two_signs():
    federation = opposed_signs(seed=0, clients=10, samples=400)
    assert federation.task.kind == "binary"
    assert federation.groups.tolist() == [0] * 5 + [1] * 5
    halves = [torch.cat([rows_of(federation, c) for c in r]) for r in (range(5), range(5, 10))]
    x, y = federation.inputs.double(), 2.0 * federation.targets.double() - 1
    assert x[halves[0]].mean().item() == pytest.approx(0.2, abs=0.02)
    assert x[halves[1]].mean().item() == pytest.approx(-0.2, abs=0.02)
    weights = torch.linalg.lstsq(x[halves[0]], y[halves[0], None]).solution[:, 0]
    assert ((x[halves[0]] @ weights) * y[halves[0]] > 0).double().mean() > 0.9
    assert ((x[halves[1]] @ weights) * y[halves[1]] > 0).double().mean() < 0.1


def test_balanced_halves_the_classes():
    for seed in range(3):
        share = opposed_signs(seed=seed, clients=10, balanced=True).targets.double().mean().item()
        assert share == pytest.approx(0.5, abs=0.03)  # 5000 rows
    shares = [opposed_signs(seed=seed, clients=10).targets.double().mean().item() for seed in range(3)]
    assert max(abs(s - 0.5) for s in shares) > 0.15


def client_gradient(federation, client, point):
    model = build_model("quadratic", federation).double()
    with torch.no_grad():
        model.weight.copy_(point)
    rows = federation.train.of(client)
    loss = federation.task.row_losses(model(federation.inputs[rows]), federation.targets[rows]).mean()
    return loss, torch.autograd.grad(loss, model.weight)[0]


def test_quadratic_pair_is_figure_1b():
    federation = quadratic_pair(double=True)
    v = torch.tensor([2.0, -3.0], dtype=torch.float64)
    value, gradient = client_gradient(federation, 0, v)
    assert value.item() == pytest.approx((v[0] - 7) ** 2 + 2 * (v[1] - 18) ** 2)
    assert gradient.tolist() == pytest.approx([2 * (2 - 7), 4 * (-3 - 18)])
    value, gradient = client_gradient(federation, 1, v)
    assert value.item() == pytest.approx(2 * (v[0] - 18) ** 2 + (v[1] - 13) ** 2)
    optimum = torch.tensor([43 / 3, 49 / 3], dtype=torch.float64)
    mean_gradient = sum(client_gradient(federation, c, optimum)[1] for c in range(2))
    assert mean_gradient.abs().max() < 1e-12


def test_quadratic_line_is_proposition_1():
    federation = quadratic_line(optimum=0.5, distance=2.0, double=True)
    v = torch.tensor([3.0], dtype=torch.float64)
    assert client_gradient(federation, 0, v)[0].item() == pytest.approx(0.5 * (3 + 1.5) ** 2)
    assert client_gradient(federation, 1, v)[1].item() == pytest.approx(3 - 2.5)


def test_random_quadratics_have_the_given_curvature_and_noise():
    federation = quadratics(
        seed=1, clients=3, dimensions=5, smallest=0.2, largest=7.0, noise=0.3, rows=4000, double=True
    )
    for client in range(3):
        rows = federation.train.of(client)
        curvature = federation.inputs[rows][0] ** 2
        assert curvature.min().item() == pytest.approx(0.2)
        assert curvature.max().item() == pytest.approx(7.0)
        root = federation.inputs[rows]
        centre = (federation.targets[rows] / root).mean(0)
        assert client_gradient(federation, client, centre)[1].abs().max() < 1e-12
        gradients = root * (root * centre - federation.targets[rows])
        assert torch.allclose(gradients.std(0), torch.tensor(0.3, dtype=torch.float64), rtol=0.05)


def test_image_like_has_the_stated_moments():
    federation = image_like(seed=0, clients=10, partition="iid", samples_per_class=3000)
    x = federation.inputs.flatten(1).double()
    for c in range(3):
        own = x[federation.targets == c]
        assert own.mean(0).norm().item() == pytest.approx(3.0, abs=0.1)
        eigenvalues = torch.linalg.eigvalsh(own.T.cov())
        assert eigenvalues[:-10].mean().item() == pytest.approx(0.1, rel=0.1)
        assert eigenvalues[-10:].mean().item() == pytest.approx(1.1, rel=0.2)


def test_style_changes_rows_by_about_its_size():
    plain, styled = (
        image_like(seed=0, clients=5, partition="iid", style=s, samples_per_class=100) for s in (0.0, 0.1)
    )
    assert torch.equal(plain.train.index, styled.train.index)
    used = plain.train.index
    change = (plain.inputs - styled.inputs)[used].flatten(1).norm(dim=1)
    assert (change / plain.inputs[used].flatten(1).norm(dim=1)).mean().item() == pytest.approx(0.1, rel=0.3)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: synthetic(seed=0, clients=0), "clients=0"),
        (lambda: synthetic(seed=0, beta=-1.0), "beta=-1.0"),
        (lambda: synthetic(seed=0, gamma=float("nan")), "gamma=nan"),
        (lambda: synthetic(seed=0, iid=True, model_spread=1.0), "model_spread"),
        (lambda: three_clusters(seed=0, beta=0.0), "beta=0.0"),
        (lambda: opposed_signs(seed=0, samples=0), "samples=0"),
        (lambda: quadratics(seed=0, smallest=2.0, largest=1.0), "smallest=2.0"),
        (lambda: quadratics(seed=0, noise=0.1, rows=1), "noise=0.1"),
        (lambda: image_like(seed=0, style=-0.1), "style=-0.1"),
    ],
)
def test_bad_settings_are_refused(make, field):
    with pytest.raises(UserError, match=field):
        make()
