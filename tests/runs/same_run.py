"""Whether two runs ended in the same tables, numbers and states, bit for bit."""

from collections.abc import Iterator
from pathlib import Path

import torch

from idiolect.core import tree
from idiolect.runs.checkpoint import load_checkpoint, newest_checkpoint
from idiolect.runs.folder import RunFolder
from idiolect.runs.setup import build_simulation, load_federation, place_states
from idiolect.store.files import TEMPORARY


def assert_same_run(one: Path, other: Path) -> None:
    ours, theirs = RunFolder(one), RunFolder(other)
    for table in ("metrics", "rounds", "traffic", "diagnostics", "predictions"):
        assert (one / f"{table}.parquet").read_bytes() == (other / f"{table}.parquet").read_bytes(), table
    assert ours.summary() == theirs.summary()
    for ours_state, theirs_state in zip(states(ours), states(theirs), strict=True):
        assert ours_state.keys() == theirs_state.keys()
        for name, value in theirs_state.items():
            assert torch.equal(ours_state[name], value), name
    assert not list(one.rglob(f"{TEMPORARY}*"))


def states(folder: RunFolder) -> Iterator[dict[str, torch.Tensor]]:
    """Server and clients after the last round, and of the chosen round."""
    config = folder.config
    for kind in ("checkpoints", "chosen"):
        checkpoint = newest_checkpoint(folder.path / kind)
        assert checkpoint is not None
        simulation = build_simulation(config, load_federation(config))
        place_states(simulation, config, folder.path)
        load_checkpoint(simulation, checkpoint)
        yield tree.to_named((simulation.server, simulation.clients()))
