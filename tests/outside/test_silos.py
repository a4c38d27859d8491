"""A silo imports code of others only if it allowed it, and a message can name nothing else."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from idiolect.cli import app
from idiolect.errors import UserError
from idiolect.silo.coordinator import coordinate
from idiolect.silo.limits import Limits
from idiolect.silo.served_run import ServedRun
from idiolect.silo.service import Silo
from idiolect.silo.wire import describe_object, pack, rebuild_object, unpack
from silo.parity import assert_deployment_equals_simulation
from silo.problem import LENIENT, SILOS, Direct, config, deployed, last_saved, own_rows, silos_in

FEDREP = "idiolect_outside.fedrep:FedRep"
MODEL, CODEC = "idiolect_outside.models:two_layers", "idiolect_outside.codecs:FixedPoint"
METRIC = "idiolect_outside.metrics:brier"
ALLOWED = {"own_methods": (FEDREP,), "own_models": (MODEL,), "own_codecs": (CODEC,), "own_metrics": (METRIC,)}
FAST = {"answer_seconds": 1, "patience_seconds": 1}


def settings(**options: Any) -> dict[str, Any]:
    return config(
        {"name": FEDREP, "local_steps": 3},
        model={"name": MODEL, "width": 3},
        codec={"up": {"name": CODEC, "bits": 20}},
        evaluation={"every": 2, "metrics": [METRIC], "metric": "brier"},
        **options,
    )


def test_silos_that_allow_it_compute_what_one_process_computes(outside: Path, tmp_path: Path) -> None:
    assert_deployment_equals_simulation(settings(), tmp_path, limits=replace(LENIENT, **ALLOWED))


def test_the_name_of_an_entry_point_and_its_import_path_are_one(outside: Path, tmp_path: Path) -> None:
    """The coordinator says one, the silos allowed the other."""
    by_name = settings() | {"method": {"name": "OwnRep"}, "codec": {"up": "fixed-point"}}
    served = ServedRun.create(tmp_path / "run", deployed(by_name, tmp_path))
    assert served.name.startswith("ownrep-")
    coordinate(served, Direct(silos_in(tmp_path / "silos", limits=replace(LENIENT, **ALLOWED))))
    assert served.folder.finished


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("own_methods", f"method={FEDREP} would import code; allow it with --allow-method {FEDREP}"),
        ("own_models", f"model={MODEL} would import code; allow it with --allow-model {MODEL}"),
        ("own_codecs", f"codec={CODEC} would import code; allow it with --allow-codec {CODEC}"),
        ("own_metrics", f"metric={METRIC} would import code; allow it with --allow-metric {METRIC}"),
    ],
)
def test_one_silo_that_did_not_allow_it_refuses(
    kind: str, sentence: str, outside: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    served = ServedRun.create(tmp_path / "run", deployed(settings(**FAST), tmp_path))
    silos = silos_in(tmp_path / "silos", limits=replace(LENIENT, **ALLOWED))
    silos["west"] = Silo("west", own_rows("west"), tmp_path / "west", Limits(**{**ALLOWED, kind: ()}))
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(UserError, match="2 of 3 silos gave a usable answer"),
    ):
        coordinate(served, Direct(silos))
    assert f"west: refused: {sentence}" in caplog.text


def test_a_silo_that_no_longer_allows_a_run_refuses_to_go_on_with_it(outside: Path, tmp_path: Path) -> None:
    served = ServedRun.create(tmp_path / "run", deployed(settings(), tmp_path))
    coordinate(served, Direct(silos_in(tmp_path / "silos", limits=replace(LENIENT, **ALLOWED))))
    strict = silos_in(tmp_path / "silos")["west"]
    refusal = unpack(strict.answer(pack({"ask": "work", "run": served.name}))).header["refused"]
    assert f"allow it with --allow-method {FEDREP}" in refusal


def test_a_coordinator_goes_on_from_its_checkpoint(outside: Path, tmp_path: Path) -> None:
    served = ServedRun.create(tmp_path / "run", deployed(settings(), tmp_path))
    coordinate(served, Direct(silos_in(tmp_path / "silos", limits=replace(LENIENT, **ALLOWED))))
    saved = last_saved(ServedRun(tmp_path / "run"))
    assert type(saved.server.inner).__module__ == "idiolect_outside.fedrep"


def test_methods_of_the_package_are_limited_by_themselves(outside: Path) -> None:
    limits = Limits(methods=("apfl",), own_methods=(FEDREP,))
    common = {
        "model": {"name": "linear"},
        "codec": {"up": None, "down": None},
        "evaluation": {"metrics": []},
        "rounds": 1,
    }
    for name in ("apfl", FEDREP, "own-rep"):
        limits.admit({"method": {"name": name}, **common})
    with pytest.raises(UserError, match="method=fedavg is not admitted here; admitted are apfl"):
        limits.admit({"method": {"name": "fedavg"}, **common})


def test_a_message_names_classes_of_allowed_modules_and_no_others(outside: Path) -> None:
    from idiolect_outside.fedrep import Body, FedRep

    body = Body({"w": torch.ones(2)})
    message, method = pack({}, {"down": body}), describe_object(FedRep(lr=0.1))
    allowed = Limits(own_methods=(FEDREP,)).modules
    assert "idiolect_outside.models" not in allowed
    assert type(unpack(message, modules=allowed).trees["down"]) is Body
    assert rebuild_object(method, allowed) == FedRep(lr=0.1)
    with pytest.raises(
        UserError, match=r"idiolect_outside.fedrep:Body, which is not part of this package and was not"
    ):
        unpack(message)
    with pytest.raises(UserError, match=r"idiolect_outside.fedrep:FedRep, which is not part of this package"):
        rebuild_object(method)
    # What an allowed module has imported is not its own.
    borrowed = {"object": "idiolect_outside.fedrep:Tensor", "fields": {}}
    with pytest.raises(UserError, match=r"outside.fedrep:Tensor, which is not a class of that module"):
        rebuild_object(borrowed, allowed)


def test_joining_with_something_that_is_not_there_is_refused(
    outside: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_rows(SILOS[0]).to_csv(tmp_path / "own.csv", index=False)
    monkeypatch.chdir(tmp_path)
    join = "join --server 127.0.0.1:9092 --name north --data own.csv --insecure --allow-method"
    result = CliRunner().invoke(app, [*join.split(), "idiolect_outside.fedrep:FedRap"])
    assert result.exit_code == 2
    assert "--allow-method='idiolect_outside.fedrep:FedRap' cannot be imported" in result.output
