"""Three silos as processes on Flower: sums that hide silos, and hidden rows until a budget is spent."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from distributed.deployment import joining, started, wait_for
from idiolect.privacy.accounting import Release, epsilon_of
from idiolect.runs.settings import write_settings
from idiolect.silo.keys import init_keys
from idiolect.silo.privacy.ledger import Ledger, epsilon_in_all
from idiolect.silo.processes import free_port
from idiolect.silo.served_run import ServedRun
from silo.problem import SILOS, config, deployed

pytestmark = pytest.mark.distributed

DELTA = 1e-5
FEDAVG = {"name": "fedavg", "local_steps": 2}
HIDDEN_SILOS = config(
    FEDAVG, rounds=1, evaluation={"every": 9}, privacy={"unit": "silo", "noise": 2.0, "clip": 0.5}
)
HIDDEN_ROWS = config(
    FEDAVG, rounds=2, evaluation={"every": 9}, batch_size="all", privacy={"unit": "row", "noise": 3.0}
)


def test_silos_and_rows_are_hidden_on_flower(tmp_path: Path) -> None:
    """The same silos take part in both runs, one after the other, and pay for both.

    South's budget is that of the first run and of one round of the second.
    """
    address = f"127.0.0.1:{free_port()}"
    init_keys(tmp_path / "keys", "127.0.0.1", SILOS)
    budget = epsilon_of({Release(1.0): 1, Release(3.0): 2}, DELTA) + 0.01
    demands = ["--require-private", "row", "--max-epsilon"]
    with ExitStack() as stack:
        for name in SILOS:
            most = str(budget if name == "south" else 1000.0)
            command = [*joining(tmp_path, name, address), *demands, most]
            stack.enter_context(started(tmp_path, name, *command))
        first = served(HIDDEN_SILOS, tmp_path, "first", address, secure=True)
        second = served(HIDDEN_ROWS, tmp_path, "second", address, minimum_replies=2)

    assert len(first.folder.metrics()) == 0  # who demands privacy keeps them
    for name in SILOS:
        runs = Ledger(tmp_path / "silo-state" / name).runs
        answers = [len(runs[run.name].answers) for run in (first, second)]
        assert answers == ([1, 1] if name == "south" else [1, 2])
        spent = {Release(1.0): 1, Release(3.0): 2 * answers[1]}  # two steps in a round
        assert epsilon_in_all(runs, "row", DELTA) == epsilon_of(spent, DELTA)
    log = (tmp_path / "second" / "log.txt").read_text()
    assert "south: refused: round 2 would spend more than this silo's budget" in log
    summary = json.loads((tmp_path / "first" / "summary.json").read_text())
    assert summary["privacy"]["epsilon"] == pytest.approx(epsilon_of({Release(2.0): 1}, DELTA))


def served(settings: dict[str, Any], folder: Path, name: str, address: str, **own: Any) -> ServedRun:
    """A whole run."""
    deployed(settings, folder)  # writes the schema
    further = {"silos": list(SILOS), "schema": "schema.json", "answer_seconds": 30, **own}
    (folder / f"{name}.yaml").write_text(write_settings({**settings, **further}))
    keys = ["--keys", "keys/coordinator", "--listen", address, "--out", name]
    with started(folder, f"serve-{name}", "serve", f"{name}.yaml", *keys) as serve:
        wait_for(lambda: serve.poll() is not None, 300, f"the {name} run")
        assert serve.returncode == 0, (folder / f"serve-{name}.log").read_text()
    return ServedRun(folder / name)
