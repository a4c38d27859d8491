"""Every engine gives the sequential one's numbers: over all layers of torch.nn, and networks drawn from them.

`make test` goes through every block as a user runs it, and through some drawn networks, the same each time.
`make test-slow` goes through every block the other way too.
`make test-fuzz` draws others for as long as FUZZ_MINUTES says; what it finds becomes a test with a name, in
test_found_by_generation.py.
"""

import inspect
import logging
import os
import random
import time
import warnings
from dataclasses import dataclass
from typing import NoReturn
from unittest.mock import patch

import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, event, given, note, reject, seed, settings
from hypothesis import strategies as st
from torch import nn

from engines.agreement import EXACT, ROUNDS, Numbers, Trial, are_finite, assert_agrees, errors, numbers
from engines.blocks import BLOCKS, RANDOM_POOLING
from engines.modes import ALL_PASSES, NOT_RECORDED, modes
from engines.networks import GENTLE, UNRECORDABLE, Network, Piece, methods, networks
from engines.test_equality import PLANS
from idiolect.engines import chunks
from idiolect.engines.vectorised import Vectorised
from idiolect.engines.ways import choose_way, stacking_obstacle
from idiolect.errors import UserError
from idiolect.evaluation.metrics import evaluate
from idiolect.methods.apfl import APFL
from idiolect.methods.fedavg import FedAvg
from idiolect.simulation import Simulation

DRAWN_IN_ORDINARY_TESTS = 25
UNHURRIED = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]

# Layers that no block has, and why.
EXCLUDED = {
    **dict.fromkeys(RANDOM_POOLING, "random"),
    **dict.fromkeys(nn.modules.loss.__all__, "a loss: tasks have their own"),
    "AdaptiveLogSoftmaxWithLoss": "a loss: tasks have their own",
    "CrossMapLRN2d": "torch.func cannot differentiate it; LocalResponseNorm is the same function",
    "Container": "holds other layers",
    "DataParallel": "of several devices",
    "ParameterList": "holds parameters",
    "Module": "abstract",
    "RNNBase": "abstract",
    "RNNCellBase": "abstract",
}


def test_every_layer_of_torch_is_in_a_block_or_excluded_for_a_reason() -> None:
    used = {
        type(layer).__name__
        for name in BLOCKS
        for size in (0, 1)
        for layer in Network((Piece(name),), size=size).build().modules()
    }
    layers = {name for name, kind in inspect.getmembers(nn, inspect.isclass) if issubclass(kind, nn.Module)}
    lazy = {name for name in layers if name.startswith("Lazy")}  # they become one of the others
    assert layers - used - lazy - EXCLUDED.keys() == set()
    assert EXCLUDED.keys() <= layers


@pytest.mark.parametrize("name", BLOCKS)
def test_every_block_as_a_user_runs_it(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """The engine is built for the model: what cannot be stacked goes one by one, and one line says so."""
    trial = Trial(Network((Piece(name),)), FedAvg(lr=GENTLE, local_steps=2))
    simulation = trial.simulation()
    with caplog.at_level(logging.INFO, logger="idiolect"), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        actual = Simulation(
            simulation.method,
            trial.network.build(),
            simulation.federation,
            seed=trial.network.seed,
            batch_size=trial.batch_size,
            weight_decay=0.01,
            dtype=trial.dtype,
        ).play(ROUNDS)
        metrics = evaluate(actual)
    assert [str(warning.message) for warning in warned] == []
    assert isinstance(actual.engine, Vectorised)
    is_stacked = stacking_obstacle(actual.engine.setting) is None
    assert actual.engine.records_all_steps == (name not in UNRECORDABLE)
    assert len(caplog.records) == (not is_stacked or name in UNRECORDABLE), caplog.text
    expected = numbers(simulation.play(ROUNDS))
    assert are_finite(expected)
    assert max(errors(numbers(actual), expected).values()) <= EXACT
    pd.testing.assert_frame_equal(metrics, evaluate(simulation), rtol=EXACT, atol=EXACT)


@pytest.mark.slow
@pytest.mark.parametrize("name", BLOCKS)
def test_every_block_the_other_way(name: str) -> None:
    """One client alone if users' clients are stacked, else a stack if there can be one; with APFL."""
    trial = Trial(Network((Piece(name),), size=1), APFL(lr=GENTLE, local_steps=2))
    expected = trial.expected()
    assert are_finite(expected)
    if trial.obstacle():
        assert_agrees(trial, modes()[NOT_RECORDED], 1, expected)
        return
    is_stacked = choose_way(trial.simulation().engine.setting).clients > 1
    assert_agrees(trial, modes()[ALL_PASSES], 1 if is_stacked else len(trial.sizes), expected)


@dataclass(frozen=True)
class Drawn:
    """A trial, and how it is cut into chunks."""

    trial: Trial
    chunk: int | None
    stacks_shrink: bool


@st.composite
def trials(draw: st.DrawFn) -> Drawn:
    """Everything that the engines' numbers may depend on."""
    sizes = draw(st.lists(st.integers(1, 7), min_size=1, max_size=7))
    trial = Trial(
        draw(networks()),
        draw(methods()),
        sizes=tuple(sizes),
        batch_size=draw(st.none() | st.integers(1, 4)),
        plan=draw(st.sampled_from(list(PLANS))),
        dtype=draw(st.sampled_from([torch.float64, torch.float32])),
    )
    return Drawn(trial, draw(st.none() | st.integers(1, 3)), draw(st.booleans()))


# What the libraries of methods say of numbers that overflowed.
OVERFLOWS = ("contains NaN", "contains infinity", "contains invalid numeric entries")


def expected_numbers(trial: Trial) -> Numbers:
    """What the sequential engine gives, if the network and the method go together."""
    try:
        expected = trial.expected()
    except UserError as error:  # by the method, or because torch itself cannot differentiate it
        pass_over(f"refused: {str(error).split(':')[0]}")
    except ValueError as error:
        if not any(words in str(error) for words in OVERFLOWS):
            raise
        pass_over("overflows")
    if not are_finite(expected):
        pass_over("overflows")
    return expected


def pass_over(reason: str) -> NoReturn:
    """Draw another network; hypothesis shows how often each reason occurs."""
    event(reason)
    reject()


def check(drawn: Drawn, mode_names: list[str]) -> None:
    """The named modes against the sequential engine."""
    trial = drawn.trial
    note(f"{trial.network!r}")
    expected = expected_numbers(trial)
    if trial.obstacle():  # such networks are run as users run them, block by block, above
        pass_over("cannot be stacked")
    with patch.object(chunks, "SMALL_STACK_BYTES", 0 if drawn.stacks_shrink else chunks.SMALL_STACK_BYTES):
        for name in mode_names:
            note(f"mode: {name}")
            assert_agrees(trial, modes()[name], drawn.chunk, expected)


@settings(
    max_examples=DRAWN_IN_ORDINARY_TESTS, derandomize=True, deadline=None, suppress_health_check=UNHURRIED
)
@given(trials(), st.sampled_from(list(modes())))
def test_drawn_networks(drawn: Drawn, mode: str) -> None:
    check(drawn, list(dict.fromkeys([ALL_PASSES, mode])))


@pytest.mark.fuzz
def test_drawn_networks_for_as_long_as_asked() -> None:
    end = time.monotonic() + 60 * float(os.environ.get("FUZZ_MINUTES", "60"))
    while time.monotonic() < end:
        draw_some(random.SystemRandom().getrandbits(32), end)


def draw_some(start: int, end: float) -> None:
    """Networks of one seed in all modes, until the time is up."""

    @seed(start)
    @settings(max_examples=50, database=None, deadline=None, suppress_health_check=UNHURRIED)
    @given(trials())
    def all_modes_agree(drawn: Drawn) -> None:
        note(f"seed of these networks: {start}")
        if time.monotonic() < end:
            check(drawn, list(modes()))

    all_modes_agree()
