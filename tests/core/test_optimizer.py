"""The pure optimizers take the steps of torch's own."""

import pytest
import torch
from pydantic import TypeAdapter

from idiolect.core.optimizer import Optimizer

read = TypeAdapter(Optimizer).validate_python


@pytest.mark.parametrize(
    ("written", "theirs"),
    [
        ("sgd", lambda p: torch.optim.SGD(p, lr=0.05)),
        ({"name": "momentum", "beta": 0.7}, lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.7)),
        ({"name": "adam", "beta1": 0.8}, lambda p: torch.optim.Adam(p, lr=0.05, betas=(0.8, 0.999))),
    ],
)
def test_steps_are_those_of_torch(written: object, theirs: object) -> None:
    start = torch.tensor([[1.0, -2.0], [0.5, 3.0]], dtype=torch.float64)
    curvature = torch.tensor([[1.0, 4.0], [2.0, 0.3]], dtype=torch.float64)
    parameter = torch.nn.Parameter(start.clone())
    reference = theirs([parameter])  # type: ignore[operator]
    optimizer = read(written)
    params, state = {"w": start}, optimizer.init({"w": start})
    for _ in range(25):
        params, state = optimizer.apply(params, {"w": curvature * (params["w"] - 1)}, state, 0.05)
        parameter.grad = curvature * (parameter.detach() - 1)
        reference.step()
    assert torch.allclose(params["w"], parameter.detach(), rtol=1e-12, atol=1e-12)
