"""Schedules against their formulas (spec 0.3), with numbers and with tensors as clocks."""

import math

import pytest
import torch
from pydantic import TypeAdapter, ValidationError

from idiolect.core.schedule import Clock, Schedule

read = TypeAdapter(Schedule).validate_python
CLOCK = Clock(round=7, step=3, local_steps=10)
CASES = [
    (0.3, 0.3),
    ({"name": "inverse_time", "initial": 0.3, "decay": 0.02}, 0.3 / (1 + 0.02 * 73)),
    ({"name": "per_round", "initial": 0.3}, 0.3 / 1.01**7),
    ({"name": "per_step", "initial": 0.3}, 0.3 * 0.99**73),
    ({"name": "strongly_convex", "mu": 0.5, "kappa": 2}, 16 / (0.5 * (73 + 256))),
    ({"name": "elastic", "mu": 0.5, "offset": 40, "work": 3}, 160 / (0.5 * (80 + 40) * 3)),
    (
        {"name": "restart", "rounds": [9, 2, 5], "schedule": {"name": "per_round", "initial": 0.3}},
        0.3 / 1.01**2,
    ),
]


@pytest.mark.parametrize(("written", "value"), CASES)
def test_the_formula_for_numbers_and_for_tensors(written: object, value: float) -> None:
    schedule = read(written)
    assert float(schedule(CLOCK)) == pytest.approx(value, rel=1e-12)
    ticking = Clock(torch.tensor(7), torch.tensor(3), 10).precise()
    assert float(schedule(ticking)) == pytest.approx(value, rel=1e-12)


def test_the_first_of_a_strongly_convex_run_never_exceeds_an_eighth_of_the_inverse_smoothness() -> None:
    mu, kappa = 0.7, 5.0
    first = float(read({"name": "strongly_convex", "mu": mu, "kappa": kappa})(Clock(0, 0, 4)))
    assert math.isclose(first, 1 / (8 * mu * kappa))


@pytest.mark.parametrize(
    "bad", [-0.1, {"name": "no_such"}, {"name": "per_round", "initial": 0.1, "factor": 1.5}, "x"]
)
def test_bad_schedules_are_refused(bad: object) -> None:
    with pytest.raises(ValidationError):
        read(bad)
