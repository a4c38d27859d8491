"""Runs of models with batch normalisation and dropout: stopped and resumed, exported, for newcomers."""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import torch
from torch import nn

import idiolect
from idiolect.data.federation import Federation
from idiolect.errors import UserError
from idiolect.runs.client_model import load_model
from idiolect.runs.folder import RunFolder
from idiolect.runs.lifecycle import nobody, reported_simulation
from runs.same_run import assert_same_run

MODEL = "runs.test_normalised_models:network"


def network(federation: Federation) -> nn.Module:
    features = federation.inputs.shape[1]
    return nn.Sequential(
        nn.Linear(features, 6),
        nn.BatchNorm1d(6),
        nn.Tanh(),
        nn.Dropout(0.2),
        nn.Linear(6, federation.task.outputs),
    )


def table(clients: list[str], seed: int) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    frames = []
    for number, client in enumerate(clients):
        x = random.normal(0.5 * number, 1.0, (24 + 5 * number, 3))
        outcome = np.where(x @ random.normal(size=3) > 0, "yes", "no")
        frames.append(pd.DataFrame(x, columns=["a", "b", "c"]).assign(site=client, outcome=outcome))
    return pd.concat(frames, ignore_index=True)


def trained(folder: Path, out: str = "run", watch: Any = nobody, **settings: object) -> RunFolder:
    source = folder / "old.csv"
    table(["north", "south", "west"], 1).to_csv(source, index=False)
    given = {
        "data": source, "data.client": "site", "data.target": "outcome", "model": MODEL, "rounds": 4,
        "method": "apfl", "lr": 0.1, "local_steps": 3, "checkpoint.every": 1, "out": folder / out,
    }  # fmt: skip
    return idiolect.run({**given, **settings}, watch=watch)


class Stopping:
    """Ends a run after its second round, as a signal would."""

    def played(self, round_number: int) -> None:
        if round_number == 2:
            raise KeyboardInterrupt

    def evaluated(self, round_number: int, metrics: pd.DataFrame) -> None:
        pass


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
def test_a_run_that_was_stopped_goes_on_as_if_nothing_had_happened(engine: str, tmp_path: Path) -> None:
    whole = trained(tmp_path, engine=engine)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path, "stopped", engine=engine, watch=lambda _: [Stopping()])
    assert not (tmp_path / "stopped" / "summary.json").exists()
    idiolect.resume(tmp_path / "stopped")
    assert_same_run(tmp_path / "stopped", whole.path)


def test_exported_models_have_their_statistics(tmp_path: Path) -> None:
    run = trained(tmp_path)
    rows = table(["south"], 7).drop(columns=["site", "outcome"])
    folder = idiolect.export(run, client="south", out=tmp_path / "model")
    model = load_model(folder)
    expected = model.predict_proba(rows).to_numpy()
    kept = reported_simulation(run).predictor(1)["personal"]
    for name, value in model.module.state_dict().items():
        assert torch.equal(value, kept[name]), name
    assert int(kept["1.num_batches_tracked"]) == 4 * 3
    assert not torch.equal(kept["1.running_mean"], torch.zeros(6))
    idiolect.export(run, client="south", to=tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    columns = {name: rows[name].to_numpy() for name in rows}
    answers = dict(
        zip([output.name for output in session.get_outputs()], session.run(None, columns), strict=True)
    )
    np.testing.assert_allclose(answers["probabilities"], expected, atol=1e-5)
    idiolect.export(run, client="south", to=tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2").module()
    np.testing.assert_allclose(
        program(torch.tensor(rows.to_numpy()))["probabilities"].detach().numpy(), expected, atol=1e-5
    )


@pytest.mark.parametrize("statistics", ["average", "silo"])
def test_newcomers_have_statistics(statistics: str, tmp_path: Path) -> None:
    run = trained(tmp_path, method="fedavg", statistics=statistics)
    table(["inland", "coast"], 2).to_csv(tmp_path / "new.csv", index=False)
    found = idiolect.personalize(run, data=tmp_path / "new.csv", steps=2)
    assert np.isfinite(found.metrics["value"]).all()
    simulation = found.simulation
    model = simulation.predictor(0)["global"]
    if statistics == "average":
        shared = reported_simulation(run).global_model()
        assert all(torch.equal(value, shared[name]) for name, value in model.items())
        return
    inputs = simulation.federation.inputs[simulation.federation.train.of(0)]
    hidden = inputs @ model["0.weight"].T + model["0.bias"]
    torch.testing.assert_close(model["1.running_mean"], hidden.mean(0))
    torch.testing.assert_close(model["1.running_var"], hidden.var(0))


def test_where_clients_keep_statistics_nobody_has_a_model_for_all(tmp_path: Path) -> None:
    run = trained(tmp_path, method="fedavg", statistics="silo")
    with pytest.raises(UserError, match="--client is missing: every client has its own model"):
        idiolect.export(run, client=None, out=tmp_path / "model", kind="global")
    idiolect.export(run, client="south", out=tmp_path / "model", kind="global")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"method": "ifca", "statistics": "average"}, "statistics=average is not possible with method=ifca"),
        ({"method": "fedavg", "model": "linear", "statistics": "silo"}, "statistics=silo has no meaning"),
        ({"method": "fedavg", "statistics": "averaged"}, "statistics"),
    ],
    ids=["no sum", "no statistics", "unknown"],
)
def test_what_makes_no_sense_is_refused(settings: dict[str, str], reason: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=reason):
        trained(tmp_path, **settings)
