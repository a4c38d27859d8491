"""A run whose uploads are summed securely equals the plain one, up to the digits of fixed point."""

import gc
import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from idiolect.core import tree
from idiolect.errors import UserError
from idiolect.evaluation.metrics import evaluate
from idiolect.methods.catalogue import CATALOGUE
from idiolect.secure.fixed_point import FixedPoint
from idiolect.silo.requests import Unreachable
from idiolect.silo.secure import silo_side
from idiolect.silo.served_run import ServedRun
from idiolect.silo.wire import pack, unpack
from silo.losses import Lossy, lose_replies
from silo.problem import FIVE_SILOS, LENIENT, SILOS, Direct, config, deployed, last_saved, simulate
from silo.secure_problem import played, serve, with_keys

APFL = {"name": "apfl", "local_steps": 3}
METHODS = [
    {"name": "fedavg", "local_steps": 4, "weighting": "samples"},
    APFL,
    {"name": "scaffold", "local_steps": 3},
    {"name": "local", "local_steps": 3},
]


def assert_near(ours: Any, theirs: Any, apart: float = 1e-8) -> None:
    for a, b in zip(tree.leaves(ours), tree.leaves(theirs), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=apart)


# Those of the catalogue whose servers need sums only; whatever comes to it must be named here or be refused.
SUMMED = {
    "additive", "apfl", "ditto", "fedadagrad", "fedadam", "fedavg", "fedavgm", "fedbabu", "fedbn",
    "federated-dropout", "fedper", "fedprox", "fedrep", "fedrod", "fedrolex", "fedyogi", "heterofl",
    "lg-fedavg", "local", "local-sgd", "minibatch-sgd", "per-fedavg", "pfedme", "scaffold", "silobn",
    "vrl-sgd",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(CATALOGUE.built_in))
def test_every_method_is_summed_or_refused(name: str, tmp_path: Path) -> None:
    settings = config({"name": name}, rounds=2)
    if name not in SUMMED:
        with pytest.raises(UserError, match="is not possible with secure=true"):
            played(settings, tmp_path, SILOS)
        return
    run, _ = played(settings, tmp_path, SILOS)
    assert_near(last_saved(run).server, simulate(settings).play(2).server)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: str(method["name"]))
def test_a_secure_run_equals_a_simulation(method: dict[str, object], tmp_path: Path) -> None:
    settings = config(method)
    run, silos = played(settings, tmp_path, SILOS)
    simulation = simulate(settings).play(3)
    assert_near(last_saved(run).server, simulation.server)
    for number, name in enumerate(SILOS):
        assert_near(silos[name]._vault(run.name).latest(), tree.row(simulation.clients(), number))


def test_with_a_compressed_downlink_and_silos_that_are_not_always_asked(tmp_path: Path) -> None:
    settings = config(APFL, codec={"down": "ternary", "keep": 0.3}, participation={"count": 2, "work": 0.7})
    run, _ = played(settings, tmp_path, SILOS, {"threshold": 2})
    assert_near(last_saved(run).server, simulate(settings).play(3).server)


def test_metrics_are_those_of_all_silos_together(tmp_path: Path) -> None:
    """The mean over rows of each silo's metrics; nobody's own are in the run's tables."""
    settings = config(APFL)
    run, silos = played(settings, tmp_path, SILOS)
    simulation = simulate(settings).play(3)
    own = evaluate(simulation, run.settings.config.evaluation.measures(simulation.federation))
    summed = pd.read_parquet(run.path / "summed_metrics.parquet")
    assert set(summed["round"]) == {0, 2, 3}
    last = summed[summed["round"] == 3].set_index(["part", "kind", "metric"])
    rows = {name: silos[name]._engagement(run.name).rows for name in SILOS}
    for entry, values in own.groupby(["part", "kind", "metric"]):
        defined = values[values.value.notna()]
        counts = [rows[name][entry[0]] for name in defined.client]
        assert last.loc[entry, "value"] == pytest.approx(np.average(defined.value, weights=counts), abs=1e-8)
        assert last.loc[entry, "rows"] == sum(counts)
    assert len(run.folder.metrics()) == 0


class CrashError(RuntimeError):
    pass


class Crashing(Lossy):
    """Its coordinator crashes when the first sum of uploads could be opened."""

    def ask(self, requests: Mapping[str, bytes], seconds: float) -> Iterator[tuple[str, bytes | Unreachable]]:
        header = unpack(next(iter(requests.values()))).header
        if header.get("stage") == "reveal" and "/work/" in header["sum"]:
            raise CrashError
        return super().ask(requests, seconds)


def lost_replies_of(settings: dict[str, Any], lost: Mapping[int, str], rounds: int) -> Any:
    """A simulation in which the replies of some silos are lost in some rounds."""
    simulation = simulate(settings, silos=FIVE_SILOS)
    lose_replies(simulation, FIVE_SILOS, lost)
    return simulation.play(rounds)


def test_silos_that_drop_out_in_every_stage(tmp_path: Path) -> None:
    """Before its masked numbers it is a lost reply; after them it is in the sum all the same."""
    settings = config({"name": "fedavg", "local_steps": 2, "weighting": "samples"}, rounds=4)
    them = with_keys(tmp_path, FIVE_SILOS)
    run = ServedRun.create(
        tmp_path / "run", deployed(settings, tmp_path, FIVE_SILOS, secure={"threshold": 3})
    )
    lost = {(0, "share"): "south", (1, "mask"): "north", (2, "confirm"): "west", (3, "reveal"): "west-end"}
    serve(run, Lossy(them, lost), tmp_path)
    expected = lost_replies_of(settings, {0: "south", 1: "north"}, 4)
    assert_near(last_saved(run).server, expected.server)


def _bytes_in_memory() -> bytes:
    """All tensors, arrays and bytes that the process can reach now, beside what the test itself holds."""
    found = []
    for one in gc.get_objects():
        for part in (one, *gc.get_referents(one)):
            if type(part) is torch.Tensor and part.numel():
                found.append(part.detach().contiguous().numpy().tobytes())
            elif type(part) is np.ndarray and part.dtype != object:
                found.append(part.tobytes())
            elif type(part) in (bytes, bytearray):
                found.append(bytes(part))
    return b"|".join(found)


def test_the_coordinator_never_holds_an_upload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither in its memory, when the sum is there, nor in what it received, nor in its folder and log."""
    uploads: list[Any] = []
    begin = silo_side.SiloSums.begin

    def noting(self: Any, label: str, question: str, numbers: Any) -> Any:
        if "/work/" in label:
            fixed: FixedPoint = self.fixed_point
            uploads.append([numbers.tolist(), fixed.encode(numbers).tolist()])  # no bytes, no arrays
        return begin(self, label, question, numbers)

    monkeypatch.setattr(silo_side.SiloSums, "begin", noting)
    caplog.set_level(logging.DEBUG)
    settings = config(APFL, rounds=1, evaluation={"every": 5})
    them = with_keys(tmp_path, SILOS)
    run = ServedRun.create(tmp_path / "run", deployed(settings, tmp_path, SILOS, secure=True))
    link = Lossy(them, {})
    serve(run, link, tmp_path)
    for silo in them.values():
        silo._engagements.clear()  # what silos hold is theirs
    del them, silo
    link.silos.clear()
    gc.collect()
    files = b"|".join(path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file())
    seen = _bytes_in_memory() + files + b"|".join(link.replies) + caplog.text.encode()
    assert len(uploads) == 3
    mean = tree.leaves(last_saved(run).server)[0].numpy().tobytes()
    assert mean in seen  # the search finds what is there
    for numbers, whole in uploads:
        weights, integers = np.array(numbers), np.array(whole, dtype=np.uint64)
        for form in (weights.tobytes(), weights[:8].tobytes(), integers.tobytes(), integers[:8].tobytes()):
            assert form not in seen
            assert weights[:8].astype(np.float32).tobytes() not in seen


def test_a_silo_that_insists(tmp_path: Path) -> None:
    them = with_keys(tmp_path, SILOS, requires_secure=True)
    run = ServedRun.create(tmp_path / "run", deployed(config(APFL), tmp_path))
    with pytest.raises(UserError, match="--require-secure"):
        serve(run, Direct(them), tmp_path)


def test_a_silo_that_insists_on_sums_over_more(tmp_path: Path) -> None:
    them = with_keys(tmp_path, SILOS, limits=replace(LENIENT, summed=3))
    served = deployed(config(APFL), tmp_path, secure={"threshold": 2})
    run = ServedRun.create(tmp_path / "run", served)
    with pytest.raises(UserError, match=r"over 2 silos are not admitted here, but over 3 and more"):
        serve(run, Direct(them), tmp_path)


def test_nobody_takes_part_without_keys(tmp_path: Path) -> None:
    them = with_keys(tmp_path, SILOS)
    for silo in them.values():
        silo.credentials = None
    run = ServedRun.create(tmp_path / "run", deployed(config(APFL), tmp_path, secure=True))
    with pytest.raises(UserError, match="secure sums need the silos' keys"):
        serve(run, Direct(them), tmp_path)


def test_an_upload_out_of_range_is_refused(tmp_path: Path) -> None:
    them = with_keys(tmp_path, SILOS)
    run = ServedRun.create(tmp_path / "run", deployed(config(APFL), tmp_path, secure={"range": 0.001}))
    with pytest.raises(UserError, match=r"from -0.001 to 0.001"):
        serve(run, Direct(them), tmp_path)


def test_a_sum_is_opened_for_one_list_only(tmp_path: Path) -> None:
    """The difference of two sums of the same uploads would be an upload: not even after a restart."""
    settings = config(APFL, rounds=1)
    them = with_keys(tmp_path, FIVE_SILOS)
    run = ServedRun.create(
        tmp_path / "run", deployed(settings, tmp_path, FIVE_SILOS, secure={"threshold": 3})
    )

    with pytest.raises(CrashError):
        serve(run, Crashing(them, {}), tmp_path)
    again = with_keys(tmp_path, FIVE_SILOS)  # everybody has been restarted
    (run.path / "survivors.json").unlink()  # what an honest coordinator goes by
    lossy = Lossy(again, {(0, "mask"): "west"})
    with pytest.raises(UserError, match="was opened for north, south, west, west-bank, west-end already"):
        serve(ServedRun(run.path), lossy, tmp_path)


def test_after_a_crash_the_same_list_is_asked_for(tmp_path: Path) -> None:
    """A silo was not in the sum when the coordinator crashed; it is there again and stays out of that sum."""
    settings = config({"name": "fedavg", "local_steps": 2}, rounds=1)
    them = with_keys(tmp_path, FIVE_SILOS)
    run = ServedRun.create(
        tmp_path / "run", deployed(settings, tmp_path, FIVE_SILOS, secure={"threshold": 3})
    )

    with pytest.raises(CrashError):
        serve(run, Crashing(them, {(0, "mask"): "west"}), tmp_path)
    serve(ServedRun(run.path), Direct(with_keys(tmp_path, FIVE_SILOS)), tmp_path)
    assert_near(last_saved(run).server, lost_replies_of(settings, {0: "west"}, 1).server)


def test_a_coordinator_is_shown_nothing_where_sums_are_agreed(tmp_path: Path) -> None:
    """Neither rows nor steps nor an upload is in what silos answer."""
    them = with_keys(tmp_path, SILOS)
    run = ServedRun.create(
        tmp_path / "run", deployed(config(APFL, rounds=1), tmp_path, secure=True, schema="schema.json")
    )
    link = Lossy(them, {})
    serve(run, link, tmp_path)
    for reply in link.replies:
        packet = unpack(reply)
        assert not packet.header.keys() & {"rows", "steps"}
        assert set(packet.trees) <= {"masked"}
    answer = unpack(them["north"].answer(pack({"ask": "sum", "run": run.name, "sum": "x", "stage": "mask"})))
    assert "is not at hand here" in answer.header["refused"]


REFUSED = [
    ({"method": {"name": "pfedkm"}}, "its server needs each silo's own upload"),
    ({"method": {"name": "perm"}}, "its server needs each silo's own upload"),
    ({"method": {"name": "efl"}}, "its server needs each silo's own upload"),
    ({"method": {"name": "drfa"}}, "its server needs each silo's own upload"),
    ({"method": {"name": "apfl", "local_steps": {"epochs": 1}}}, "local_steps in epochs"),
    ({"method": APFL, "codec": {"up": "ternary"}}, "codec.up is of no use"),
    ({"method": APFL, "robust": {"name": "median"}}, "robust=median is not possible"),
    ({"method": APFL, "participation": {"sampling": "proportional"}}, "numbers of rows"),
    ({"method": APFL, "participation": {"work": "size"}}, "numbers of rows"),
    ({"method": APFL, "participation": {"count": 2}}, "asks 2 silos in round 1, and a secure sum needs 3"),
    ({"method": {"name": "perm-two-stage"}}, "looks at the silos' numbers of rows"),
    ({"method": {"name": "heterofl", "weighting": "samples"}}, "looks at the silos' numbers of rows"),
]


@pytest.mark.parametrize(("settings", "reason"), REFUSED, ids=lambda value: str(value)[:60])
def test_what_needs_more_than_sums_is_refused(settings: dict[str, Any], reason: str, tmp_path: Path) -> None:
    them = with_keys(tmp_path, SILOS)
    run = ServedRun.create(tmp_path / "run", deployed(config(**settings), tmp_path, secure=True))
    with pytest.raises(UserError, match=reason):
        serve(run, Direct(them), tmp_path)


@pytest.mark.parametrize(
    ("secure", "reason"),
    [
        ("yes", "secure=yes is not possible"),
        ({"treshold": 2}, "is not possible: it is true, false, or has a threshold"),
        ({"threshold": 1}, "from 2 to 3"),
        ({"threshold": 4}, "from 2 to 3"),
        ({"threshold": True}, "is not a number"),
        ({"range": 0}, "range=0.0 is not possible"),
    ],
)
def test_settings_that_make_no_sense(secure: Any, reason: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=reason):
        deployed(config(APFL), tmp_path, secure=secure)


def test_a_minimum_below_the_threshold(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"minimum_replies=2 is below secure.threshold=3"):
        deployed(config(APFL), tmp_path, secure=True, minimum_replies=2)
