"""Runs whose clients have different architectures: from the settings to the model that is taken home."""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch import nn

import idiolect
from idiolect.core.several import Several
from idiolect.engines.assembly import set_up
from idiolect.errors import UserError
from idiolect.methods.local import Local
from idiolect.models import Perceptron
from idiolect.runs import rate_finder
from idiolect.runs.folder import RunFolder
from idiolect.runs.lifecycle import reported_simulation
from idiolect.testing import uneven_classification
from runs.same_run import assert_same_run

MODEL = {"name": "several", "models": [{"name": "mlp", "hidden": [6]}, {"name": "mlp", "hidden": [9, 6]}]}
SETTINGS = {"data": "vowels", "rounds": 3, "lr": 0.1, "seed": 3, "threads": 1, "evaluate_every": 1}


def run(out: Path, **options: Any) -> RunFolder:
    return idiolect.run(**{"method": "fedproto", "model": MODEL, "out": str(out), **SETTINGS, **options})


class StopError(Exception):
    pass


class Stopping:
    def played(self, round_number: int) -> None:
        if round_number == 2:
            raise StopError

    def evaluated(self, round_number: int, metrics: Any) -> None:
        pass


def test_a_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    options = {"checkpoint": {"every": 1}}
    whole = run(tmp_path / "whole", **options)
    with pytest.raises(StopError):
        run(tmp_path / "stopped", watch=lambda config: [Stopping()], **options)
    assert yaml.safe_load((tmp_path / "stopped" / "config.yaml").read_text())["model"] == MODEL
    idiolect.resume(tmp_path / "stopped")
    assert_same_run(tmp_path / "stopped", whole.path)


def test_a_client_takes_home_its_own_architecture_alone(tmp_path: Path) -> None:
    folder = run(tmp_path / "run")
    simulation = reported_simulation(folder)
    objective, federation = simulation.engine.setting.objective, simulation.federation
    exchanged = 11 * 6 + 11  # prototypes and counts, whatever the architectures
    assert folder.summary()["up_bits"] == len(federation) * SETTINGS["rounds"] * exchanged * 32
    for place, hidden in ((4, [6]), (7, [9, 6])):
        client = federation.names[place]
        target = Path(idiolect.export(folder.path, client=client, out=tmp_path / client))
        sizes = [
            len(bias) for name, bias in load_file(target / "model.safetensors").items() if "bias" in name
        ]
        assert sorted(sizes) == sorted([*hidden, 11])
        model = idiolect.load_model(target)
        assert isinstance(model.module, Perceptron)
        expected = objective.predict(simulation.predictor(place)["personal"], federation.inputs[:9])
        assert torch.allclose(model.outputs(federation.inputs[:9]), expected, atol=1e-6)
        program = idiolect.export(folder.path, client=client, to=tmp_path / f"{client}.pt2")
        assert Path(program).is_file()


class Enlarged(nn.Module):
    """Inputs that make steps short."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 20 * x


def test_a_rate_that_is_left_open_suits_every_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_finder, "RATES", (0.01, 0.1, 1.0))
    torch.manual_seed(4)
    gentle = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    steep = nn.Sequential(Enlarged(), nn.Linear(4, 5), nn.Linear(5, 3))
    several = Several([gentle, steep]).double()

    def rate(model: nn.Module) -> float:
        settings = {"seed": 1, "batch_size": 4, "weight_decay": 0.0, "dtype": torch.float64}
        return rate_finder.find_rate(set_up(Local(), model, uneven_classification(), **settings))

    apart = [rate(several.alone(number)) for number in (0, 1)]
    assert apart[1] < apart[0]
    assert rate(several) == apart[1]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"method": "fedavg"}, "method=fedavg combines parameters of clients' models"),
        ({"model": {"name": "several"}}, "models"),
        ({"model": {"name": "several", "models": []}}, "at least one model"),
        ({"model": {"name": "several", "models": ["mlp"]}}, "models"),
        (
            {"model": {"name": "several", "models": [{"name": "os:getcwd"}]}},
            "has a model of the name 'os:getcwd'",
        ),
        (
            {"model": {"name": "several", "models": [{"name": "several"}]}},
            "has a model of the name 'several'",
        ),
        ({"model": {"name": "several", "models": [{"name": "mlp", "hiden": [3]}]}}, "did you mean hidden"),
        ({"model": {"name": "several", "models": [{"name": "mlp", "hidden": "x"}]}}, "hidden"),
        ({"model": {"name": "several", "models": [{"name": "mlp", "weights": "x"}]}}, "weights"),
    ],
)
def test_what_is_not_possible_is_said(changes: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=sentence) as caught:
        run(tmp_path / "run", **changes)
    assert "\n" not in str(caught.value)
