"""Clients that were not there in training get a model from the final state, by every method."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from idiolect.core import tree
from idiolect.data.newcomers import newcomers_like
from idiolect.errors import UserError
from idiolect.methods.catalogue import METHODS
from idiolect.runs.config import resolve
from idiolect.runs.folder import RunFolder
from idiolect.runs.personal import load_model
from idiolect.runs.personalize import personalize
from idiolect.runs.settings import read_settings
from idiolect.runs.train import reported_simulation, start_or_continue


def table(clients: list[str], seed: int, *, classes: bool) -> pd.DataFrame:
    """Each client has a linear rule of its own around a common one."""
    rng = np.random.default_rng(seed)
    frames = []
    for client in clients:
        x = rng.normal(size=(30, 3)) * (1.0, 2.0, 0.5) + rng.normal(size=3)
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
    return start_or_continue(resolve(read_settings([f"{key}={value}" for key, value in given.items()])))


@pytest.mark.parametrize("method", [m.name for m in METHODS])
def test_every_method_has_a_model_for_newcomers(method: str, tmp_path: Path) -> None:
    run = trained(tmp_path, method, classes=True)
    metrics = personalize(run, [f"data={tmp_path / 'new.csv'}", "steps=4"])
    assert set(metrics.client) == {"inland", "coast"}
    assert np.isfinite(metrics["value"]).all()
    judged = run.summary()["judged_by"]
    assert judged in set(metrics.kind)


def test_fedavgs_newcomer_takes_gradient_steps_from_the_shared_model(tmp_path: Path) -> None:
    run = trained(tmp_path, "fedavg", classes=False, batch_size="all", lr=0.1, dtype="float64")
    personalize(run, [f"data={tmp_path / 'new.csv'}", "steps=7", f"out={tmp_path / 'models'}"])
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
        personalize(run, given)
    assert "\n" not in str(caught.value)
