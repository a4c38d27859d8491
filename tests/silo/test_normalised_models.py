"""Models that keep statistics and draw noise, at silos: what one process computes, also with codecs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from idiolect.data.federation import Federation
from silo.parity import assert_deployment_equals_simulation
from silo.problem import LENIENT, config

MODEL = "silo.test_normalised_models:network"


def network(federation: Federation) -> nn.Module:
    features = federation.inputs.shape[1]
    return nn.Sequential(
        nn.Linear(features, 4),
        nn.BatchNorm1d(4),
        nn.Tanh(),
        nn.Dropout(0.2),
        nn.Linear(4, federation.task.outputs),
    )


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ({"name": "fedavg"}, {"statistics": "pooled", "codec": {"up": "topk", "keep": 0.5}}),
        ({"name": "fedavg", "local_steps": 3}, {"statistics": "silo"}),
        ({"name": "apfl", "local_steps": 3}, {}),
        ({"name": "pfedkm", "local_steps": 2}, {}),
    ],
    ids=["pooled, with a codec", "silo", "apfl", "pfedkm"],
)
def test_a_deployment_equals_a_simulation(
    method: dict[str, Any], options: dict[str, Any], tmp_path: Path
) -> None:
    settings = config(method, model={"name": MODEL}, **options)
    assert_deployment_equals_simulation(settings, tmp_path, limits=replace(LENIENT, own_models=(MODEL,)))
