"""Three silos as processes, with TLS and keys, on Flower: the same numbers, and who is kept out."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pytest

from distributed.deployment import assert_same_models, joining, started, wait_for
from idiolect.evaluation.metrics import evaluate
from idiolect.silo.keys import init_keys
from idiolect.silo.processes import Child, free_port
from idiolect.silo.served_run import ServedRun
from idiolect.simulation import Simulation
from silo.problem import (
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
