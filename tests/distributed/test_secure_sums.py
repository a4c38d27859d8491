"""Five silos as processes on Flower whose uploads are summed securely, one of which is killed on the way."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from distributed.deployment import joining, kill, started, wait_for
from idiolect.core import tree
from idiolect.runs.checkpoint import checkpoint_of, load_checkpoint, newest_checkpoint
from idiolect.runs.settings import write_settings
from idiolect.silo.keys import init_keys
from idiolect.silo.processes import free_port
from idiolect.silo.served_run import ServedRun
from silo.problem import FIVE_SILOS, config, deployed, last_saved, simulate

pytestmark = pytest.mark.distributed


def test_silos_on_flower_are_summed_securely(tmp_path: Path) -> None:
    """All silos insist on it. The run equals the simulation to the digits of fixed point until one is killed;
    then it goes on without that one.
    """
    settings = config(
        {"name": "fedavg", "local_steps": 2, "weighting": "samples"}, rounds=4, evaluation={"every": 5}
    )
    address = f"127.0.0.1:{free_port()}"
    init_keys(tmp_path / "keys", "127.0.0.1", FIVE_SILOS)
    deployed(settings, tmp_path, FIVE_SILOS)  # writes the schema
    own = {"silos": list(FIVE_SILOS), "schema": "schema.json", "secure": {"threshold": 3}}
    (tmp_path / "my.yaml").write_text(write_settings({**settings, **own, "answer_seconds": 30}))
    keys = ["--keys", "keys/coordinator", "--listen", address]

    def saved_round() -> int:
        newest = newest_checkpoint(tmp_path / "served" / "checkpoints")
        return 0 if newest is None else int(newest.name.removeprefix("round-"))

    with ExitStack() as stack:
        serve = stack.enter_context(started(tmp_path, "serve", "serve", "my.yaml", *keys, "--out", "served"))
        running = {
            name: stack.enter_context(
                started(tmp_path, name, *joining(tmp_path, name, address), "--require-secure")
            )
            for name in FIVE_SILOS
        }
        wait_for(lambda: saved_round() >= 2, 300, "two rounds")
        kill(running["south"])
        wait_for(lambda: serve.poll() is not None, 400, "two rounds more")
        assert serve.returncode == 0, (tmp_path / "serve.log").read_text()

    run = ServedRun(tmp_path / "served")
    assert_near(server_after(run, 2), simulate(settings, silos=FIVE_SILOS).play(2).server)
    assert run.folder.finished
    assert len(run.folder.metrics()) == 0
    summed = pd.read_parquet(run.path / "summed_metrics.parquet")
    assert set(summed[summed["round"] == 0].silos) == {5}
    opened = json.loads((run.path / "survivors.json").read_text())
    everybody, others = sorted(FIVE_SILOS), sorted(set(FIVE_SILOS) - {"south"})
    sums = [opened[f"{run.name}/work/{number}/0"] for number in range(4)]
    assert sums[:2] == [everybody, everybody]
    assert sums[2] in (everybody, others)  # it may have sent its part when it was killed
    assert sums[3] == others


def server_after(run: ServedRun, rounds: int) -> Any:
    saved = checkpoint_of(run.path / "history", rounds)
    assert saved is not None
    simulation = last_saved(run)
    load_checkpoint(simulation, saved)
    return simulation.server


def assert_near(ours: Any, theirs: Any) -> None:
    for a, b in zip(tree.leaves(ours), tree.leaves(theirs), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-8)
