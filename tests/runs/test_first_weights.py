"""Runs that start from a file, train a part or an adapter: from the command to the exported model."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import idiolect
from idiolect.errors import UserError
from idiolect.runs.folder import RunFolder
from idiolect.runs.lifecycle import reported_simulation

MODEL = {"name": "mlp", "hidden": [6]}
SETTINGS = {"data": "vowels", "rounds": 2, "lr": 0.1, "seed": 3, "threads": 1}


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    model = idiolect.build_model("mlp", idiolect.load("vowels", seed=3), seed=9, hidden=[6])
    save_file(model.state_dict(), tmp_path / "first.safetensors")
    return tmp_path / "first.safetensors"


def run(tmp_path: Path, weights: Path, name: str = "run", **options) -> RunFolder:
    model = {**MODEL, "weights": str(weights), **options.pop("model", {})}
    return idiolect.run(model=model, out=str(tmp_path / name), method="apfl", **SETTINGS, **options)


def test_a_probe_starts_from_the_file_and_takes_its_body_home(tmp_path, weights):
    folder = run(tmp_path, weights, train="head")
    target = idiolect.export(folder.path, client="speaker-03", out=tmp_path / "model")
    exported, first = load_file(Path(target) / "model.safetensors"), load_file(weights)
    assert exported.keys() == first.keys()
    assert all(torch.equal(exported[name], first[name]) for name in first if name.startswith("hidden"))
    assert not torch.equal(exported["output.weight"], first["output.weight"])
    model = idiolect.load_model(target)
    simulation = reported_simulation(folder)
    rows = simulation.federation.inputs[:4]
    place = simulation.federation.names.index("speaker-03")
    objective = simulation.engine.setting.objective
    expected = objective.predict(simulation.predictor(place)["personal"], rows)
    assert torch.allclose(model.outputs(rows), expected, atol=1e-6)


def test_what_crosses_is_the_adapter_alone(tmp_path, weights):
    folder = run(tmp_path, weights, model={"adapter": {"rank": 2, "layers": "hidden.0"}})
    clients, rounds, up = len(folder.clients()), SETTINGS["rounds"], 6 * 2
    assert folder.summary()["up_bits"] == clients * rounds * up * 32
    assert folder.summary()["down_bits"] == clients * rounds * up * 32
    target = Path(idiolect.export(folder.path, client="speaker-03", out=tmp_path / "model"))
    assert load_file(target / "model.safetensors").keys() == load_file(weights).keys()  # merged
    idiolect.load_model(target)


def test_resume_goes_on_bitwise_and_only_from_the_same_file(tmp_path, weights):
    whole = run(tmp_path, weights, "whole", train="head")

    class StopError(Exception):
        pass

    class Watcher:
        def played(self, round_number):
            if round_number == 1:
                raise StopError

        def evaluated(self, round_number, metrics):
            pass

    options = {"train": "head", "checkpoint": {"every": 1}, "evaluate_every": 1}
    with pytest.raises(StopError):
        run(tmp_path, weights, "stopped", watch=lambda config: [Watcher()], **options)
    kept = weights.read_bytes()
    other = {name: value + 1 for name, value in load_file(weights).items()}
    save_file(other, weights)
    with pytest.raises(UserError, match=r"first.safetensors' changed since the run .* began"):
        idiolect.resume(tmp_path / "stopped")
    weights.write_bytes(kept)
    resumed = idiolect.resume(tmp_path / "stopped")
    ours, theirs = (reported_simulation(folder).predictors() for folder in (resumed, whole))
    assert {kind: str(model) for kind, model in ours.items()} == {
        kind: str(model) for kind, model in theirs.items()
    }
    weights.unlink()
    with pytest.raises(UserError, match="there is no such file"):
        idiolect.export(whole.path, client="speaker-03", out=tmp_path / "model")


def test_a_checkpoint_is_not_read_into_a_model_with_another_fixed_part(tmp_path, monkeypatch):
    (tmp_path / "frozen_body.py").write_text(
        "import torch\nfrom torch import nn\n"
        "def model(federation):\n"
        "    net = nn.Sequential(nn.Linear(10, 4), nn.Tanh(), nn.Linear(4, 11))\n"
        "    net[0].requires_grad_(False).weight.fill_(0.1)\n"
        "    return net\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    folder = idiolect.run(model="frozen_body:model", out=str(tmp_path / "run"), method="fedavg", **SETTINGS)
    import frozen_body

    def changed(federation):
        net = original(federation)
        net[0].weight.data.add_(0.1)
        return net

    original = frozen_body.model
    reported_simulation(folder)
    monkeypatch.setattr(frozen_body, "model", changed)
    with pytest.raises(UserError, match="the fixed part of the model is not the one"):
        reported_simulation(folder)


def test_objects_take_weights_and_adapters_too_and_stay_as_they_are(weights):
    federation = idiolect.load("vowels", seed=3)
    module = idiolect.build_model("mlp", federation, hidden=[6])
    kept = {name: value.clone() for name, value in module.state_dict().items()}
    model = {"name": module, "weights": str(weights), "adapter": {"rank": 1}}
    result = idiolect.train("fedavg", federation, model, rounds=1, lr=0.1)
    assert set(result.simulation.engine.setting.objective.initial_params()) == {
        "hidden.0.adapter.up",
        "output.adapter.up",
    }
    assert all(torch.equal(value, module.state_dict()[name]) for name, value in kept.items())
    assert torch.equal(
        result.simulation.engine.setting.objective.module.output.bias, load_file(weights)["output.bias"]
    )
    factory = idiolect.train("fedavg", federation, {**model, "name": lambda: module}, rounds=1, lr=0.1)
    assert len(factory.simulation.engine.setting.objective.initial_params()) == 2


def test_newcomers_get_the_fixed_part(tmp_path, weights):
    folder = run(tmp_path, weights, train="head", newcomers={"clients": ["speaker-05"]})
    assert folder.summary()["newcomers"]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"adapter": 4}, "model.adapter=4 is not possible: it has settings"),
        ({"adapter": {"rank": 0}}, "rank=0"),
        ({"adapter": {"rnk": 1}}, "no option 'rnk' .did you mean rank"),
        ({"adapter": {}}, "needs the option 'rank'"),
        ({"adapter": {"rank": 1, "layers": ["outptu"]}}, "no linear layer of the model Perceptron is called"),
        ({"weights": 3}, "model.weights=3 is not possible"),
    ],
)
def test_what_is_wrong_is_told_in_a_sentence(model, message):
    with pytest.raises(UserError, match=message):
        idiolect.train("fedavg", "vowels", {**MODEL, **model}, rounds=1)
