"""Rates that suit the data: the smoothness against its definition, and what runs make of it."""

from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import idiolect
from idiolect.core.objective import Batch, Objective
from idiolect.core.task import Task
from idiolect.data.federation import Federation, Rows
from idiolect.errors import UserError
from idiolect.methods._moreau import envelope_rates
from idiolect.methods.catalogue import METHODS
from idiolect.runs.config import AUTO, RunConfig, resolve
from idiolect.runs.decisions import LINEAR_BATCH, LINEAR_ROUNDS, OTHER_BATCH, PATIENCE, decide
from idiolect.runs.lifecycle import continue_run, find_run
from idiolect.runs.rate_finder import find_rate
from idiolect.runs.settings import read_settings
from idiolect.runs.setup import build_setting
from idiolect.runs.smoothness import largest_eigenvalue, smoothness_of
from idiolect.simulation import Simulation

TASKS = {
    "regression": Task("regression", 1),
    "binary": Task("binary", 1),
    "weighted": Task("binary", 1, class_weights=(0.2, 6.0)),
    "multiclass": Task("multiclass", 4),
}


def federation_of(kind: str, scale: float = 1.0, sizes: tuple[int, ...] = (9, 30, 17)) -> Federation:
    """Clients of different sizes, with correlated columns of different lengths."""
    generator, task = np.random.default_rng(5), TASKS[kind]
    rows = sum(sizes)
    shared = generator.normal(size=(rows, 1))
    inputs = scale * (generator.normal(size=(rows, 4)) * [1.0, 0.3, 2.0, 0.05] + shared)
    outputs = inputs / scale @ generator.normal(size=(4, task.outputs)) + generator.normal(size=(rows, 1))
    targets = {
        "regression": torch.tensor(outputs, dtype=torch.float32),
        "binary": torch.tensor(outputs[:, 0] > 0.5).long(),
        "multiclass": torch.tensor(outputs.argmax(1)),
    }[task.kind]
    parts = [torch.arange(sum(sizes[:i]), sum(sizes[: i + 1])) for i in range(len(sizes))]
    train = Rows.of_clients([part[:-4] for part in parts])
    held = Rows.of_clients([part[-4:] for part in parts])
    names = tuple("abc"[: len(sizes)])
    return Federation(torch.tensor(inputs, dtype=torch.float32), targets, task, names, train, held, held)


def objective_of(federation: Federation, weight_decay: float = 0.0) -> Objective:
    module = nn.Linear(federation.inputs.shape[1], federation.task.outputs).double()
    return Objective(module, federation.task, weight_decay)


def rows_of(federation: Federation, client: int) -> Batch:
    index = federation.train.of(client)
    targets = federation.targets[index]
    weights = torch.full((len(index),), 1 / len(index), dtype=torch.float64)
    real = targets.double() if targets.is_floating_point() else targets
    return Batch(federation.inputs[index].double(), real, weights)


def config_of(federation: Federation, method: str = "fedavg", **settings: object) -> RunConfig:
    return resolve(read_settings([{"method": method, "data": federation, **settings}]))


@pytest.mark.parametrize("shape", [(1, 3), (40, 6), (6, 40)])
def test_the_power_iteration_finds_the_largest_eigenvalue(shape: tuple[int, int]) -> None:
    rows = torch.tensor(np.random.default_rng(1).normal(size=shape) * np.geomspace(1, 20, shape[1]))
    expected = np.linalg.eigvalsh(rows.numpy().T @ rows.numpy())[-1]
    assert largest_eigenvalue(rows) == pytest.approx(expected, rel=1e-3)
    assert largest_eigenvalue(torch.zeros(3, 2)) == 0


@pytest.mark.parametrize("kind", TASKS)
def test_gradients_change_no_faster_than_the_smoothness_says(kind: str) -> None:
    """|∇f_i(v) - ∇f_i(w)| ≤ L |v - w| for every client; for the squared error L is reached, too."""
    federation = federation_of(kind)
    objective = objective_of(federation, weight_decay=0.1)
    known = smoothness_of(objective, federation, None)
    # Half of the bound for more than two classes: 1/L is then the last rate at which steps descend.
    bound = 2 * known.largest if kind == "multiclass" else known.largest
    generator, reached = torch.Generator().manual_seed(0), 0.0
    for client in range(3):
        batch = rows_of(federation, client)
        for _ in range(200):
            w, v = (
                {
                    name: torch.randn(p.shape, generator=generator, dtype=torch.float64)
                    for name, p in objective.initial_params().items()
                }
                for _ in range(2)
            )
            slopes = objective.gradient(w, batch), objective.gradient(v, batch)
            change = sum((slopes[0][n] - slopes[1][n]).square().sum() for n in w) ** 0.5
            reached = max(reached, float(change / sum((w[n] - v[n]).square().sum() for n in w) ** 0.5))
    assert reached <= bound * (1 + 1e-3)
    if kind == "regression":
        assert reached >= 0.8 * bound


def test_batches_follow_the_expected_smoothness() -> None:
    """E |∇f_B(w) - ∇f_B(w*)|² ≤ 2 L(b) (f(w) - f(w*)), over all batches of b rows of a least squares problem.

    Without noise, w* solves every row, so the left side is the mean squared gradient.
    """
    federation = federation_of("regression", sizes=(12,))
    inputs = torch.nn.functional.pad(federation.inputs[federation.train.of(0)].double(), (0, 1), value=1.0)
    rows, truth = len(inputs), torch.tensor([1.0, -2.0, 0.5, 3.0, 0.2], dtype=torch.float64)
    worst = {}
    for size in (1, 3, rows):
        known = smoothness_of(objective_of(federation), federation, size).largest
        generator, ratios = torch.Generator().manual_seed(1), []
        for _ in range(60):
            move = torch.randn(5, generator=generator, dtype=torch.float64)
            residuals = inputs @ (truth + move) - inputs @ truth
            squares = [
                float((inputs[list(batch)].T @ residuals[list(batch)] / size).square().sum())
                for batch in combinations(range(rows), size)
            ]
            ratios.append(np.mean(squares) / (2 * float(0.5 * residuals.square().mean())))
        worst[size] = max(ratios) / known
    assert all(ratio <= 1 + 1e-3 for ratio in worst.values())
    assert worst[rows] > 0.6


@pytest.mark.parametrize("attraction", [0.5, 15.0])
def test_rates_of_an_envelope_are_one_over_its_curvature(attraction: float) -> None:
    """The envelope of (h/2) θ² is (λ h / (λ + h) / 2) ω²: by finite differences of min over θ."""
    curvature = 3.0
    theta = torch.linspace(-3, 3, 600_001, dtype=torch.float64)

    def envelope(omega: float) -> float:
        return float((0.5 * curvature * theta**2 + 0.5 * attraction * (theta - omega) ** 2).min())

    second = (envelope(0.7) - 2 * envelope(0.5) + envelope(0.3)) / 0.2**2
    rates = envelope_rates(curvature, attraction)
    assert 1 / rates["learning_rate"] == pytest.approx(second, rel=1e-4)
    assert rates["inner_rate"] == 1 / (curvature + attraction)
    assert envelope_rates(curvature, 0.0) == {"learning_rate": 1 / 3, "inner_rate": 1 / 3}


def test_rates_follow_the_units_of_the_inputs() -> None:
    """Inputs a thousand times as large make steps a million times as short."""
    results = {}
    for scale in (1.0, 1000.0):
        federation = federation_of("regression", scale)
        decision = decide(config_of(federation, model={"name": "linear", "bias": False}), federation)
        results[scale] = decision.config.method["learning_rate"]["initial"]
        assert "smoothness" in decision.notes[0]
    assert results[1.0] / results[1000.0] == pytest.approx(1e6, rel=1e-3)


@pytest.mark.parametrize("name", [kind.name for kind in METHODS if not kind.needs_classes])
def test_no_method_diverges_at_its_defaults(name: str) -> None:
    """An unscaled, correlated regression with an outlier: every method ends better than it began."""
    federation = federation_of("regression", scale=30.0)
    result = idiolect.train(name, federation, rounds=12, evaluate_every=4, dtype="float64")
    losses = result.metrics[(result.metrics.metric == "loss") & (result.metrics.part == "validation")]
    means = losses.groupby(["kind", "round"]).value.mean().unstack()
    assert np.isfinite(means.to_numpy()).all()
    assert means[12][result.simulation.method.judged_by] < means[0].max()


def test_what_is_given_stays_and_what_is_open_is_kept_in_the_folder(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    generator = np.random.default_rng(2)
    frame = pd.DataFrame(generator.normal(size=(60, 2)) * [1, 500], columns=["x", "z"])
    frame.assign(y=frame.x + frame.z / 500, c=np.arange(60) % 3).to_csv(table, index=False)
    settings = {"data": {"name": str(table), "client": "c", "target": "y"}, "out": str(tmp_path / "run")}
    run = idiolect.run(method="pfedkm", rounds=2, **settings, **{"method.inner_rate": 0.01})
    assert run.config.method["inner_rate"] == {"name": "constant", "initial": 0.01}
    assert 0 < run.config.method["learning_rate"]["initial"] < 10
    assert (run.config.batch_size, run.config.rounds, run.config.evaluation.patience) == (LINEAR_BATCH, 2, 0)
    assert "learning_rate" in (run.path / "log.txt").read_text()
    same = resolve(read_settings([{"method": "pfedkm", "rounds": 2, **settings, "method.inner_rate": 0.01}]))
    assert same.method["learning_rate"] == AUTO
    found = find_run(same)
    assert found is not None
    with pytest.raises(UserError, match="another run"):
        idiolect.run(method="pfedkm", rounds=2, **settings)  # the rate of θ is left open now
    assert continue_run(found).path == run.path


def test_a_schedule_keeps_its_shape() -> None:
    federation = federation_of("binary")
    chosen = decide(config_of(federation, "apfl"), federation).config.method
    assert chosen["learning_rate"]["name"] == "per_round"
    assert chosen["learning_rate"]["factor"] == 1 / 1.01
    known = smoothness_of(objective_of(federation), federation, LINEAR_BATCH).largest
    assert chosen["learning_rate"]["initial"] == pytest.approx(1 / known, rel=1e-3)


def test_auto_can_be_typed_where_a_rate_can_follow_the_data() -> None:
    assert resolve(read_settings(["method=fedavg", "data=vowels", "lr=auto"])).open_rates == ["learning_rate"]
    with pytest.raises(UserError, match=r"method.mixing=auto .* learning_rate"):
        resolve(read_settings(["method=apfl", "data=vowels", "method.mixing=auto"]))


@pytest.mark.parametrize("scale", [0.05, 1.0, 50.0])
def test_networks_get_a_rate_from_trials_on_training_rows(scale: float) -> None:
    federation = federation_of("regression", scale, sizes=(40, 60, 30))
    config = config_of(federation, model={"name": "mlp", "hidden": [8]}, seed=3)
    decision = decide(config, federation)
    assert "trials" in decision.notes[0]
    assert decision.config.batch_size == OTHER_BATCH
    untold = torch.cat([federation.validation.index, federation.test.index])
    federation.targets[untold] = torch.nan  # rows that are not for training are not looked at
    setting = build_setting(decision.config, federation)
    rate = find_rate(setting)
    assert rate == pytest.approx(decision.config.method["learning_rate"]["initial"], rel=1e-3)
    trained = Simulation(idiolect.method("fedavg", learning_rate=rate), setting.objective.module, federation)
    before, after = trained.server.w, trained.play(10).server.w
    rows = Batch(federation.inputs, federation.targets, torch.zeros(len(federation.inputs)))
    rows.weights[federation.train.index] = 1 / len(federation.train.index)
    kept = rows._replace(targets=federation.targets.nan_to_num())
    assert setting.objective.data_loss(after, kept) < 0.9 * setting.objective.data_loss(before, kept)


def test_a_client_that_slows_all_others_down_is_named() -> None:
    federation = federation_of("regression")
    federation.inputs[federation.train.of(1)[0]] *= 100
    assert "client 'b'" in decide(config_of(federation), federation).notes[0]


def test_rounds_that_are_left_open_end_when_validation_gains_no_more(tmp_path: Path) -> None:
    federation = federation_of("binary")
    config = decide(config_of(federation), federation).config
    assert (config.rounds, config.evaluation.patience) == (LINEAR_ROUNDS, PATIENCE)
    settings = {"method": "local", "data": "vowels", "evaluate_every": 2, "lr": 1.0}
    result = idiolect.train(**settings, **{"evaluation.patience": 6, "rounds": 100})
    played, means = int(result.rounds["round"].max()), result.metrics
    scores = means[(means.part == "validation") & (means.metric == "accuracy")].groupby("round").value.mean()
    assert played < 100
    assert scores[scores.index > played - 6].max() <= scores[scores.index <= played - 6].max()
    assert idiolect.train(**settings, rounds=40).rounds["round"].max() == 40  # who says how many gets them


def test_a_run_that_ended_early_is_finished_and_stays(tmp_path: Path) -> None:
    settings = {"method": "local", "data": "vowels", "lr": 1.0, "rounds": 100, "evaluate_every": 2}
    run = idiolect.run(**settings, out=str(tmp_path / "run"), **{"evaluation.patience": 6})
    played = int(run.rounds()["round"].max())
    assert run.finished
    assert played < 100
    assert idiolect.resume(run.path).summary() == run.summary()


def test_clipped_gradients_keep_their_direction() -> None:
    federation = federation_of("regression", scale=20.0)
    plain = objective_of(federation, weight_decay=0.2)
    batch, params = rows_of(federation, 1), plain.initial_params()
    slopes = plain.gradient(params, batch)
    length = float(sum(s.square().sum() for s in slopes.values()) ** 0.5)
    for clip, factor in ((length / 4, 0.25), (2 * length, 1.0)):
        clipped = Objective(plain.module, plain.task, 0.2, clip).gradient(params, batch)
        for name, slope in slopes.items():
            assert torch.allclose(clipped[name], factor * slope, rtol=1e-12)


@pytest.mark.parametrize("method", ["fedavg", "apfl", "pfedme", "per-fedavg"])
def test_engines_clip_alike(method: str) -> None:
    federation = federation_of("regression", scale=20.0)
    results = [
        Simulation(
            idiolect.method(method),
            lambda: nn.Linear(4, 1),
            federation,
            clip=0.5,
            dtype=torch.float64,
            engine=engine,
        ).play(3)
        for engine in ("sequential", "vectorised")
    ]
    models = [tuple(result.predictors()[result.method.judged_by].values()) for result in results]
    for sequential, vectorised in zip(*models, strict=True):
        assert torch.allclose(sequential, vectorised, atol=1e-9)
        assert sequential.isfinite().all()
