"""A silo keeps what is best on its own validation rows: alone, or a model of a run."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import idiolect
from idiolect.data.federation import Federation
from idiolect.errors import UserError
from idiolect.evaluation.metrics import measures_of
from idiolect.silo.choosing import ALONE, SiloChoice, _best
from idiolect.silo.coordinator import coordinate
from idiolect.silo.served_run import ServedRun
from silo.problem import Direct, config, deployed, own_rows, silos_in, simulate

SILO = "west"


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state folder of a silo after a run of APFL."""
    folder = tmp_path_factory.mktemp("choosing")
    run = ServedRun.create(folder / "served", deployed(config({"name": "apfl"}, rounds=6), folder))
    coordinate(run, Direct(silos_in(folder / "silos")))
    return folder / "silos" / SILO


def validation_rows(federation: Federation) -> pd.DataFrame:
    """The silo's rows that a simulation of all has for validation, as its table has them."""
    client = federation.names.index(SILO)
    places = federation.validation.of(client) - min(
        federation.train.of(client).min(),
        *(part.of(client).min() for part in (federation.validation, federation.test)),
    )
    return own_rows(SILO).iloc[places.numpy()]


def test_it_is_the_best_on_its_validation_rows(state: Path) -> None:
    choice = idiolect.silo_choose(state=state, data=own_rows(SILO).assign(note="not agreed"))
    assert list(choice.values) == [ALONE, "global", "localized", "personal"]
    assert choice.values[choice.kept] == max(choice.values.values())
    rows = validation_rows(simulate(config({"name": "apfl"})).federation)
    assert choice.rows == len(rows)
    for kind in ("global", "localized", "personal"):
        said = idiolect.predict(state=state, table=rows.drop(columns="outcome"), kind=kind)
        assert np.mean(said.to_numpy() == rows.outcome) == pytest.approx(choice.values[kind])
    chosen = idiolect.predict(state=state, table=rows.drop(columns="outcome"), kind="chosen")
    assert np.mean(chosen.to_numpy() == rows.outcome) == pytest.approx(choice.values[choice.kept])


def test_what_it_has_alone_is_the_same_tomorrow(state: Path) -> None:
    """Training alone is a pure function of the agreement and the rows."""
    choice = idiolect.silo_choose(state=state, data=own_rows(SILO))
    again = idiolect.silo_choose(state=state, data=own_rows(SILO))
    assert choice == again
    assert 0 <= choice.values[ALONE] <= 1


def test_the_chosen_model_is_exported(state: Path, tmp_path: Path) -> None:
    choice = idiolect.silo_choose(state=state, data=own_rows(SILO))
    idiolect.export(state=state, kind="chosen", to=tmp_path / "model.pt2")
    assert choice.kept in (tmp_path / "model.pt2.card.md").read_text()
    assert torch.export.load(tmp_path / "model.pt2") is not None


def test_of_equals_it_stays_alone_and_what_is_not_defined_is_never_better() -> None:
    judged = measures_of(idiolect.load("vowels").task)
    assert _best({ALONE: 0.5, "global": 0.5, "personal": 0.5}, judged) == ALONE
    assert _best({ALONE: 0.5, "global": 0.4, "personal": 0.6}, judged) == "personal"
    assert _best({ALONE: float("nan"), "global": float("nan")}, judged) == ALONE


def test_without_a_choice_there_is_none(tmp_path: Path) -> None:
    run = ServedRun.create(tmp_path / "served", deployed(config({"name": "fedavg"}, rounds=1), tmp_path))
    coordinate(run, Direct(silos_in(tmp_path / "silos")))
    with pytest.raises(UserError, match="idiolect silo choose"):
        idiolect.predict(state=tmp_path / "silos" / SILO, table=own_rows(SILO), kind="chosen")
    with pytest.raises(UserError, match="missing: age"):
        idiolect.silo_choose(state=tmp_path / "silos" / SILO, data=own_rows(SILO).drop(columns="age"))


def test_a_choice_is_plain_data() -> None:
    assert SiloChoice("alone", "accuracy", {"alone": 1.0}, 3)._asdict()["kept"] == "alone"
