"""What `idiolect methods` says of each method is what an experiment shows."""

import math
from typing import Any

import pytest
import torch

from idiolect.bench.suite import _with_local_steps, work_of_a_round
from idiolect.core import tree
from idiolect.core.method import Method
from idiolect.errors import UserError
from idiolect.methods.catalogue import METHODS, find_method
from idiolect.store.memory import MemoryStore
from idiolect.testing.contract import simulate
from idiolect.testing.problems import ZOO

NORMALISED = ZOO["a network with batch norm and dropout"]  # without such layers these remember nothing


def after_three_rounds(method: Method, *, forgetful: bool) -> dict[str, torch.Tensor]:
    """The server and the personal models; forgetful clients come to the third round as new ones."""
    model = {"model": NORMALISED} if method.name in ("fedbn", "silobn") else {}
    simulation = simulate(method, **model).play(2)
    if forgetful:
        setting = simulation.engine.setting
        setting.store, setting.founding = MemoryStore(len(simulation.federation)), simulation.server
    simulation.advance()
    models: dict[str, Any] = {**simulation.predictors()}
    return tree.to_named((simulation.server, {k: m for k, m in models.items() if k in ("personal", "group")}))


@pytest.mark.parametrize("kind", METHODS, ids=lambda m: m.name)
def test_a_method_is_stateful_iff_forgetting_changes_something(kind: type[Method]) -> None:
    remembering, forgetting = (
        after_three_rounds(_with_local_steps(kind, 2), forgetful=forgetful) for forgetful in (False, True)
    )
    same = all(torch.equal(value, forgetting[name]) for name, value in remembering.items())
    assert kind.stateful == (not same)


@pytest.mark.parametrize("kind", METHODS, ids=lambda m: m.name)
def test_gradients_of_a_step_are_counted(kind: type[Method]) -> None:
    method: Any = _with_local_steps(kind, 2)
    steps = getattr(method, "local_steps", 1) or 1
    counted = work_of_a_round(simulate(method)).gradients
    # Methods that ask only some clients take fewer on average.
    assert math.ceil(counted / steps) == kind.gradients_per_step


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("APFL", "apfl"),
        ("per-fedavg", "per-fedavg"),
        ("PerFedAvg", "per-fedavg"),
        ("fedavg-ft", "fedavg"),
        ("local-only", "local"),
        ("CGPFL", "pfedkm"),
        ("fed_prox", "fedprox"),
    ],
)
def test_names_are_found_however_they_are_written(written: str, name: str) -> None:
    assert find_method(written).name == name


def test_an_unknown_name_gets_the_nearest_ones() -> None:
    with pytest.raises(UserError, match=r"method='scafold' is not known.*scaffold"):
        find_method("scafold")
