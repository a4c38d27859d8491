"""APFL against a transcription of spec 1.5 and the identities A1 to A9."""

from typing import Any

import numpy as np
import pytest
import torch

from idiolect.core import tree
from idiolect.core.method import Method
from idiolect.core.objective import Batch, Objective
from idiolect.core.task import Task
from idiolect.data.federation import Federation, Rows
from idiolect.methods.apfl import APFL
from idiolect.methods.fedavg import FedAvg
from idiolect.methods.local import Local
from idiolect.participation.sampling import Uniform
from idiolect.simulation import EngineName, Simulation
from idiolect.testing.problems import ProductModel, small_network, uneven_classification
from paper.problems import ENGINES, Softmax, close, finite_difference, on_quadratics, vector

ROUNDS, STEPS = 6, 4
RATE = {"name": "inverse_time", "initial": 0.4, "decay": 0.05}


def transcription(
    problem: Softmax,
    *,
    alpha: float,
    adaptive: bool = False,
    every_step: bool = False,
    shared_first: bool = False,
    radius: float = np.inf,
    average_offset: float = 0.0,
) -> dict[str, np.ndarray]:
    """Spec 1.5 and 1.6, written from the text alone."""

    def project(u: np.ndarray) -> np.ndarray:
        return u * min(1.0, radius / np.linalg.norm(u))

    n = problem.clients
    w = problem.start()
    v, alphas, copies = np.tile(w, (n, 1)), np.full(n, alpha), np.tile(w, (n, 1))
    weighted, total = np.zeros_like(v), 0.0
    for r in range(ROUNDS):
        asked = problem.asked(r)
        path_w, path_v = np.tile(w, (STEPS, n, 1)), np.tile(v, (STEPS, 1, 1))
        for i in asked:
            x = w.copy()
            for t in range(STEPS):
                path_w[t, i], path_v[t, i] = x, v[i]
                rate = 0.4 / (1 + 0.05 * (r * STEPS + t))
                rows = problem.batch(i, r, t)
                new_x = project(x - rate * problem.gradient(x, rows))
                seen = new_x if shared_first else x
                g_m = problem.gradient(alphas[i] * v[i] + (1 - alphas[i]) * seen, rows)
                step_alpha = np.clip(alphas[i] - rate * (v[i] - seen) @ g_m, 0, 1)
                v[i] = project(v[i] - rate * alphas[i] * g_m)
                if adaptive and (every_step or t == 0):
                    alphas[i] = step_alpha
                x = new_x
            copies[i] = x
        for t in range(STEPS):
            p = (r * STEPS + t + average_offset) ** 2
            mean_w = path_w[t, asked].mean(0)
            weighted += p * (alphas[:, None] * path_v[t] + (1 - alphas[:, None]) * mean_w)
            total += p
        w = copies[asked].mean(0)
    return {
        "w": w,
        "v": v,
        "alpha": alphas,
        "copies": copies,
        "personal": alphas[:, None] * v + (1 - alphas[:, None]) * w,
        "average": weighted / total,
    }


VARIANTS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"mixing": 0.3}, {"alpha": 0.3}),
    ({"initial_mixing": 0.4}, {"alpha": 0.4, "adaptive": True}),
    (
        {"initial_mixing": 0.4, "mixing_update": "step"},
        {"alpha": 0.4, "adaptive": True, "every_step": True},
    ),
    (
        {"initial_mixing": 0.4, "mixing_update": "step", "order": "shared_first"},
        {"alpha": 0.4, "adaptive": True, "every_step": True, "shared_first": True},
    ),
    ({"mixing": 0.6, "ball_radius": 1.1}, {"alpha": 0.6, "radius": 1.1}),
]


def apfl(**options: Any) -> APFL:
    return APFL(learning_rate=RATE, local_steps=STEPS, **options)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("options", "transcribed"), VARIANTS, ids=["fixed", "round", "step", "order", "ball"]
)
def test_transcription(engine: EngineName, options: dict[str, Any], transcribed: dict[str, Any]) -> None:
    problem = Softmax()
    run = problem.simulate(apfl(**options), engine).play(ROUNDS)
    expected = transcription(problem, **transcribed)
    clients = run.clients()
    assert close(vector(run.server.w), expected["w"])
    assert close(vector(clients.v), expected["v"])
    assert close(clients.alpha, expected["alpha"])
    assert close(vector(clients.w), expected["copies"])
    assert close(vector(run.predictors()["personal"]), expected["personal"])


@pytest.mark.parametrize("engine", ENGINES)
def test_theory_average(engine: EngineName) -> None:
    problem = Softmax()
    run = problem.simulate(apfl(mixing=0.3, average_offset=2.5), engine).play(ROUNDS)
    expected = transcription(problem, alpha=0.3, average_offset=2.5)["average"]
    assert close(vector(run.predictors()["personal"]), expected)


def shared_models(method: Method, engine: EngineName, model: Any = small_network) -> list[torch.Tensor]:
    run = Simulation(
        method,
        model,
        uneven_classification(),
        plan=Uniform(rate=0.6),
        batch_size=4,
        dtype=torch.float64,
        engine=engine,
        seed=2,
    )
    models = []
    for _ in range(5):
        run.advance()
        models.append(tree.flatten(run.server.w))
    return models


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "options",
    [{"mixing": 0.0}, {"mixing": 0.7}, {"mixing_update": "step"}, {"mixture_of": "outputs"}, {"mixing": 1.0}],
)
def test_a1_the_shared_model_is_fedavgs_bit_for_bit(engine: EngineName, options: dict[str, Any]) -> None:
    ours = shared_models(APFL(lr=0.3, local_steps=3, **options), engine)
    theirs = shared_models(FedAvg(lr=0.3, local_steps=3), engine)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("engine", ENGINES)
def test_a2_without_weight_the_local_model_is_frozen_and_the_personal_one_fedavgs(engine: EngineName) -> None:
    problem = Softmax()
    fedavg = problem.simulate(FedAvg(learning_rate=RATE, local_steps=STEPS), engine).play(ROUNDS)
    start = problem.start()
    for mix_with, kind in (("local_copy", "localized"), ("global", "global")):
        run = problem.simulate(apfl(mixing=0.0, mix_with=mix_with), engine).play(ROUNDS)
        assert np.array_equal(vector(run.clients().v), np.tile(start, (problem.clients, 1)))
        assert np.array_equal(vector(run.predictors()["personal"]), vector(fedavg.predictors()[kind]))


@pytest.mark.parametrize("engine", ENGINES)
def test_a3_with_all_weight_the_local_model_is_trained_alone(engine: EngineName) -> None:
    problem = Softmax()
    run = problem.simulate(apfl(mixing=1.0), engine).play(ROUNDS)
    alone = problem.simulate(Local(learning_rate=RATE, local_steps=STEPS), engine).play(ROUNDS)
    assert close(vector(run.clients().v), vector(alone.clients().v), 1e-12)
    assert close(vector(run.predictors()["personal"]), vector(alone.clients().v), 1e-12)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("order", ["simultaneous", "shared_first"])
def test_a4_a_linear_model_mixes_outputs_as_it_mixes_parameters(engine: EngineName, order: str) -> None:
    problem = Softmax()
    runs = [
        problem.simulate(apfl(mixture_of=what, order=order, mixing_update="step"), engine).play(ROUNDS)
        for what in ("parameters", "outputs")
    ]
    parameters, outputs = (run.clients() for run in runs)
    assert close(vector(outputs.v), vector(parameters.v), 1e-12)
    assert close(outputs.alpha, parameters.alpha, 1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_a4_does_not_hold_for_a_network(engine: EngineName) -> None:
    models = {
        what: Simulation(
            apfl(mixture_of=what, mixing=0.5),
            small_network,
            uneven_classification(),
            batch_size=4,
            dtype=torch.float64,
            engine=engine,
        )
        .play(2)
        .clients()
        .v
        for what in ("parameters", "outputs")
    }
    assert not torch.allclose(
        tree.flatten_rows(models["parameters"]), tree.flatten_rows(models["outputs"]), rtol=1e-3
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_a5_one_step_of_everybody_is_distributed_minibatch_sgd(engine: EngineName) -> None:
    problem = Softmax(participation=1.0)
    run = problem.simulate(APFL(lr=0.4, local_steps=1), engine).play(ROUNDS)
    w = problem.start()
    for r in range(ROUNDS):
        w = w - 0.4 * np.mean(
            [problem.gradient(w, problem.batch(i, r, 0)) for i in range(problem.clients)], 0
        )
    assert close(vector(run.server.w), w, 1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_a6_a_client_that_is_never_asked_keeps_its_state(engine: EngineName) -> None:
    problem = Softmax(participation=0.2)
    run = problem.simulate(apfl(mixing=0.5), engine).play(2)
    asked = {i for r in range(2) for i in problem.asked(r)}
    absent = sorted(set(range(problem.clients)) - asked)
    clients = run.clients()
    assert absent
    assert np.array_equal(vector(clients.v)[absent], np.tile(problem.start(), (len(absent), 1)))
    assert (clients.alpha[absent] == 0.5).all()


@pytest.mark.parametrize("engine", ENGINES)
def test_a7_the_weight_stands_still_in_the_very_first_step(engine: EngineName) -> None:
    problem = Softmax(participation=1.0)
    simultaneous = problem.simulate(apfl(initial_mixing=0.3), engine).play(1).clients().alpha
    assert close(simultaneous, np.full(problem.clients, 0.3), 1e-12)
    shared_first = problem.simulate(apfl(initial_mixing=0.3, order="shared_first"), engine).play(1).clients()
    assert (shared_first.alpha - 0.3).abs().min() > 1e-6


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("radius", "v", "mixed"), [(1.0, (1.0, 0.0), (0.0, 0.0)), (None, (3.0, 0.0), (1.0, 0.0))]
)
def test_a8_the_projection_keeps_personalization_from_collapsing(
    engine: EngineName, radius: float | None, v: tuple[float, float], mixed: tuple[float, float]
) -> None:
    """Example 1: f(x) = ½|x - (1, 0)|² against a shared model frozen at (-1, 0)."""
    rows = Rows.of_clients([torch.tensor([0])])
    ones, target = torch.ones(1, 2, dtype=torch.float64), torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    federation = Federation(ones, target, Task("regression", 2), ("a",), rows, rows, rows)
    model = ProductModel(2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([-1.0, 0.0]))
    method = APFL(lr=0.3, local_steps=400, mixing=0.5, ball_radius=radius)
    run = Simulation(method, model, federation, batch_size=None, dtype=torch.float64, engine=engine)
    run = run.newcomers(federation)
    personal = run.predictor(0)["personal"]
    assert isinstance(personal, dict)
    assert torch.allclose(run.clients().v["weight"][0], torch.tensor(v, dtype=torch.float64), atol=1e-9)
    assert torch.allclose(personal["weight"], torch.tensor(mixed, dtype=torch.float64), atol=1e-9)


@pytest.mark.parametrize("mixture_of", ["parameters", "outputs"])
def test_a9_gradients_of_the_mixed_loss_are_finite_differences(mixture_of: str) -> None:
    federation = uneven_classification()
    module = small_network().double()
    objective = Objective(module, federation.task, weight_decay=0.05)
    rows = federation.train.of(3)
    batch = Batch(
        federation.inputs[rows], federation.targets[rows], torch.full((len(rows),), 1 / len(rows)).double()
    )
    w = objective.initial_params()
    generator = torch.Generator().manual_seed(4)
    v = tree.map_tree(lambda p: p + torch.randn(p.shape, generator=generator, dtype=p.dtype), w)
    method = APFL(mixture_of=mixture_of)
    v_gradient, alpha_gradient = method.mixed_gradients(objective, v, torch.tensor(0.3).double(), w, batch)

    def loss(point: np.ndarray) -> float:
        local, alpha = tree.unflatten(torch.tensor(point[:-1]), v), torch.tensor(point[-1])
        mixed = tree.interpolate(local, w, alpha)
        if mixture_of == "parameters":
            return float(objective.loss(mixed, batch))
        outputs = alpha * objective.predict(local, batch.inputs) + (1 - alpha) * objective.predict(
            w, batch.inputs
        )
        losses = federation.task.row_losses(outputs, batch.targets)
        return float((losses * batch.weights).sum() + objective.penalty(mixed))

    differences = finite_difference(loss, np.append(tree.flatten(v).numpy(), 0.3))
    ours = np.append(tree.flatten(v_gradient).numpy(), float(alpha_gradient))
    assert np.allclose(ours, differences, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_newcomer_trains_its_own_model_against_the_frozen_shared_one(engine: EngineName) -> None:
    """Eq. 7 on noisy quadratics: v <- v - rate α ∇f(α v + (1 - α) ŵ) from v = ŵ."""
    run = on_quadratics(APFL(lr=0.2, local_steps=5, mixing=0.4), engine).play(3)
    setting, ids = run.engine.setting, torch.tensor([2])
    rows = setting.batches.draw(ids, 7, torch.arange(5), int(setting.batches.batch_sizes[2]))
    shared = run.server.w["weight"].numpy()
    v = shared.copy()
    for drawn in rows:
        x, y = run.federation.inputs[drawn].numpy(), run.federation.targets[drawn].numpy()
        mixed = 0.4 * v + 0.6 * shared
        v = v - 0.2 * 0.4 * (x * (x * mixed - y)).mean(0)
    assert close(run.newcomers(run.federation, round_number=7).clients(ids).v["weight"][0], v)


def test_averaging_needs_a_fixed_weight() -> None:
    with pytest.raises(ValueError, match="average_offset needs mixing to be a number"):
        APFL(average_offset=1.0)
