"""Three silos as processes, with TLS and keys, on Flower: the same numbers, and who is kept out."""

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pytest

from distributed.deployment import interrupt, joining, kill, started, wait_for
from idiolect.core import tree
from idiolect.evaluation.metrics import evaluate
from idiolect.runs.checkpoint import newest_checkpoint
from idiolect.runs.settings import write_settings
from idiolect.silo.keys import init_keys
from idiolect.silo.offline import personal_model
from idiolect.silo.processes import Child, free_port
from idiolect.silo.served_run import ServedRun
from idiolect.silo.vault import RunVault
from idiolect.simulation import Simulation
from silo.problem import (
    FIVE_SILOS,
    SILOS,
    assert_same,
    assert_same_metrics,
    config,
    deployed,
    last_saved,
    simulate,
)

pytestmark = pytest.mark.distributed

CASES: dict[str, dict[str, Any]] = {
    "fedavg": {"method": {"name": "fedavg", "local_steps": {"epochs": 1}, "weighting": "samples"}},
    "apfl": {"method": {"name": "apfl", "local_steps": 3}},
    "apfl with codecs": {
        "method": {"name": "apfl", "local_steps": 3},
        "codec": {"up": "ternary", "down": "ternary", "keep": 0.1},
    },
    "additive": {"method": {"name": "additive"}},
    "efl": {"method": {"name": "efl", "keep": 0.25}},
    "pfedkm": {"method": {"name": "pfedkm"}},
    "perm": {"method": {"name": "perm", "local_steps": 2}},
}
# The others are given the simulation's schema; here the silos find it together.
WITHOUT_SCHEMA = ("apfl with codecs", "efl")


class Deployment(NamedTuple):
    folder: Path
    address: str
    link: Any


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A SuperLink and three silos that stay for all tests of this file."""
    from idiolect.silo.superlink import flower_link

    folder = tmp_path_factory.mktemp("deployment")
    address = f"127.0.0.1:{free_port()}"
    init_keys(folder / "keys", "127.0.0.1", SILOS)
    with ExitStack() as stack:
        link = stack.enter_context(
            flower_link(SILOS, address, folder / "keys" / "coordinator", folder / "link", 2**29)
        )
        for name in SILOS:
            stack.enter_context(started(folder, name, *joining(folder, name, address)))
        wait_for(lambda: len(set(link.grid.get_node_ids())) == 3, 120, "three silos")
        yield Deployment(folder, address, link)


def played(settings: dict[str, Any], engine: Any, rounds: int) -> tuple[Simulation, pd.DataFrame]:
    """A simulation after some rounds, with its metrics before and after."""
    simulation = simulate(settings, engine)
    before = evaluate(simulation)
    simulation.play(rounds)
    return simulation, pd.concat([before, evaluate(simulation)])


def assert_same_models(folder: Path, run: str, simulation: Simulation) -> None:
    """Every silo's state and models are those of the simulation's client."""
    for number, name in enumerate(simulation.federation.names):
        vault = RunVault(folder / "silo-state" / name / run)
        assert_same(vault.latest(), tree.row(simulation.clients(), number))
        assert_same(vault.models()[0], simulation.predictor(number))


@pytest.mark.parametrize("case", CASES)
def test_silos_on_flower_equal_the_other_engines(deployment: Deployment, case: str, tmp_path: Path) -> None:
    from idiolect.silo.coordinator import coordinate

    settings = config(rounds=2, **CASES[case])
    schema = {"schema": {"target": "outcome"}} if case in WITHOUT_SCHEMA else {}
    served = ServedRun.create(tmp_path / "run", deployed(settings, tmp_path, **schema))
    metrics = coordinate(served, deployment.link).metrics()
    saved = last_saved(served)
    for engine in ("sequential", "vectorised"):
        simulation, expected = played(settings, engine, 2)
        assert_same_metrics(metrics, expected)
        assert_same(saved.server, simulation.server)
        assert_same_models(deployment.folder, served.name, simulation)


def test_strangers_are_kept_out(deployment: Deployment, tmp_path: Path) -> None:
    """No key, a key that nobody registered, another authority, plain text: none of them gets in."""
    known = set(deployment.link.grid.get_node_ids())
    init_keys(tmp_path / "others", "127.0.0.1", ["stranger"])
    own, others = deployment.folder / "keys" / "north", tmp_path / "others" / "stranger"
    right_ca, other_ca = (
        ["--root-certificates", str(own / "ca.pem")],
        ["--root-certificates", str(others / "ca.pem")],
    )
    attempts = {
        "no key": (right_ca, "All SuperNodes must be registered"),
        "unregistered key": (
            [*right_ca, "--auth-supernode-private-key", str(others / "silo.key")],
            "Failed to activate SuperNode",
        ),
        "another authority": (
            [*other_ca, "--auth-supernode-private-key", str(own / "silo.key")],
            "certificate signature failure|certificate verify failed",
        ),
        "plain text": (["--insecure"], "Socket closed|Connection reset"),
    }
    with ExitStack() as stack:
        children = {}
        for label, (arguments, _) in attempts.items():
            where = ["--superlink", deployment.address, "--isolation", "process", "--max-retries", "1"]
            where += ["--clientappio-api-address", f"127.0.0.1:{free_port()}"]
            child = Child("flower-supernode", [*where, *arguments], tmp_path / label.replace(" ", "-"))
            children[label] = stack.enter_context(child)
        wait_for(lambda: all(child.ended for child in children.values()), 120, "all strangers give up")
        assert set(deployment.link.grid.get_node_ids()) == known
    for label, (_, reason) in attempts.items():
        assert re.search(reason, children[label].log.read_text()), f"{label}: another reason than expected"


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
