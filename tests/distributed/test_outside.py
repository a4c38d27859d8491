"""A method, a codec and more of a package outside of this one: on Ray's workers, and at silos on Flower."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import idiolect
from distributed.deployment import interrupt, joining, started, wait_for
from idiolect.core import tree
from idiolect.runs.settings import write_settings
from idiolect.silo.keys import init_keys
from idiolect.silo.limits import Limits
from idiolect.silo.processes import free_port
from idiolect.silo.served_run import ServedRun
from idiolect.silo.vault import RunVault
from outside.installation import PACKAGE, SOURCE, install, make_known
from silo.problem import SILOS, assert_same, config, deployed, last_saved, simulate

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("outside"))


@pytest.fixture
def outside(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package is installed, for this process and those that it starts."""
    make_known(installed, monkeypatch)


@pytest.fixture
def ray() -> Iterator[Any]:
    import ray

    yield ray
    ray.shutdown()


def assert_same_on_ray(*settings: str) -> None:
    common = ("data.clients=4", "rounds=3", *settings)
    ours = idiolect.run(*common, "engine=ray", "engine.workers=2", out="ray")
    theirs = idiolect.run(*common, "engine=sequential", out="sequential")
    pd.testing.assert_frame_equal(ours.metrics(), theirs.metrics(), rtol=1e-5, atol=1e-6)
    pd.testing.assert_frame_equal(ours.rounds(), theirs.rounds())


def test_ray_finds_by_name_what_is_installed(
    outside: None, ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_same_on_ray(
        "method=ownrep",
        "codec.up=fixed-point",
        "data=blobs",
        "model=two-layers",
        "evaluation.metrics=brier",
    )


def test_ray_finds_by_import_paths_what_is_in_the_users_folder(
    ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "nothing"))  # puts sys.path back at the end
    shutil.copytree(SOURCE / PACKAGE, tmp_path / "my_package")
    assert_same_on_ray(
        "method=my_package.fedrep:FedRep",
        "codec.up=my_package.codecs:FixedPoint",
        "data=my_package.data:blobs",
        "model=my_package.models:two_layers",
        "evaluation.metrics=my_package.metrics:brier",
    )


ROUNDS = 3
SETTINGS = config(
    {"name": "ownrep", "local_steps": 4},
    rounds=ROUNDS,
    codec={"up": {"name": "fixed-point", "bits": 20}, "down": {"name": "fixed-point", "bits": 24}},
)
# The coordinator says names of entry points; one silo allows these, the others import paths.
PATHS = (
    "--allow-method",
    "idiolect_outside.fedrep:FedRep",
    "--allow-codec",
    "idiolect_outside.codecs:FixedPoint",
)
NAMES = ("--allow-method", "ownrep", "--allow-codec", "fixed-point")


class Loopback:
    """A coordinator's address, and commands in the folder of a test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = f"127.0.0.1:{free_port()}"
        init_keys(folder / "keys", "127.0.0.1", SILOS)
        deployed(SETTINGS, folder)  # writes the schema
        (folder / "my.yaml").write_text(
            write_settings({**SETTINGS, "silos": list(SILOS), "schema": "schema.json"})
        )

    def silo(self, name: str, *allowed: str) -> Any:
        return started(self.folder, name, *joining(self.folder, name, self.address), *allowed)

    def serve(self, label: str, *arguments: str) -> Any:
        keys = ("--keys", "keys/coordinator", "--listen", self.address)
        return started(self.folder, label, "serve", *arguments, *keys)

    def log(self, label: str) -> str:
        return (self.folder / f"{label}.log").read_text()

    def assert_as_simulated(self) -> None:
        """Server, clients and models are those of one process that has all rows."""
        served, simulation = ServedRun(self.folder / "served"), simulate(SETTINGS).play(ROUNDS)
        modules = Limits(own_methods=("ownrep",), own_codecs=("fixed-point",)).modules
        assert served.folder.finished
        assert_same(last_saved(served).server, simulation.server)
        for number, name in enumerate(SILOS):
            vault = RunVault(self.folder / "silo-state" / name / served.name, modules)
            assert_same(vault.latest(), tree.row(simulation.clients(), number))
            assert_same(vault.models()[0], simulation.predictor(number))


def test_silos_that_allow_it_compute_what_one_process_computes(outside: None, tmp_path: Path) -> None:
    """West allows the codec alone; with what its refusal says to type beside it, the run goes on."""
    loopback = Loopback(tmp_path)
    refusal = "west: refused: method=ownrep would import code; allow it with --allow-method ownrep\n"
    allow_method, allow_codec = NAMES[:2], NAMES[2:]
    with ExitStack() as stack:
        for name, allowed in (("north", NAMES), ("south", PATHS)):
            stack.enter_context(loopback.silo(name, *allowed))
        serve = stack.enter_context(loopback.serve("serve", "my.yaml", "--out", "served"))
        west = stack.enter_context(loopback.silo("west", *allow_codec))
        wait_for(lambda: serve.poll() is not None, 120, "the refusal")
        assert serve.returncode == 2
        assert refusal in loopback.log("serve")
        assert "silos gave a usable answer and at least 3 are needed" in loopback.log("serve")
        interrupt(west)
        stack.enter_context(loopback.silo("west", *allow_codec, *allow_method))
        resumed = stack.enter_context(loopback.serve("resumed", "--resume", "served"))
        wait_for(lambda: resumed.poll() is not None, 240, "all rounds")
        assert resumed.returncode == 0, loopback.log("resumed")
    loopback.assert_as_simulated()
