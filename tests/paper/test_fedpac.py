"""FedPAC against a transcription in plain torch and NumPy, and its identities P45 to P49. Spec 8.9."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (torch's own convention)

from idiolect.core import Cohort, Population, tree
from idiolect.errors import DivergenceError
from idiolect.methods._classes import ClassSums
from idiolect.methods._combination import Statistics, best_combinations
from idiolect.methods.fedpac import FedPAC, Up
from idiolect.methods.fedrep import FedRep
from idiolect.participation.sampling import Plan, Uniform
from idiolect.simulation import EngineName, Simulation
from paper.heads import (
    ALL,
    BODY,
    CLASSES,
    CLIENTS,
    DATA,
    ENGINES,
    HEAD,
    PLAN,
    SIZES,
    START,
    UNITS,
    Model,
    asked,
    assert_close,
    assert_same,
    average,
    batch,
    counts_of,
    cross_entropy,
    descend,
    features,
    rows_of,
    simulate,
    stacked,
)

each_engine = pytest.mark.parametrize("engine", ENGINES)
ETA, ETA_H, PULL, ROUNDS = 0.2, 0.3, 1.5, 4
STEPS, BODY_STEPS = 5, 3


def statistics(w: Model, client: int) -> tuple[float, np.ndarray]:
    """V_i and M_i, class by class."""
    x, y = rows_of(client)
    z, mean, spread = features(w, x), torch.zeros(CLASSES, UNITS, dtype=torch.float64), 0.0
    for c in range(CLASSES):
        of_class = z[y == c]
        if len(of_class):
            share = len(of_class) / len(y)
            mean[c] = share * of_class.mean(0)
            spread += share * float(of_class.square().sum(1).mean()) - float(mean[c].square().sum())
    return spread / len(y), mean.numpy()


def quadratic(variances: Sequence[float], means: Sequence[np.ndarray], i: int) -> np.ndarray:
    apart = np.stack([(means[i] - mean).ravel() for mean in means])
    return np.diag(variances) + apart @ apart.T


def exact_weights(variances: Sequence[float], means: Sequence[np.ndarray], i: int) -> np.ndarray:
    """The minimiser of αᵀQα on the simplex: the best of the stationary points of all its faces."""
    matrix, count = quadratic(variances, means, i), len(variances)
    best, found = np.inf, np.zeros(count)
    for size in range(1, count + 1):
        for support in map(list, itertools.combinations(range(count), size)):
            system = np.zeros((size + 1, size + 1))
            system[:size, :size] = 2 * matrix[np.ix_(support, support)]
            system[:size, size], system[size, :size] = -1, 1
            try:
                solved = np.linalg.solve(system, np.r_[np.zeros(size), 1])[:size]
            except np.linalg.LinAlgError:
                continue
            weights = np.zeros(count)
            weights[support] = solved
            if weights.min() > -1e-12 and weights @ matrix @ weights < best - 1e-15:
                best, found = weights @ matrix @ weights, weights
    return found


def without_small(weights: np.ndarray, smallest: float = 1e-3) -> np.ndarray:
    kept = np.where(weights < smallest, 0, weights)
    return kept / kept.sum()


def class_means(w: Model, client: int) -> dict[int, Tensor]:
    x, y = rows_of(client)
    return {c: features(w, x)[y == c].mean(0) for c in range(CLASSES) if (y == c).any()}


class OneFirst:
    """Only client 2 in the first round, which lacks a class: the others then meet it without prototype."""

    def cohort(self, seed: int, round_number: int, sizes: Tensor) -> Cohort:
        everybody = Uniform().cohort(seed, round_number, sizes)
        return everybody if round_number else everybody.select(torch.tensor([2]))

    def present(self, round_number: int, clients: int) -> Tensor:
        return torch.ones(clients, dtype=torch.bool)


def transcription(plan: Plan) -> tuple[Model, list[Model], list[Model], dict[int, Tensor]]:
    """θ, the φ_i, the models as clients left their rounds, and C̄."""
    body, prototypes = {name: START[name] for name in BODY}, {}
    heads, left = [{name: START[name] for name in HEAD} for _ in CLIENTS], [START for _ in CLIENTS]
    for r in range(ROUNDS):
        who, found = asked(r, plan), []
        for i in who:
            w = {**body, **heads[i]}
            found.append(statistics(w, i))
            anchors = {**class_means(w, i), **prototypes} if prototypes else {}
            for c in range(STEPS):
                x, y = batch(i, r, c)
                if c < STEPS - BODY_STEPS:
                    w = descend(w, lambda q, x=x, y=y: cross_entropy(q, x, y), HEAD, ETA_H)
                else:
                    w = descend(w, lambda q, x=x, y=y, to=anchors: pulled(q, x, y, to), BODY, ETA)
            left[i] = w
        body = average([left[i] for i in who], SIZES[who], BODY)
        means = {i: class_means(left[i], i) for i in who}
        for c in range(CLASSES):
            owners = [i for i in who if c in means[i]]
            if owners:
                rows = torch.stack([counts_of(i)[c] for i in owners])
                prototypes[c] = sum(n * means[i][c] for n, i in zip(rows, owners, strict=True)) / rows.sum()
        variances, positions = [v for v, _ in found], [m for _, m in found]
        sent = [{name: left[i][name] for name in HEAD} for i in who]
        for place, i in enumerate(who):
            shares = without_small(exact_weights(variances, positions, place))
            heads[i] = average(sent, torch.tensor(shares), HEAD)
    return body, heads, left, prototypes


def pulled(w: Model, x: Tensor, y: Tensor, anchors: dict[int, Tensor]) -> Tensor:
    loss = cross_entropy(w, x, y)
    if anchors:
        to = torch.stack([anchors[int(label)] for label in y])
        loss = loss + PULL * (features(w, x) - to).square().mean()
    return loss


@each_engine
@pytest.mark.parametrize("plan", [PLAN, OneFirst()], ids=["some", "one first"])
def test_fedpac_matches_its_transcription(engine: EngineName, plan: Plan) -> None:
    method = FedPAC(lr=ETA, head_rate=ETA_H, pull=PULL, local_steps=STEPS, body_steps=BODY_STEPS)
    simulation = simulate(method, engine, plan=plan).play(ROUNDS)
    body, heads, left, prototypes = transcription(plan)
    models = simulation.predictors()
    assert_close(simulation.server.shared, body)
    assert_close(models["personal"], stacked([{**body, **head} for head in heads]))
    assert_close(models["localized"], stacked(left))
    means = simulation.server.prototypes.means
    assert_close(means, torch.stack([prototypes[c] for c in range(CLASSES)]))


@each_engine
def test_p45_the_statistics_are_mean_and_variance_of_class_times_feature(engine: EngineName) -> None:
    sent: list[Statistics] = []

    class Listening(FedPAC):
        def combinations(self, statistics: Statistics) -> Tensor:
            sent.append(statistics)
            return FedPAC.combinations(self, statistics)

    simulate(Listening(local_steps=2), engine, plan=None).play(1)
    for i in CLIENTS:
        x, y = rows_of(i)
        product = torch.einsum("nc,nd->ncd", F.one_hot(y, CLASSES).double(), features(START, x)).flatten(1)
        assert torch.allclose(sent[0].mean[i].flatten(), product.mean(0), rtol=0, atol=1e-15)
        expected = product.var(0, correction=0).sum() / len(y)
        assert torch.allclose(sent[0].variance[i], expected, rtol=0, atol=1e-15)


def problem() -> tuple[list[float], list[np.ndarray]]:
    found = [statistics(START, i) for i in CLIENTS]
    return [v for v, _ in found], [m for _, m in found]


def solved(variances: Sequence[float], means: Sequence[np.ndarray], smallest: float = 0.0) -> np.ndarray:
    return best_combinations(torch.tensor(np.stack(means)), torch.tensor(variances), smallest).numpy()


def test_p46_the_quadratic_is_positive_definite_and_its_minimum_is_found() -> None:
    variances, means = problem()
    generator = np.random.default_rng(3)
    others = [1e-3 * generator.uniform(size=6), [generator.normal(size=(3, 4)) for _ in range(6)]]
    far_out = [m + 1e3 for m in means]  # a large common mean hides no distance
    for v, m in ((variances, means), tuple(others), (variances, far_out)):
        found = solved(v, m)  # type: ignore[arg-type]
        for i in range(len(v)):
            matrix = quadratic(v, m, i)  # type: ignore[arg-type]
            assert np.linalg.eigvalsh(matrix)[0] > 0
            assert np.allclose(found[i], exact_weights(v, m, i), atol=1e-8)  # type: ignore[arg-type]
            objective = (found[i] ** 2 * v).sum() + ((m[i] - np.tensordot(found[i], m, 1)) ** 2).sum()
            assert objective == pytest.approx(found[i] @ matrix @ found[i], rel=1e-9)


def test_p46_small_weights_are_left_out_and_the_others_sum_to_one() -> None:
    variances, means = problem()
    exact = solved(variances, means)
    smallest = float(np.sort(exact[exact > 0])[len(exact[exact > 0]) // 3]) * 1.01
    found = solved(variances, means, smallest)
    assert np.allclose(found, np.stack([without_small(row, smallest) for row in exact]), atol=1e-12)
    assert ((found > 0) != (exact > 0)).any()
    assert np.allclose(solved([0.3] * 4, [means[0]] * 4, 0.5), 0.25)  # of many equal ones none is too small


def test_p47_closed_forms() -> None:
    variances, means = problem()
    apart = ((means[0] - means[1]) ** 2).sum()
    own = (variances[1] + apart) / (variances[0] + variances[1] + apart)
    assert np.allclose(solved(variances[:2], means[:2])[0], [own, 1 - own], atol=1e-9)
    same_place = solved([0.2, 0.1, 0.4], [means[0]] * 3)
    assert np.allclose(same_place, np.tile(np.array([5, 10, 2.5]) / 17.5, (3, 1)), atol=1e-9)
    assert np.allclose(solved([0.3] * 4, [means[0]] * 4), 0.25, atol=1e-9)
    assert np.array_equal(solved([0.0] * 4, means[:4]), np.eye(4))
    assert np.array_equal(solved([0.0], means[:1]), np.eye(1))


class KeepsItsHead(FedPAC):
    """Nobody's head is combined with another's."""

    def combinations(self, statistics: Statistics) -> Tensor:
        return torch.eye(len(statistics.variance), dtype=torch.float64)


@each_engine
def test_p48_without_pull_and_combination_it_is_fedrep(engine: EngineName) -> None:
    options = {"lr": ETA, "local_steps": STEPS, "body_steps": BODY_STEPS, "weighting": "samples"}
    ours = simulate(KeepsItsHead(pull=0.0, **options), engine).play(ROUNDS)
    fedrep = simulate(FedRep(**options), engine).play(ROUNDS)
    assert_same(ours.server.shared, fedrep.server.shared, engine)
    for kind in ("localized", "personal"):
        assert_same(ours.predictors()[kind], fedrep.predictors()[kind], engine)
    combined = simulate(FedPAC(pull=0.0, **options), engine).play(ROUNDS)
    apart = tree.subtract(combined.predictors()["personal"], fedrep.predictors()["personal"])
    assert float(tree.squared_norm(apart)) > 1e-3


def test_p49_heads_are_combined_from_what_was_sent() -> None:
    """In place, the second client would mix a head that is combined already."""
    population = Population(torch.tensor([4, 4]), torch.tensor([True, True]))
    method = FedPAC()
    server = method.server_init(START, population, torch.tensor(0))
    heads = {name: torch.stack([START[name] + 1, START[name] + 3]) for name in HEAD}
    alike = Statistics(torch.ones(2, CLASSES, UNITS).double(), torch.full((2,), 0.1).double())
    nothing = ClassSums(torch.zeros(2, CLASSES, UNITS).double(), torch.zeros(2, CLASSES).double())
    everybody = Cohort(
        torch.arange(2),
        torch.ones(2).double(),
        torch.tensor([True, True]),
        torch.ones(2).double(),
        population,
    )
    replies = Up(tree.repeat(server.shared, 2), heads, alike, nothing)
    after, _ = method.absorb(server, replies, everybody)
    for name in HEAD:
        assert torch.allclose(after.heads[name], (START[name] + 2).expand(2, *START[name].shape), atol=1e-9)


@each_engine
def test_identical_clients_combine_to_their_own_heads(engine: EngineName) -> None:
    data = DATA.subset([2, 2, 2])
    simulation = simulate(FedPAC(lr=ETA, local_steps=4), engine, data=data, plan=None, batch_size=None).play(
        3
    )
    models = simulation.predictors()
    for name in ALL:
        assert torch.allclose(models["personal"][name], models["localized"][name], atol=1e-9)


@each_engine
def test_fedpacs_newcomer_trains_a_head_on_the_shared_body(engine: EngineName) -> None:
    trained = simulate(FedPAC(lr=ETA, head_rate=ETA_H, local_steps=3), engine, plan=None).play(3)
    fresh = trained.newcomers(DATA, round_number=7)
    expected = []
    for i in CLIENTS:
        w = {**trained.server.shared, **{name: START[name] for name in HEAD}}
        for c in range(3):
            x, y = batch(i, 7, c)
            w = descend(w, lambda q, x=x, y=y: cross_entropy(q, x, y), HEAD, ETA_H)
        expected.append(w)
    assert_close(fresh.predictors()["personal"], stacked(expected))


def test_phases_may_be_counted_in_passes() -> None:
    by_passes = FedPAC(lr=ETA, local_steps={"epochs": 3}, body_steps={"epochs": 2})
    # Full batches: a pass is one step.
    by_steps = FedPAC(lr=ETA, local_steps=3, body_steps=2)
    ends = [simulate(method, batch_size=None).play(2).server.shared for method in (by_passes, by_steps)]
    assert_same(ends[0], ends[1], "sequential")
    with pytest.raises(ValueError, match="must both be steps"):
        FedPAC(local_steps=3, body_steps={"epochs": 2})
    with pytest.raises(ValueError, match="body_steps=4 must be at most local_steps=3"):
        FedPAC(local_steps=3, body_steps=4)


@pytest.mark.parametrize("kind", [FedRep, FedPAC])
def test_running_statistics_follow_the_bodys_gradients(kind: type[FedRep] | type[FedPAC]) -> None:
    """The first gradient of a step is the head's, for which the body, and what it remembers, stands still."""
    model = nn.Sequential(nn.Linear(4, UNITS), nn.BatchNorm1d(UNITS), nn.Linear(UNITS, CLASSES))
    method = kind(local_steps=1, body_steps=1)
    simulation = Simulation(method, model, DATA, batch_size=None, dtype=torch.float64).play(1)
    found = simulation.predictors()["personal"]["1.running_mean"]
    for i in CLIENTS:
        before = rows_of(i)[0] @ model[0].weight.T + model[0].bias
        assert torch.allclose(found[i], 0.1 * before.mean(0).detach(), atol=1e-12)


@pytest.mark.parametrize("which", ["means", "variances"])
def test_features_that_are_not_finite_any_more_are_the_end_of_a_training(which: str) -> None:
    """They grow slowly: all is finite but one square, and no combination can be looked for."""
    means, variances = torch.rand(4, 3, 5), torch.rand(4)
    {"means": means, "variances": variances}[which][2] = torch.nan
    with pytest.raises(DivergenceError, match="features by which heads are combined are not finite"):
        best_combinations(means, variances, 1e-3)
