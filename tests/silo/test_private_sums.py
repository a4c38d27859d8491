"""Sums that hide whole silos: each adds its share of the noise, and any sum that can be opened has enough."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.errors import UserError
from idiolect.privacy.accounting import Release, epsilon_of
from idiolect.silo.coordinator import coordinate
from idiolect.silo.privacy.demands import Demands
from idiolect.silo.privacy.ledger import Ledger, epsilon_in_all
from idiolect.silo.requests import Unreachable
from idiolect.silo.secure import coordinator_side, silo_side
from idiolect.silo.served_run import ServedRun
from idiolect.silo.service import Silo
from idiolect.silo.wire import pack, unpack
from silo.losses import Lossy
from silo.private_problem import simulate_with_secrets
from silo.problem import FIVE_SILOS, SILOS, Direct, config, deployed, last_saved, silos_in
from silo.secure_problem import played, serve, with_keys

SILO = {"unit": "silo", "noise": 0.6, "clip": 0.3}
FEDAVG = {"name": "fedavg", "local_steps": 3}
METHODS = [FEDAVG, {"name": "apfl", "local_steps": 2}, {"name": "scaffold", "local_steps": 2}]
# Nearly nothing but noise, of the standard deviation 1 in a sum.
ONLY_NOISE = {"unit": "silo", "noise": 1e8, "clip": 1e-8}


def assert_near(ours: Any, theirs: Any) -> None:
    for a, b in zip(tree.leaves(ours), tree.leaves(theirs), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-8)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: str(method["name"]))
@pytest.mark.parametrize("secure", [True, False])
def test_silos_are_hidden_as_in_one_process_with_their_secrets(
    method: dict[str, Any], secure: bool, tmp_path: Path
) -> None:
    settings = config(method, privacy=SILO)
    run, silos = played(settings, tmp_path, SILOS, secure)
    simulation = simulate_with_secrets(settings, silos, run, 3)
    assert_near(last_saved(run).server, simulation.server)
    for number, name in enumerate(SILOS):
        assert_near(silos[name]._vault(run.name).latest(), tree.row(simulation.clients(), number))


def moves(run: ServedRun, rounds: int) -> Tensor:
    """How far the shared model moved in all rounds."""
    last = last_saved(run)
    return (flat(last.server) - flat(last.engine.setting.found(last.plan))) / rounds**0.5


def flat(content: Any) -> Tensor:
    floats = [leaf for leaf in tree.leaves(content) if leaf.is_floating_point()]
    return torch.cat([leaf.double().reshape(-1) for leaf in floats])


@pytest.mark.parametrize(
    ("secure", "lost", "deviation"),
    [
        ({"threshold": 2}, {}, (3 / 2) ** 0.5 / 3),  # three shares of 1/2, in a mean over three
        ({"threshold": 2}, {(0, "mask"): "west", (1, "share"): "north", (2, "mask"): "south"}, 1 / 2),
        ({"threshold": 3}, {}, 1 / 3),  # as if one party had added it
        (False, {}, 3**0.5 / 3),  # each adds all of it
    ],
)
def test_every_sum_has_the_noise_that_was_agreed_or_more(
    secure: Any, lost: dict[tuple[int, str], str], deviation: float, tmp_path: Path
) -> None:
    settings = config(
        {**FEDAVG, "learning_rate": 0.0}, model={"name": "mlp", "hidden": [60]}, privacy=ONLY_NOISE
    )
    them = with_keys(tmp_path, SILOS)
    run = ServedRun.create(tmp_path / "run", deployed(settings, tmp_path, secure=secure))
    serve(run, Lossy(them, lost), tmp_path)
    moved = moves(run, rounds=3)
    assert len(moved) > 400
    assert float(moved.std()) == pytest.approx(deviation, rel=0.15)


def test_silos_that_drop_out_in_every_stage(tmp_path: Path) -> None:
    settings = config(FEDAVG, rounds=4, privacy=SILO)
    them = with_keys(tmp_path, FIVE_SILOS)
    run = ServedRun.create(
        tmp_path / "run", deployed(settings, tmp_path, FIVE_SILOS, secure={"threshold": 3})
    )
    lost = {(0, "share"): "south", (1, "mask"): "north", (2, "confirm"): "west", (3, "reveal"): "west-end"}
    serve(run, Lossy(them, lost), tmp_path)
    expected = simulate_with_secrets(settings, them, run, 4, lost={0: "south", 1: "north"})
    assert_near(last_saved(run).server, expected.server)


def test_the_masked_sum_is_the_sum_of_noisy_integers_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summands: list[Any] = []
    totals: list[Any] = []
    begin, collect = silo_side.SiloSums.begin, coordinator_side.CoordinatorSums.collect

    def noting(self: Any, label: str, question: str, numbers: Any) -> Any:
        summands.append(self.fixed_point.encode(numbers))
        return begin(self, label, question, numbers)

    def noting_total(self: Any, *arguments: Any) -> Any:
        total = collect(self, *arguments)
        totals.append((self.fixed_point, total.numbers))
        return total

    monkeypatch.setattr(silo_side.SiloSums, "begin", noting)
    monkeypatch.setattr(coordinator_side.CoordinatorSums, "collect", noting_total)
    settings = config(FEDAVG, rounds=2, privacy=SILO, evaluation={"every": 9})
    played(settings, tmp_path, SILOS, shares_metrics=False)
    assert len(summands) == 3 * len(totals) == 6
    for place, (fixed, numbers) in enumerate(totals):
        exact = np.sum(summands[3 * place : 3 * place + 3], axis=0, dtype=np.uint64)
        assert (fixed.decode(exact) == numbers).all()
        assert numbers[-1] == 3  # equal weights


class Lying(Direct):
    """Tells one silo another agreement than the others."""

    def __init__(self, silos: Mapping[str, Silo], change: Mapping[str, Any]) -> None:
        super().__init__(silos)
        self.change = change

    def ask(self, requests: Mapping[str, bytes], seconds: float) -> Iterator[tuple[str, bytes | Unreachable]]:
        told = dict(requests)
        if "south" in requests and unpack(requests["south"]).header["ask"] == "hello":
            header, trees = unpack(requests["south"])
            agreed = header["config"]
            changed = {key: {**agreed[key], **value} for key, value in self.change.items()}
            told["south"] = pack({**header, "config": {**agreed, **changed}}, trees)
        return super().ask(told, seconds)


@pytest.mark.parametrize(
    "change",
    [{"privacy": {"noise": 0.001}}, {"privacy": {"clip": 1e6}}, {"secure": {"threshold": 2}}],
    ids=str,
)
def test_a_coordinator_that_tells_silos_different_things_gets_no_sum(
    change: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = config(FEDAVG, privacy=SILO, evaluation={"every": 9})
    them = with_keys(tmp_path, SILOS, shares_metrics=False)
    run = ServedRun.create(tmp_path / "run", deployed(settings, tmp_path, secure={"threshold": 3}))
    with pytest.raises(UserError, match="keys of 2 silos cannot be used: agreed are 3 to 3"):
        serve(run, Lying(them, change), tmp_path)
    assert "'south' did not sign what is said to be its keys of a sum" in caplog.text
    assert not any((tmp_path / "silos").glob("*/*/survivors.json"))  # nothing was opened


def test_what_sums_cost_a_silo_and_a_row(tmp_path: Path) -> None:
    settings = config(FEDAVG, privacy=SILO)
    _, silos = played(settings, tmp_path, SILOS)
    for silo in silos.values():
        runs = Ledger(silo.folder).runs
        assert epsilon_in_all(runs, "silo", 1e-5) == epsilon_of({Release(0.6): 3}, 1e-5)
        assert epsilon_in_all(runs, "row", 1e-5) == epsilon_of({Release(0.3): 3}, 1e-5)


def test_a_silo_that_stops_is_a_lost_reply_and_the_run_goes_on(tmp_path: Path) -> None:
    settings = config(FEDAVG, rounds=4, privacy=SILO)
    budget = epsilon_of({Release(0.6): 2}, 1e-5)
    them = with_keys(tmp_path, SILOS)
    them["west"].demands = Demands("silo", budget)
    run = ServedRun.create(tmp_path / "run", deployed(settings, tmp_path, secure={"threshold": 2}))
    serve(run, Direct(them), tmp_path)
    assert run.folder.finished
    assert [len(Ledger(them[name].folder).runs[run.name].answers) for name in SILOS] == [4, 4, 2]
    expected = simulate_with_secrets(settings, them, run, 4, lost={2: "west", 3: "west"})
    assert_near(last_saved(run).server, expected.server)


def test_digits_that_are_too_few_for_the_noise(tmp_path: Path) -> None:
    tiny = {"unit": "silo", "noise": 1e-6, "clip": 1e-3}
    settings = deployed(config(FEDAVG, privacy=tiny), tmp_path, secure={"range": 2.0**40})
    run = ServedRun.create(tmp_path / "run", settings)
    with pytest.raises(UserError, match="leaves too few digits for noise of"):
        serve(run, Direct(with_keys(tmp_path, SILOS)), tmp_path)


def test_a_silo_that_wants_to_be_hidden_refuses_what_hides_rows(tmp_path: Path) -> None:
    settings = config(FEDAVG, privacy={"unit": "row", "noise": 1.0})
    run = ServedRun.create(tmp_path / "run", deployed(settings, tmp_path))
    with pytest.raises(UserError, match="hides rows, and this silo is to be hidden as a whole"):
        coordinate(run, Direct(silos_in(tmp_path / "silos", demands=Demands("silo"))))
