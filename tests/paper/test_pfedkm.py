"""pFedKM against a transcription of spec 4.5 and the identities KM1 to KM9."""

from collections.abc import Iterator
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from idiolect.core import tree
from idiolect.core.objective import Batch, Objective
from idiolect.core.task import Task
from idiolect.data.federation import Federation, Rows
from idiolect.methods._moreau import approach
from idiolect.methods.fedavg import FedAvg
from idiolect.methods.local import Local
from idiolect.methods.pfedkm import PFedKM
from idiolect.methods.pfedme import PFedMe
from idiolect.simulation import EngineName, Simulation
from idiolect.testing.problems import Quadratics
from paper.problems import ENGINES, Softmax, close, finite_difference, identical, identical_clients, vector

ROUNDS, STEPS = 5, 3
LAMBDA, ETA, INNER_RATE = 2.5, 0.15, 0.2


def pfedkm(**options: Any) -> PFedKM:
    settings = {"moreau_weight": LAMBDA, "learning_rate": ETA, "inner_rate": INNER_RATE, "inner_steps": 3}
    return PFedKM(local_steps=STEPS, **(settings | options))


def partitions(points: np.ndarray, groups: int) -> Iterator[np.ndarray]:
    """Every way to put the points into as many groups as there can be."""
    groups = min(groups, len(np.unique(points, axis=0)))
    for choice in product(range(groups), repeat=len(points)):
        if len(set(choice)) == groups:
            yield np.array(choice)


def inertia(points: np.ndarray, labels: np.ndarray) -> float:
    centres = np.stack([points[labels == k].mean(0) for k in range(labels.max() + 1)])
    return float(((points - centres[labels]) ** 2).sum())


def aligned(labels: np.ndarray, uploads: np.ndarray, models: np.ndarray, previous: np.ndarray) -> np.ndarray:
    """S2 by trying all renamings: least squared distance to the old models, then most common members."""
    clusters = int(labels.max()) + 1
    centres = np.stack([uploads[labels == c].mean(0) for c in range(clusters)])

    def badness(names: tuple[int, ...]) -> tuple[float, int]:
        distance = sum(((centres[c] - models[names[c]]) ** 2).sum() for c in range(clusters))
        common = sum(int((previous[labels == c] == names[c]).sum()) for c in range(clusters))
        return round(float(distance), 9), -common

    return np.array(min(permutations(range(len(models)), clusters), key=badness))[labels]


def transcription(
    problem: Softmax,
    *,
    groups: int,
    beta: float = 1.0,
    inner_steps: int = 3,
    tolerance: float = 0.0,
    cold: bool = False,
    on_theta: bool = False,
    cache_age: float = np.inf,
    by_samples: bool = False,
    fedavg: bool = False,
) -> dict[str, Any]:
    """Spec 4.5, written from the text alone; `fedavg` puts plain SGD with rate η into C2."""
    n = problem.clients
    models, labels = np.tile(problem.start(), (groups, 1)), np.zeros(n, dtype=int)
    thetas, omegas = (np.tile(problem.start(), (n, 1)) for _ in range(2))
    heard: dict[int, int] = {}
    inertias = []
    for r in range(ROUNDS):
        for i in problem.asked(r):
            omega = models[labels[i]].copy()
            theta = omega.copy()
            for s in range(STEPS):
                rows = problem.batch(i, r, s)
                if fedavg:
                    omega = omega - ETA * problem.gradient(omega, rows)
                    continue
                if cold:
                    theta = omega.copy()
                for _ in range(inner_steps):
                    slope = problem.gradient(theta, rows) + LAMBDA * (theta - omega)
                    if np.linalg.norm(slope) <= tolerance:
                        break
                    theta = theta - INNER_RATE * slope
                omega = omega - ETA * LAMBDA * (omega - theta)
            thetas[i], omegas[i], heard[i] = theta, omega, r
        known = np.array(sorted(i for i in heard if r - heard[i] <= cache_age))
        points = (thetas if on_theta else omegas)[known]
        best = min(partitions(points, groups), key=lambda found: inertia(points, found))
        inertias.append(inertia(points, best))
        labels[known] = aligned(best, omegas[known], models, labels[known])
        for k in range(groups):
            members = known[labels[known] == k]
            if len(members):
                shares = problem.sizes[members] if by_samples else np.ones(len(members))
                mean = (shares / shares.sum()) @ omegas[members]
                models[k] = (1 - beta) * models[k] + beta * mean
    return {"models": models, "labels": labels, "theta": thetas, "omega": omegas, "inertia": inertias}


VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "two groups": ({"groups": 2}, {"groups": 2}),
    "mixing": ({"groups": 2, "server_mixing": 0.6}, {"groups": 2, "beta": 0.6}),
    "cold": ({"groups": 3, "inner_start": "cold"}, {"groups": 3, "cold": True}),
    "tolerance": (
        {"groups": 2, "inner_steps": 8, "inner_tolerance": 0.3},
        {"groups": 2, "inner_steps": 8, "tolerance": 0.3},
    ),
    "theta": ({"groups": 2, "cluster_on": "theta"}, {"groups": 2, "on_theta": True}),
    "no cache": (
        {"groups": 2, "cache_age": 0, "server_mixing": 0.6},
        {"groups": 2, "cache_age": 0, "beta": 0.6},
    ),
    "young cache": ({"groups": 2, "cache_age": 1}, {"groups": 2, "cache_age": 1}),
    "samples": ({"groups": 2, "weighting": "samples"}, {"groups": 2, "by_samples": True}),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_transcription(engine: EngineName, variant: str) -> None:
    options, transcribed = VARIANTS[variant]
    problem = Softmax()
    run = problem.simulate(pfedkm(**options), engine)
    inertias = [float(run.advance().info["inertia"]) for _ in range(ROUNDS)]
    expected = transcription(problem, **transcribed)
    clients, predictors = run.clients(), run.predictors()
    assert run.server.labels.tolist() == expected["labels"].tolist()
    assert close(vector(run.server.models), expected["models"])
    assert close(vector(clients.theta), expected["theta"])
    assert close(vector(clients.omega), expected["omega"])
    assert inertias == pytest.approx(expected["inertia"], rel=1e-9, abs=1e-15)
    assert close(vector(predictors["personal"]), expected["theta"])
    assert close(vector(predictors["localized"]), expected["omega"])
    assert close(vector(predictors["group"]), expected["models"][expected["labels"]])


def test_without_a_cache_the_server_keeps_no_uploads_which_changes_nothing_if_everybody_replies() -> None:
    problem = Softmax(participation=1.0)
    cached = problem.simulate(pfedkm(groups=2), "vectorised").play(ROUNDS)
    fresh = problem.simulate(pfedkm(groups=2, cache_age=0), "vectorised").play(ROUNDS)
    assert fresh.server.last.kept == ()
    assert torch.equal(fresh.server.labels, cached.server.labels)
    for name, leaf in cached.server.models.items():
        assert torch.equal(fresh.server.models[name], leaf)


def test_the_tolerance_stops_some_inner_iterations_but_not_all() -> None:
    """The transcription with a tolerance is only worth something if the tolerance acts."""
    problem = Softmax()
    results = [
        transcription(problem, groups=2, inner_steps=8, tolerance=t)["theta"] for t in (0.0, 0.3, np.inf)
    ]
    assert not close(results[0], results[1], 1e-6)
    assert not close(results[1], results[2], 1e-6)


@pytest.mark.parametrize("engine", ENGINES)
def test_km1_one_group_is_pfedme(engine: EngineName) -> None:
    problem = Softmax(participation=1.0)
    options = {"moreau_weight": LAMBDA, "learning_rate": ETA, "inner_rate": INNER_RATE, "server_mixing": 0.7}
    ours = problem.simulate(PFedKM(groups=1, local_steps=STEPS, **options), engine).play(ROUNDS)
    theirs = problem.simulate(PFedMe(local_steps=STEPS, **options), engine).play(ROUNDS)
    assert identical(tree.row(ours.server.models, 0), theirs.server.w, engine)
    assert identical(ours.clients().theta, theirs.clients().theta, engine)
    assert identical(ours.clients().omega, theirs.clients().w, engine)


ONE_STEP = {"inner_start": "cold", "inner_steps": 1, "inner_rate": 1 / LAMBDA}


@pytest.mark.parametrize("engine", ENGINES)
def test_km2_one_inner_step_of_rate_1_over_lambda_is_fedavg(engine: EngineName) -> None:
    problem = Softmax(participation=1.0)
    ours = problem.simulate(pfedkm(groups=1, **ONE_STEP), engine).play(ROUNDS)
    theirs = problem.simulate(FedAvg(learning_rate=ETA, local_steps=STEPS), engine).play(ROUNDS)
    assert close(vector(ours.server.models)[0], vector(theirs.server.w), 1e-12)
    assert close(vector(ours.clients().omega), vector(theirs.clients().w), 1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_km2_with_groups_it_is_clustered_fedavg(engine: EngineName) -> None:
    problem = Softmax(participation=1.0)
    ours = problem.simulate(pfedkm(groups=2, **ONE_STEP), engine).play(ROUNDS)
    expected = transcription(problem, groups=2, fedavg=True)
    assert ours.server.labels.tolist() == expected["labels"].tolist()
    assert close(vector(ours.server.models), expected["models"], 1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_km3_as_many_groups_as_clients_is_no_collaboration(engine: EngineName) -> None:
    problem = Softmax(participation=1.0, batch_size=None)
    ours = problem.simulate(pfedkm(groups=problem.clients), engine).play(ROUNDS)
    assert sorted(ours.server.labels.tolist()) == list(range(problem.clients))
    group = vector(ours.predictors()["group"])
    method = PFedMe(
        local_steps=STEPS, moreau_weight=LAMBDA, learning_rate=ETA, inner_rate=INNER_RATE, inner_steps=3
    )
    for client in range(problem.clients):
        alone = Simulation(
            method,
            problem._module,
            problem.federation.subset([client]),
            batch_size=None,
            weight_decay=problem.weight_decay,
            dtype=torch.float64,
            engine="sequential",
        ).play(ROUNDS)
        assert close(vector(ours.clients().theta)[client], vector(alone.clients().theta)[0], 1e-12)
        assert close(group[client], vector(alone.server.w), 1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_km4_without_attraction_groups_never_move_and_theta_is_local_sgd(engine: EngineName) -> None:
    problem = Softmax(participation=1.0)
    ours = problem.simulate(pfedkm(moreau_weight=0.0, inner_steps=1), engine)
    start = ours.server.models
    ours.advance()
    local = problem.simulate(Local(learning_rate=INNER_RATE, local_steps=STEPS), engine).play(1)
    assert identical(ours.clients().theta, local.clients().v, engine)
    ours.play(ROUNDS)
    assert all(torch.equal(ours.server.models[name], start[name]) for name in start)


@pytest.mark.parametrize("engine", ENGINES)
def test_km5_without_mixing_groups_never_move(engine: EngineName) -> None:
    ours = Softmax().simulate(pfedkm(server_mixing=0.0), engine)
    start = ours.server.models
    ours.play(ROUNDS)
    assert all(torch.equal(ours.server.models[name], start[name]) for name in start)
    assert not close(vector(ours.clients().theta), np.tile(Softmax().start(), (5, 1)), 1e-3)


@pytest.mark.parametrize("engine", ENGINES)
def test_km6_with_outer_rate_1_over_lambda_uploads_are_the_inner_solutions(engine: EngineName) -> None:
    method = PFedKM(
        groups=2, local_steps=1, inner_start="cold", moreau_weight=LAMBDA, learning_rate=1 / LAMBDA
    )
    clients = Softmax().simulate(method, engine).play(ROUNDS).clients()
    assert close(vector(clients.omega), vector(clients.theta), 1e-12)


def least_squares() -> tuple[Federation, np.ndarray, np.ndarray]:
    """Three clients of linear regression: f_i = ½ (θ - c)ᵀA(θ - c) + constant, with full matrices A_i."""
    draw = np.random.default_rng(6)
    inputs = draw.normal(size=(3, 8, 4)) * np.array([0.5, 1.0, 1.5, 0.8])
    targets = draw.normal(size=(3, 8, 1)) + 2 * inputs[..., :1]
    matrices = inputs.transpose(0, 2, 1) @ inputs / 8
    centres = np.stack(
        [np.linalg.lstsq(x, y, rcond=None)[0][:, 0] for x, y in zip(inputs, targets, strict=True)]
    )
    rows = Rows.of_clients(list(torch.arange(24).split(8)))
    federation = Federation(
        torch.as_tensor(inputs.reshape(24, 4)),
        torch.as_tensor(targets.reshape(24, 1)),
        Task("regression", 1),
        ("a", "b", "c"),
        rows,
        rows,
        rows,
    )
    return federation, matrices, centres


def linear_map() -> nn.Module:
    module = nn.Linear(4, 1, bias=False, dtype=torch.float64)
    nn.init.normal_(module.weight, generator=torch.Generator().manual_seed(2))
    return module


@pytest.mark.parametrize("engine", ENGINES)
def test_km7_inner_solution_and_gradient_of_the_envelope_on_quadratics(engine: EngineName) -> None:
    federation, matrices, centres = least_squares()
    pull = 20.0
    method = PFedKM(
        groups=1, local_steps=1, moreau_weight=pull, learning_rate=0.3, inner_rate=0.045, inner_steps=14
    )
    module = linear_map()
    omega = module.weight.detach().numpy()[0].copy()
    run = Simulation(method, module, federation, batch_size=None, dtype=torch.float64, engine=engine).play(1)
    for i, (A, c) in enumerate(zip(matrices, centres, strict=True)):
        inverse = np.linalg.inv(A + pull * np.eye(4))
        assert close(run.clients().theta["weight"][i, 0], inverse @ (A @ c + pull * omega), 1e-12)
        gradient = pull * inverse @ A @ (omega - c)
        assert close(run.clients().omega["weight"][i, 0], omega - 0.3 * gradient, 1e-12)


def envelope_gradient(objective: Objective, batch: Batch, omega: np.ndarray) -> np.ndarray:
    """λ (ω - θ̂) with our inner solver."""
    model = tree.unflatten(torch.as_tensor(omega), objective.initial_params())
    theta = approach(objective, batch, model, model, attraction=LAMBDA, steps=100, rate=0.15, tolerance=1e-13)
    return LAMBDA * (omega - tree.flatten(theta).numpy())


def whole(federation: Federation, client: int) -> Batch:
    rows = federation.train.of(client)
    weights = torch.full((len(rows),), 1 / len(rows), dtype=torch.float64)
    return Batch(federation.inputs[rows], federation.targets[rows], weights)


def test_km7_the_envelope_is_strongly_convex_with_lambda_mu_over_lambda_plus_mu() -> None:
    federation, matrices, _ = least_squares()
    objective, batch = Objective(linear_map(), federation.task), whole(federation, 1)
    origin = envelope_gradient(objective, batch, np.zeros(4))
    hessian = np.stack([envelope_gradient(objective, batch, e) - origin for e in np.eye(4)])
    mu = np.linalg.eigvalsh(matrices[1])[0]
    assert np.linalg.eigvalsh(hessian)[0] == pytest.approx(LAMBDA * mu / (LAMBDA + mu), rel=1e-9)


def test_km7_gradient_of_the_envelope_is_its_finite_difference() -> None:
    """F(ω) by minimising h in NumPy, for softmax regression, where nothing is quadratic."""
    problem = Softmax()
    rows = problem.rows(3)

    def envelope(omega: np.ndarray) -> float:
        theta = omega.copy()
        for _ in range(100):
            theta -= 0.15 * (problem.gradient(theta, rows) + LAMBDA * (theta - omega))
        return problem.loss(theta, rows) + LAMBDA / 2 * ((theta - omega) ** 2).sum()

    objective = Objective(problem._module, problem.federation.task, problem.weight_decay)
    gradient = envelope_gradient(objective, whole(problem.federation, 3), problem.start())
    assert close(gradient, finite_difference(envelope, problem.start()), 1e-8)


@pytest.mark.parametrize("engine", ENGINES)
def test_km8_renaming_the_groups_changes_nothing_but_their_names(engine: EngineName) -> None:
    problem = Softmax()
    method = pfedkm(groups=3, server_mixing=0.6)
    one, other = (problem.simulate(method, engine).play(3) for _ in range(2))
    order = torch.tensor([2, 0, 1])  # new group k is old group order[k]
    other.server = other.server._replace(
        models=tree.select(other.server.models, order), labels=order.argsort()[other.server.labels]
    )
    one.play(3)
    other.play(3)
    assert torch.equal(order[other.server.labels], one.server.labels)
    assert close(vector(other.server.models), vector(tree.select(one.server.models, order)), 1e-12)
    assert close(vector(other.clients().theta), vector(one.clients().theta), 1e-12)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("groups", [2, 3, 5])
def test_km9_identical_clients_always_share_a_label(engine: EngineName, groups: int) -> None:
    twins = Quadratics.asymmetric()
    federation = twins.federation().subset([0, 1, 2, 1, 3, 0])
    run = Simulation(pfedkm(groups=groups), twins.model(), federation, dtype=torch.float64, engine=engine)
    for _ in range(ROUNDS):
        labels = run.advance().info["labels"]
        assert labels[0] == labels[5]
        assert labels[1] == labels[3]
        assert len(labels.unique()) == min(groups, 4)


@pytest.mark.parametrize("engine", ENGINES)
def test_identical_clients_have_no_inertia_and_surplus_groups_keep_their_model(engine: EngineName) -> None:
    twins = Quadratics.asymmetric()
    federation = twins.federation().subset([2, 2, 2])
    run = Simulation(pfedkm(groups=3), twins.model(), federation, dtype=torch.float64, engine=engine)
    for _ in range(ROUNDS):
        info = run.advance().info
        assert info["inertia"] == 0
        assert info["model_distance"] == 0
    used = run.server.labels.unique()
    assert len(used) == 1
    weights = run.server.models["weight"]
    assert (weights[[k for k in range(3) if k != used]] == 0).all()
    assert (weights[used] != 0).all()


@pytest.mark.parametrize("engine", ENGINES)
def test_clients_with_the_same_rows_in_other_orders_differ_by_rounding_only(engine: EngineName) -> None:
    run = Simulation(
        pfedkm(groups=2),
        Softmax()._module,
        identical_clients(),
        batch_size=None,
        dtype=torch.float64,
        engine=engine,
    )
    assert run.advance().info["inertia"] < 1e-28


@pytest.mark.parametrize("engine", ENGINES)
def test_a_newcomer_joins_the_group_of_least_loss(engine: EngineName) -> None:
    problem = Softmax(participation=1.0)
    run = problem.simulate(pfedkm(groups=2), engine).play(ROUNDS)
    models = vector(run.server.models)
    best = [
        int(np.argmin([problem.loss(m, problem.rows(i)) for m in models])) for i in range(problem.clients)
    ]
    assert close(vector(run.newcomers(run.federation).predictors()["group"]), models[best])
