"""A coordinator's last rounds, so that a run can go back: `idiolect serve --resume RUN --from 12`.

history/round-RRRRRR    the checkpoint after round R; its files are those of `checkpoints`, not copies
"""

import os
import shutil

import pandas as pd

from idiolect.errors import UserError
from idiolect.runs.checkpoint import all_checkpoints, checkpoint_of, newest_checkpoint
from idiolect.silo.served_run import ServedRun
from idiolect.store.files import new_folder, remove_folder

KEPT = 20  # rounds


class History:
    """Watches a run and keeps its checkpoints."""

    def __init__(self, run: ServedRun) -> None:
        self.path = run.path / "history"
        self.checkpoints = run.path / "checkpoints"

    def played(self, round_number: int) -> None:
        """A round was saved: keep it, and let the oldest go."""
        saved = checkpoint_of(self.checkpoints, round_number)
        if saved is None:
            return
        self.path.mkdir(exist_ok=True)
        if (again := self.path / saved.name).exists():  # it was gone back from
            remove_folder(again)
        with new_folder(again) as target:
            shutil.copytree(saved, target, copy_function=os.link, dirs_exist_ok=True)
        for old in all_checkpoints(self.path)[:-KEPT]:
            remove_folder(old)

    def evaluated(self, round_number: int, metrics: pd.DataFrame) -> None:
        """Nothing to keep."""


def go_back(run: ServedRun, round_number: int) -> None:
    """Put a run's folder into the state after an earlier round; what came later is forgotten."""
    newest = newest_checkpoint(run.path / "checkpoints")
    saved = checkpoint_of(run.path / "history", round_number)
    if saved is None:
        kept = [int(path.name.removeprefix("round-")) for path in all_checkpoints(run.path / "history")]
        known = f"from {min(kept)} to {max(kept)}" if kept else "none yet"
        raise UserError(f"--from {round_number} is not possible: the rounds that are kept are {known}")
    if run.folder.finished:
        raise UserError(f"--from {round_number} is not possible: the run is finished")
    if newest is None or newest.name == saved.name:
        return
    with new_folder(run.path / "checkpoints" / f"{saved.name}.again") as target:
        shutil.copytree(saved, target, copy_function=os.link, dirs_exist_ok=True)
    for place in ("checkpoints", "chosen", "history"):
        for later in all_checkpoints(run.path / place):
            if later.suffix != ".again" and later.name > saved.name:
                remove_folder(later)
    (run.path / "checkpoints" / f"{saved.name}.again").rename(run.path / "checkpoints" / saved.name)
    for part in (run.path / "parts").glob("*-*.parquet"):
        if int(part.stem.rpartition("-")[2]) > round_number:
            part.unlink()
    run.folder.log(f"went back to round {round_number}")
