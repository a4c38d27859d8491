"""Processes on Flower that are killed, interrupted or late: the run ends as if nothing had happened."""

import time
from contextlib import ExitStack
from pathlib import Path

import pandas as pd
import pytest

from distributed.deployment import assert_same_models, interrupt, joining, kill, started, wait_for
from idiolect.runs.checkpoint import newest_checkpoint
from idiolect.runs.settings import write_settings
from idiolect.silo.keys import init_keys
from idiolect.silo.offline import personal_model
from idiolect.silo.processes import free_port
from idiolect.silo.served_run import ServedRun
from idiolect.simulation import Simulation
from silo.problem import FIVE_SILOS, assert_same, config, deployed, last_saved, simulate

pytestmark = pytest.mark.distributed


def test_killed_silos_and_coordinators_change_nothing(tmp_path: Path) -> None:
    """Of five silos one is killed and comes back, the coordinator too: all ends as if undisturbed."""
    settings = config({"name": "apfl", "local_steps": 3}, rounds=20)
    address = f"127.0.0.1:{free_port()}"
    init_keys(tmp_path / "keys", "127.0.0.1", FIVE_SILOS)
    deployed(settings, tmp_path, FIVE_SILOS)  # writes the schema
    (tmp_path / "my.yaml").write_text(
        write_settings({**settings, "silos": list(FIVE_SILOS), "schema": "schema.json"})
    )
    keys = ["--keys", "keys/coordinator", "--listen", address]

    def saved_round() -> int:
        newest = newest_checkpoint(tmp_path / "served" / "checkpoints")
        return 0 if newest is None else int(newest.name.removeprefix("round-"))

    with ExitStack() as silos:
        serve = silos.enter_context(started(tmp_path, "serve", "serve", "my.yaml", *keys, "--out", "served"))
        running = {
            name: silos.enter_context(started(tmp_path, name, *joining(tmp_path, name, address)))
            for name in FIVE_SILOS
        }
        wait_for(lambda: saved_round() >= 6, 240, "six rounds")
        kill(running["south"])
        time.sleep(1)
        silos.enter_context(started(tmp_path, "south", *joining(tmp_path, "south", address)))
        wait_for(lambda: saved_round() >= 12, 300, "six rounds more with the silo that came back")
        kill(serve)
        resumed = silos.enter_context(started(tmp_path, "resumed", "serve", "--resume", "served", *keys))
        wait_for(lambda: resumed.poll() is not None, 240, "the resumed run")
        assert resumed.returncode == 0, (tmp_path / "resumed.log").read_text()

    served = ServedRun(tmp_path / "served")
    simulation = simulate(settings, silos=FIVE_SILOS).play(20)
    saved = last_saved(served)
    assert saved.round == 20
    assert_same(saved.server, simulation.server)
    assert_same_models(tmp_path, served.name, simulation)
    log = (tmp_path / "served" / "log.txt").read_text()
    assert "asking again: south" in log
    assert "continued at round" in log
    offline = personal_model(tmp_path / "silo-state" / "south")
    frame = pd.read_csv(tmp_path / "south.csv")
    assert list(offline.predict(frame)) == expected_predictions(simulation, frame)


def expected_predictions(simulation: Simulation, frame: pd.DataFrame) -> list[str]:
    """South's predictions by the simulation's own model."""
    preprocessing = simulation.federation.preprocessing
    assert preprocessing is not None
    objective = simulation.engine.setting.objective
    model = simulation.predictor(simulation.federation.names.index("south"))["personal"]
    classes = objective.predict(model, preprocessing.transform(frame).double()).argmax(-1)
    return [preprocessing.class_names[c] for c in classes.tolist()]


def test_a_trial_without_keys_on_loopback(tmp_path: Path) -> None:
    """Plain text, two silos, two rounds; one comes late, and the coordinator is interrupted meanwhile."""
    settings = config({"name": "apfl", "local_steps": 2}, rounds=2)
    deployed(settings, tmp_path)  # writes the schema
    names = ["south", "north"]
    (tmp_path / "my.yaml").write_text(write_settings({**settings, "silos": names, "schema": "schema.json"}))
    address = f"127.0.0.1:{free_port()}"
    trial = ["--insecure", "--listen", address]
    log, page = tmp_path / "served" / "log.txt", tmp_path / "served" / "report.html"
    with ExitStack() as stack:
        north = stack.enter_context(
            started(tmp_path, "north", *joining(tmp_path, "north", address, insecure=True))
        )
        serve = stack.enter_context(started(tmp_path, "serve", "serve", "my.yaml", *trial, "--out", "served"))
        wait_for(lambda: log.is_file() and "south: not connected" in log.read_text(), 120, "who is missing")
        wait_for(lambda: page.is_file() and "Waiting for silos" in page.read_text(), 20, "the page")
        assert 'http-equiv="refresh"' in page.read_text()
        interrupt(serve)
        assert serve.returncode == 130
        assert "continue with `idiolect serve --resume served`" in (tmp_path / "serve.log").read_text()
        assert "Stopped after round 0 of 2: interrupted" in page.read_text()

        resumed = stack.enter_context(started(tmp_path, "resumed", "serve", "--resume", "served", *trial))
        south = [*joining(tmp_path, "south", address, insecure=True), "--no-share-metrics"]
        stack.enter_context(started(tmp_path, "south", *south))
        wait_for(lambda: resumed.poll() is not None, 180, "two rounds")
        assert resumed.returncode == 0, (tmp_path / "resumed.log").read_text()
        interrupt(north)
        assert north.returncode == 0
        assert "north has left" in (tmp_path / "north.log").read_text()
    served = ServedRun(tmp_path / "served")
    assert served.folder.finished
    assert [record.round for record in served.progress()] == [0, 1, 2]
    assert set(pd.read_parquet(tmp_path / "served" / "metrics.parquet").client) == {"north"}
    text = page.read_text()
    assert "http-equiv" not in text
    for sentence in ("Finished after round 2", "not shared", "south: not connected"):
        assert sentence in text
    assert "round 2 of 2" in (tmp_path / "resumed.log").read_text()  # plain lines where there is no terminal
