"""Every method with either unit of privacy, and private runs through every command.

A combination is refused in a sentence that names the field, or costs what dp-accounting says of releases that
were counted by hand. Everything in `tests/runs/test_privacy.py: REFUSED` is refused before a run begins.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import dp_accounting
import numpy as np
import pandas as pd
import pytest
from dp_accounting import rdp

import idiolect
from idiolect.core.method import Method
from idiolect.methods.apfl import APFL
from idiolect.methods.catalogue import METHODS
from idiolect.privacy.accounting import ORDERS
from idiolect.runs import decisions
from idiolect.runs.folder import RunFolder
from matrix.problem import Runs, asked_once, invoke, table
from runs.same_run import assert_same_run
from runs.test_privacy import REFUSED

# In `make test`, where tests/runs/test_privacy.py has all methods; the others are in `make test-slow`.
OFTEN = {"local", "apfl", "pfedme", "ifca"}
Unit = Literal["row", "silo"]
UNITS: tuple[Unit, ...] = ("row", "silo")
NOISE, DELTA, ROUNDS, STEPS, BATCH = 2.0, 1e-5, 3, 2, 5
# Gradients that a local step takes at its batch, where it is more than one.
GRADIENTS = {"apfl": 2, "ditto": 2, "fedrep": 2, "pfedme": 5, "pfedkm": 5}
WITHOUT_UPLOAD = {"local"}  # nothing leaves a client, so no sum tells of it


def words(unit: Unit, kind: type[Method] = APFL) -> list[str]:
    """What makes a run of the matrix private; in it rounds are 3 and local steps 2."""
    weighs_rows = unit == "silo" and getattr(kind(), "weighting", "") == "samples"
    equal = ["method.weighting=uniform"] if weighs_rows else []
    return [f"privacy.unit={unit}", f"privacy.noise={NOISE}", f"batch_size={BATCH}", *equal]


def cost(unit: Unit, kind: type[Method], smallest: int) -> float:
    """ε of the client with the fewest rows, or of all clients: by the library alone, with 99 % of δ."""
    if unit == "silo":
        releases = 0 if kind.name in WITHOUT_UPLOAD else ROUNDS
        event: Any = dp_accounting.GaussianDpEvent(NOISE)
    else:
        releases = ROUNDS * STEPS
        event = dp_accounting.GaussianDpEvent(NOISE / GRADIENTS.get(kind.name, 1) ** 0.5)
        event = dp_accounting.PoissonSampledDpEvent(BATCH / smallest, event)
    if not releases:
        return 0.0
    accountant = rdp.RdpAccountant(ORDERS, dp_accounting.NeighboringRelation.REPLACE_SPECIAL)
    accountant.compose(dp_accounting.SelfComposedDpEvent(event, releases))
    return accountant.get_epsilon(0.99 * DELTA)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decisions, "find_rate", asked_once(decisions.find_rate))
        yield Runs(tmp_path_factory.mktemp("private"))


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=() if kind.name in OFTEN else pytest.mark.slow, id=kind.name)
        for kind in METHODS
    ],
)
def test_a_run_costs_what_is_counted_by_hand_or_is_refused(
    kind: type[Method], unit: Unit, runs: Runs
) -> None:
    if kind.name in REFUSED[unit]:
        said = invoke("run", *runs.settings(kind, *words(unit, kind)), f"out={runs.new_name()}", mistake=True)
        assert f"privacy.unit={unit} cannot be used with method={kind.name}" in said
        assert len(said.strip().splitlines()) == 1
        return
    finished = runs.of(kind, *words(unit, kind))
    told = finished.summary()["privacy"]
    smallest = int(finished.federation().train.sizes.min())
    assert smallest > BATCH
    assert told["epsilon"] == pytest.approx(cost(unit, kind, smallest), rel=1e-9)
    again = runs.of(kind, *words(unit, kind), "engine=vectorised")
    assert again.summary()["privacy"] == told
    pd.testing.assert_frame_equal(again.metrics(), finished.metrics(), rtol=1e-8, atol=1e-10)


@pytest.fixture(params=["row", pytest.param("silo", marks=pytest.mark.slow)])
def unit(request: pytest.FixtureRequest) -> Unit:
    found: Unit = request.param
    return found


@pytest.fixture
def finished(runs: Runs, unit: Unit) -> RunFolder:
    return runs.of(APFL, *words(unit))


@pytest.fixture
def epsilon(finished: RunFolder, unit: Unit) -> float:
    return cost(unit, APFL, int(finished.federation().train.sizes.min()))


def without_method(given: list[str]) -> list[str]:
    return [word for word in given if not word.startswith(("method", "engine"))]


def test_compare(runs: Runs, unit: Unit, epsilon: float) -> None:
    folder = runs.new_name()
    given = without_method(runs.settings(APFL, *words(unit)))
    invoke(
        "compare", "methods=local,apfl", *given, "apfl.local_steps=2", "local.local_steps=2", f"out={folder}"
    )
    spent = {run.config.method_name: run.summary()["privacy"] for run in idiolect.Comparison(folder).runs}
    assert spent["apfl"]["epsilon"] == pytest.approx(epsilon, rel=1e-9)
    assert 0 <= spent["local"]["epsilon"] < spent["apfl"]["epsilon"]


def test_tune(runs: Runs, unit: Unit, epsilon: float) -> None:
    """Each trial spends as much; the choice can be run, and says so."""
    folder = runs.new_name()
    given = without_method(runs.settings(APFL, *words(unit)))
    invoke("tune", "methods=apfl", *given, "apfl.local_steps=2", "trials=2", f"out={folder}")
    chosen = idiolect.run(folder / "best-apfl.yaml", out=runs.new_name())
    assert chosen.summary()["privacy"]["epsilon"] == pytest.approx(epsilon, rel=1e-9)


def test_train(runs: Runs, unit: Unit, finished: RunFolder) -> None:
    result = idiolect.train(
        {"name": "apfl", "local_steps": STEPS},
        {"name": runs.folder / "sites.csv", "client": "site", "target": "outcome"},
        {"name": "mlp", "hidden": [4]},
        rounds=ROUNDS,
        batch_size=BATCH,
        dtype="float64",
        evaluation={"every": 3, "choose": "last"},
        privacy={"unit": unit, "noise": NOISE},
    )
    assert result.spent == finished.summary()["privacy"]
    pd.testing.assert_frame_equal(result.privacy, finished.privacy())
    pd.testing.assert_frame_equal(result.metrics, finished.metrics(), rtol=1e-8, atol=1e-10)


class Killed(BaseException):
    """Nothing catches it."""


class Killer:
    """Ends a run after its third round, before that is saved."""

    def played(self, round_number: int) -> None:
        pass

    def evaluated(self, round_number: int, metrics: pd.DataFrame) -> None:
        if round_number == ROUNDS:
            raise Killed


def test_resume(runs: Runs, unit: Unit, finished: RunFolder) -> None:
    folder = runs.new_name()
    with pytest.raises(Killed):
        idiolect.run(*runs.settings(APFL, *words(unit)), f"out={folder}", watch=lambda config: [Killer()])
    invoke("resume", folder)
    assert_same_run(folder, finished.path)
    pd.testing.assert_frame_equal(RunFolder(folder).privacy(), finished.privacy())


def test_export_and_predict(runs: Runs, finished: RunFolder) -> None:
    folder, rows = runs.new_name(), runs.new_name(".csv")
    invoke("export", finished.path, "--client", "north", "--out", folder)
    table(["north"]).drop(columns=["site", "outcome"]).to_csv(rows, index=False)
    said = invoke("predict", folder, rows).split()
    assert said[0] == "outcome"
    assert set(said[1:]) <= {"better", "same", "worse"}


def test_show_and_report(runs: Runs, unit: Unit, finished: RunFolder, epsilon: float) -> None:
    assert json.loads(invoke("show", finished.path, "--json"))["privacy"]["epsilon"] == pytest.approx(epsilon)
    page = runs.new_name(".html")
    invoke("report", finished.path, "--out", page)
    for said in (" ".join(invoke("show", finished.path).split()), Path(page).read_text()):
        assert f"privacy of each {unit}: ε = " in said
        assert f"{epsilon:.3g} spent at δ = 1e-05" in said


def test_personalize(runs: Runs, unit: Unit, finished: RunFolder) -> None:
    """A newcomer's rows pay for its own steps, of one gradient each; where silos are hidden it tells none."""
    rows = runs.new_name(".csv")
    table(["moor"]).to_csv(rows, index=False)
    met = idiolect.personalize(finished, data=rows)
    said = invoke("personalize", finished.path, f"data={rows}")
    if unit == "silo":
        assert not met.epsilons
        assert "privacy" not in said
        return
    size = int(met.simulation.federation.train.sizes[0])
    accountant = rdp.RdpAccountant(ORDERS, dp_accounting.NeighboringRelation.REPLACE_SPECIAL)
    event = dp_accounting.PoissonSampledDpEvent(BATCH / size, dp_accounting.GaussianDpEvent(NOISE))
    accountant.compose(event, STEPS)
    expected = accountant.get_epsilon(0.99 * DELTA)
    assert met.epsilons == {"moor": pytest.approx(expected, rel=1e-9)}
    assert f"privacy of each row: ε = {expected:.3g} spent at most" in said
    assert np.isfinite(met.metrics["value"]).all()


def test_every_method_is_known_by_name() -> None:
    assert {*GRADIENTS, *WITHOUT_UPLOAD} <= {method.name for method in METHODS}
