"""A run from its configuration to its finished folder."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch

from idiolect.core.method import Method
from idiolect.core.task import Task
from idiolect.errors import UserError
from idiolect.evaluation.metrics import Metric
from idiolect.evaluation.summary import Choice, reported_part, reported_round, reported_values, summarise
from idiolect.runs.config import RunConfig
from idiolect.runs.folder import RunFolder, fingerprint
from idiolect.runs.rounds import Training, Watcher, play_rounds
from idiolect.runs.setup import build_simulation, load_federation, place_states
from idiolect.simulation import Simulation
from idiolect.trackers import Tracker, open_trackers

# Who is to be told what happens in a run, once its configuration is known.
Watch = Callable[[RunConfig], Sequence[Watcher]]


def nobody(config: RunConfig) -> Sequence[Watcher]:
    """Nobody watches the run."""
    return ()


def start_or_continue(config: RunConfig, watchers: Sequence[Watcher] = ()) -> RunFolder:
    """Run a configuration in its folder; a folder of the same run is continued where it stopped."""
    begun = find_run(config)
    if begun is not None:
        return continue_run(begun, watchers)
    federation = load_federation(config)
    # What is wrong with the settings is said before a folder is made.
    config.evaluation.measures(federation.task)
    simulation = build_simulation(config, federation)
    return _begin(RunFolder.create(config.folder, config, federation), simulation, watchers)


def find_run(config: RunConfig) -> RunFolder | None:
    """The run of this configuration if it was begun; another one in its folder is refused."""
    config.plain()  # what no file can hold is refused before anything is written
    if not (config.folder / "run.json").is_file():
        return None
    folder = RunFolder(config.folder)
    if folder.config.plain() != config.decided(like=folder.config).plain():
        raise UserError(f"out={str(config.folder)!r} holds another run; choose another folder or remove it")
    return folder


def continue_run(folder: RunFolder, watchers: Sequence[Watcher] = ()) -> RunFolder:
    """Continue a run from its last checkpoint, bitwise as if it had never stopped."""
    if folder.finished:
        return folder
    config = folder.config
    if config.at_silos:
        raise UserError(
            f"the run {str(folder.path)!r} is played with silos: continue it with `{folder.continuation}`, "
            "with the keys and the address that it began with"
        )
    federation = load_federation(config)
    if fingerprint(federation) != folder.facts()["data_sha256"]:
        raise UserError(
            f"the data {config.data['name']!r} changed since the run {str(folder.path)!r} began; "
            "start a new run in another folder"
        )
    return _begin(folder, build_simulation(config, federation), watchers)


def reported_simulation(folder: RunFolder) -> Simulation:
    """The simulation in the state whose numbers are reported; of a run between silos, without its clients."""
    config = folder.config
    simulation = build_simulation(config, folder.federation())
    place_states(simulation, config, folder.path)
    folder.restore_reported(simulation)
    return simulation


def summarise_run(
    metrics: pd.DataFrame,
    clients: pd.DataFrame,
    rounds: pd.DataFrame,
    task: Task,
    metric: Metric,
    method: Method,
    choice: Choice,
) -> dict[str, Any]:
    """The reported numbers of each model kind."""
    part = reported_part(metrics)
    by_kind = {}
    for kind in method.kinds:
        # Silos may tell nothing of their models.
        chosen = reported_round(metrics, kind, metric, choice) if len(metrics) else int(rounds["round"].max())
        values = reported_values(metrics, kind, metric.name, chosen)
        by_kind[kind] = {"round": chosen, **summarise(values, clients[part], metric)._asdict()}
    return {
        "task": task.kind,
        "metric": metric.name,
        "higher_is_better": metric.higher_is_better,
        "part": part,
        "chosen_by": choice,
        "judged_by": method.judged_by,
        "kinds": by_kind,
        "diverged": [kind for kind in method.kinds if _diverged(metrics, kind)],
        "down_bits": int(rounds["down_bits"].sum()),
        "up_bits": int(rounds["up_bits"].sum()),
        "brief_bits": int(rounds["brief_bits"].sum()),
    }


def _diverged(metrics: pd.DataFrame, kind: str) -> bool:
    """Whether some client's model ended with a loss that is not finite, which it was before training."""
    losses = metrics[(metrics.kind == kind) & (metrics.metric == "loss")]
    by_client = losses.set_index(["round", "client", "part"])["value"]
    rounds = by_client.index.unique("round")
    if not len(rounds):
        return False
    # A client without rows has no loss before training either; a silo may not have told its last one.
    before, after = by_client.loc[rounds.min()], by_client.loc[rounds.max()]
    after = after[after.index.isin(before.index[np.isfinite(before)])]
    return not np.isfinite(after.to_numpy()).all()


def _begin(folder: RunFolder, simulation: Simulation, watchers: Sequence[Watcher]) -> RunFolder:
    """Play a simulation from where its folder is."""
    place_states(simulation, folder.config, folder.path)
    folder.restore(simulation)
    return play(folder, simulation, watchers)


def play(folder: RunFolder, training: Training, watchers: Sequence[Watcher] = ()) -> RunFolder:
    """Play all rounds that are left of a run in its folder, and finish it."""
    config = folder.config
    assert config.threads is not None, "decided when the folder was made"
    torch.set_num_threads(config.threads)
    measures = config.evaluation.measures(training.federation.task)
    folder.log(f"{'started' if training.round == 0 else 'continued'} at round {training.round}")
    trackers = open_trackers(config.trackers, folder.path, training.round)
    try:
        play_rounds(training, config.pace, measures, folder, [*watchers, _Tracking(trackers)])
    finally:
        for tracker in trackers:
            tracker.close()
    summary = summarise_run(
        folder.metrics(),
        folder.clients(),
        folder.rounds(),
        training.federation.task,
        measures.main,
        training.method,
        config.evaluation.choose,
    )
    folder.finish(summary)
    folder.log(f"finished after round {training.round}")
    return folder


class _Tracking:
    """Hands the mean values of each evaluation to the trackers."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self.trackers = trackers

    def played(self, round_number: int) -> None:
        """Nothing to tell between evaluations."""

    def evaluated(self, round_number: int, metrics: pd.DataFrame) -> None:
        """Hand over the means."""
        if self.trackers:
            labels = metrics.kind + "/" + metrics.part + "/" + metrics.metric
            means = metrics["value"].groupby(labels).mean()
            values = {str(label): float(mean) for label, mean in means.items()}
            for tracker in self.trackers:
                tracker.log(round_number, values)
