"""Clients that were not there in training get a model from the final state, by every method."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import idiolect
from families import each_family
from idiolect.core import tree
from idiolect.core.method import Method
from idiolect.data.newcomers import newcomers_like
from idiolect.errors import UserError
from idiolect.runs.client_model import load_model
from idiolect.runs.folder import RunFolder
from idiolect.runs.lifecycle import reported_simulation
from idiolect.runs.personalization import train_newcomers


def table(clients: list[str], seed: int, *, classes: bool, rows: int = 30) -> pd.DataFrame:
    """Each client has a linear rule of its own around a common one."""
    rng = np.random.default_rng(seed)
    frames = []
    for client in clients:
        x = rng.normal(size=(rows, 3)) * (1.0, 2.0, 0.5) + rng.normal(size=3)
        score = x @ (np.array([1.0, -0.5, 2.0]) + 0.3 * rng.normal(size=3))
        frame = pd.DataFrame(x, columns=["a", "b", "c"])
        frame["site"] = client
        frame["outcome"] = np.where(score > score.mean(), "yes", "no") if classes else score
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def trained(folder: Path, method: str, *, classes: bool, **settings: object) -> RunFolder:
    old, new = folder / "old.csv", folder / "new.csv"
    table(["north", "south", "east", "west"], 1, classes=classes).to_csv(old, index=False)
    table(["inland", "coast"], 2, classes=classes).to_csv(new, index=False)
    given = {"data": old, "data.client": "site", "data.target": "outcome", "method": method, "rounds": 3}
    given |= {"out": folder / "run", **settings}
    return idiolect.run(given)


@each_family("method")
def test_every_method_has_a_model_for_newcomers(method: type[Method], tmp_path: Path) -> None:
    run = trained(tmp_path, method.name, classes=True)
    metrics = idiolect.personalize(run, data=tmp_path / "new.csv", steps=4).metrics
    assert set(metrics.client) == {"inland", "coast"}
    assert np.isfinite(metrics["value"]).all()
    judged = run.summary()["judged_by"]
    assert judged in set(metrics.kind)


def test_fedavgs_newcomer_takes_gradient_steps_from_the_shared_model(tmp_path: Path) -> None:
    run = trained(tmp_path, "fedavg", classes=False, batch_size="all", lr=0.1, dtype="float64")
    newcomers = idiolect.personalize(run, data=tmp_path / "new.csv", steps=7, out=tmp_path / "models")
    assert newcomers.folder == tmp_path / "models"
    simulation = reported_simulation(run)
    fitted = simulation.federation.preprocessing
    assert fitted is not None
    model = load_model(tmp_path / "models" / "coast")

    frame = pd.read_csv(tmp_path / "new.csv")

    newcomers = newcomers_like(
        simulation.federation, frame, client="site", seed=run.config.seed, fractions=(0.6, 0.2, 0.2)
    )
    rows = newcomers.train.of(newcomers.names.index("coast"))
    x = np.column_stack([newcomers.inputs[rows].double().numpy(), np.ones(len(rows))])
    y = newcomers.targets[rows, 0].double().numpy()
    w = tree.flatten(simulation.server.w).numpy()  # weights, then the bias
    for _ in range(7):
        w = w - 0.1 * x.T @ (x @ w - y) / len(y)
    ours = torch.cat([p.detach().reshape(-1) for p in model.module.parameters()]).numpy()
    assert np.allclose(ours, w, rtol=1e-9)
    scales = frame[["a", "b", "c"]].head(1)
    assert np.allclose(
        float(model.predict(scales).iloc[0]),
        float(
            fitted.restore_target(torch.tensor([[np.append(fitted.transform(scales)[0].double(), 1.0) @ w]]))[
                0, 0
            ]
        ),
        rtol=1e-6,
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "data is missing"),
        (["data=new.csv", "step=3"], "step is not a setting of personalize.*steps"),
        (["data=new.csv", "data.clients=site"], "data.clients is not a setting.*client"),
        (["data=new.csv", "steps=0"], "steps=0 is not possible"),
        (["data=old.csv"], "'east' took part in the run"),
        (["data=other.csv"], "holds 'maybe'; the run knows no, yes"),
        (["data=new.csv", "data.client=town"], "town"),
    ],
)
def test_mistakes_are_told_in_one_sentence(arguments: list[str], message: str, tmp_path: Path) -> None:
    run = trained(tmp_path, "fedavg", classes=True, rounds=1)
    other = pd.read_csv(tmp_path / "new.csv")
    other.loc[3, "outcome"] = "maybe"
    other.to_csv(tmp_path / "other.csv", index=False)
    given = [a.replace("data=", f"data={tmp_path}/") if a.startswith("data=") else a for a in arguments]
    with pytest.raises(UserError, match=message) as caught:
        idiolect.personalize(run, *given)
    assert "\n" not in str(caught.value)


class Regression:
    """A run on numbers with all rows in every gradient, and its newcomers in plain NumPy."""

    def __init__(
        self,
        folder: Path,
        method: str,
        newcomers: list[str],
        steps: int | None = None,
        rows: int = 30,
        **settings: object,
    ) -> None:
        given = {"batch_size": "all", "dtype": "float64", "evaluation.choose": "last", **settings}
        run = trained(folder, method, classes=False, **given)
        table(newcomers, 3, classes=False, rows=rows).to_csv(folder / "new.csv", index=False)
        self.run = reported_simulation(run)
        self.federation = newcomers_like(
            self.run.federation,
            pd.read_csv(folder / "new.csv"),
            client="site",
            seed=run.config.seed,
            fractions=(0.6, 0.2, 0.2),
        )
        self.newcomers = train_newcomers(self.run, self.federation, steps)

    @property
    def server(self) -> Any:
        """The server that the run reports, without the codec around it."""
        return getattr(self.run.server, "inner", self.run.server)

    def gradient(self, client: int, w: np.ndarray) -> np.ndarray:
        rows = self.federation.train.of(client)
        x = np.column_stack([self.federation.inputs[rows].double().numpy(), np.ones(len(rows))])
        y = self.federation.targets[rows, 0].double().numpy()
        gradient: np.ndarray = x.T @ (x @ w - y) / len(y)
        return gradient

    def model(self, client: int, kind: str) -> np.ndarray:
        return flat(self.newcomers.predictor(client)[kind])  # type: ignore[index]


def flat(params: Any) -> np.ndarray:
    """Weights, then the bias."""
    vector: np.ndarray = tree.flatten(params).numpy()
    return vector


FEW, MANY = ["inland", "coast"], ["inland", "coast", "lake", "moor", "fen", "ridge", "dune"]
NEWCOMERS = pytest.mark.parametrize("names", [FEW, MANY], ids=["fewer than clients", "more than clients"])


@pytest.mark.parametrize("method", ["scaffold", "afl", "minibatch-sgd", "fedavg"])
@pytest.mark.parametrize("codec", [{"up": "ternary"}, {"up": "topk", "down": "sign"}], ids=["up", "both"])
def test_after_a_run_with_codecs_newcomers_train_the_servers_own_model(
    method: str, codec: dict[str, str], tmp_path: Path
) -> None:
    """Nothing that goes to a newcomer is compressed, and its number is none of the run's."""
    settings = {f"codec.{direction}": name for direction, name in codec.items()}
    problem = Regression(tmp_path, method, MANY, steps=3, lr=0.1, **settings)
    for client in range(len(MANY)):
        w = flat(problem.server.w)
        for _ in range(3):
            w = w - 0.1 * problem.gradient(client, w)
        assert np.allclose(problem.model(client, "localized"), w, rtol=1e-9)


@NEWCOMERS
@pytest.mark.parametrize("exclude_self", [False, True])
def test_efls_newcomers_are_pulled_by_the_terms_of_all_clients(
    exclude_self: bool, names: list[str], tmp_path: Path
) -> None:
    """C2 with the whole sums U and V, of which a newcomer has no part."""
    options = {"method.exclude_self": exclude_self, "method.elasticity": 0.05, "lr": 0.1}
    problem = Regression(tmp_path, "efl", names, steps=4, **options)
    u, v = (flat(part) for part in problem.server.elastic.sums)
    assert np.abs(u).min() > 0
    for client in range(len(names)):
        x = flat(problem.server.w)
        for _ in range(4):
            x = x - 0.1 * (problem.gradient(client, x) + 0.05 * (u * x - v))
        assert np.allclose(problem.model(client, "localized"), x, rtol=1e-9)


@NEWCOMERS
def test_in_stage_1_of_perm_a_newcomer_trains_the_global_model_as_it_is(
    names: list[str], tmp_path: Path
) -> None:
    problem = Regression(tmp_path, "perm-two-stage", names, steps=4, lr=0.1)
    assert not problem.server.heard.any()
    for client in range(len(names)):
        v = flat(problem.server.w)
        for _ in range(4):
            v = v - 0.1 * problem.gradient(client, v)
        assert np.allclose(problem.model(client, "personal"), v, rtol=1e-9)


@NEWCOMERS
def test_pfedkms_newcomers_join_the_group_of_least_loss(names: list[str], tmp_path: Path) -> None:
    problem = Regression(tmp_path, "pfedkm", names, steps=2)
    models = [flat(tree.row(problem.server.models, group)) for group in range(3)]
    for client in range(len(names)):
        rows = problem.federation.train.of(client)
        x = np.column_stack([problem.federation.inputs[rows].double().numpy(), np.ones(len(rows))])
        y = problem.federation.targets[rows, 0].double().numpy()
        best = int(np.argmin([np.square(x @ w - y).sum() for w in models]))
        assert np.allclose(problem.model(client, "group"), models[best], rtol=1e-9)


RATE, DECAY = 0.3, 0.05


@pytest.mark.parametrize(
    ("steps", "given", "round_steps"),
    [
        (7, {"local_steps": 5}, 5),
        (None, {"local_steps": 5}, 5),
        # 18 training rows of 30 are five batches of four; the newcomers' 36 of 60 are nine.
        (7, {"local_epochs": 1, "batch_size": 4}, 5),
        (None, {"local_epochs": 1, "batch_size": 4}, 5),
    ],
)
def test_past_rounds_have_as_many_steps_as_they_had(
    steps: int | None, given: dict[str, object], round_steps: int, tmp_path: Path
) -> None:
    """A schedule that counts steps goes on where the run ended, however long newcomers train."""
    schedule = {"name": "inverse_time", "initial": RATE, "decay": DECAY}
    problem = Regression(tmp_path, "fedavg", FEW, steps=steps, rows=60, lr=schedule, **given)
    own_steps = steps or (9 if "local_epochs" in given else 5)
    batches = problem.newcomers.engine.setting.batches
    inputs, targets = problem.federation.inputs.double().numpy(), problem.federation.targets.double().numpy()
    for client in range(len(FEW)):
        w, width = flat(problem.server.w), int(batches.batch_sizes[client])
        drawn = batches.draw(torch.tensor([client]), problem.run.round, torch.arange(own_steps), width)
        for step, rows in enumerate(drawn.numpy()):
            x, y = np.column_stack([inputs[rows], np.ones(len(rows))]), targets[rows, 0]
            rate = RATE / (1 + DECAY * (3 * round_steps + step))
            w = w - rate * x.T @ (x @ w - y) / len(y)
        assert np.allclose(problem.model(client, "localized"), w, rtol=1e-9)


def test_additives_newcomers_average_their_part_over_their_own_steps(tmp_path: Path) -> None:
    """Option II: the shared part over the run's steps, the personal one since the newcomer is there."""
    problem = Regression(tmp_path, "additive", FEW, steps=5, lr=0.1, **{"method.output": "average"})
    shared = flat(problem.run.server.average.mean(problem.server.w))
    for client in range(len(FEW)):
        w, thetas = flat(problem.server.w), [np.zeros(4)]
        for _ in range(5):
            thetas.append(thetas[-1] - 0.1 * problem.gradient(client, w + thetas[-1]))
        expected = shared + np.mean(thetas[:-1], axis=0)
        assert np.allclose(problem.model(client, "personal"), expected, rtol=1e-9)


@pytest.mark.parametrize("method", ["apfl", "agnostic-apfl"])
def test_apfls_newcomers_learn_their_weight(method: str, tmp_path: Path) -> None:
    """Eq. 6 and 7 against the frozen shared model; α starts to move in the second step, where v ≠ w."""
    problem = Regression(tmp_path, method, FEW, steps=6, lr=0.1)
    w = flat(problem.server.w)
    for client in range(len(FEW)):
        v, alpha = w, 0.5
        for _ in range(6):
            g = problem.gradient(client, alpha * v + (1 - alpha) * w)
            v, alpha = v - 0.1 * alpha * g, float(np.clip(alpha - 0.1 * (v - w) @ g, 0, 1))
        assert alpha > 0.5 + 1e-4
        assert np.isclose(float(problem.newcomers.clients().alpha[client]), alpha, rtol=1e-9)
        assert np.allclose(problem.model(client, "personal"), alpha * v + (1 - alpha) * w, rtol=1e-9)
