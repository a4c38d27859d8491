"""Silos whose models have different architectures: what one process computes, and what each takes home."""

from pathlib import Path

import torch
from torch import nn

from idiolect.silo.offline import personal_model
from silo.parity import assert_deployment_equals_simulation
from silo.problem import SILOS, config, simulate

MODEL = {"name": "several", "models": [{"name": "mlp", "hidden": [4]}, {"name": "mlp", "hidden": [5, 4]}]}


def test_a_deployment_equals_a_simulation(tmp_path: Path) -> None:
    settings = config({"name": "fedproto", "local_steps": 3}, model=MODEL)
    assert_deployment_equals_simulation(settings, tmp_path)
    simulation = simulate(settings).play(settings["rounds"])
    rows = simulation.federation.inputs[:5]
    for number, name in enumerate(SILOS):
        model = personal_model(tmp_path / "silos" / name)
        layers = [layer.out_features for layer in model.module.modules() if isinstance(layer, nn.Linear)]
        assert layers[:-1] == MODEL["models"][number % 2]["hidden"]
        expected = simulation.engine.setting.objective.predict(simulation.predictor(number)["personal"], rows)
        assert torch.allclose(model.outputs(rows), expected, atol=1e-6)
