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
from idiolect.runs.rounds import Watcher, play_rounds
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
    folder = RunFolder.create(config.folder, config, federation)
    return _play(folder, folder.config, simulation, watchers)


def find_run(config: RunConfig) -> RunFolder | None:
    """The run of this configuration if it was begun; another one in its folder is refused."""
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
    federation = load_federation(config)
    if fingerprint(federation) != folder.facts()["data_sha256"]:
        raise UserError(
            f"the data {config.data['name']!r} changed since the run {str(folder.path)!r} began; "
            "start a new run in another folder"
        )
    return _play(folder, config, build_simulation(config, federation), watchers)


def reported_simulation(folder: RunFolder) -> Simulation:
    """The simulation in the state whose numbers are reported."""
    config = folder.config
    simulation = build_simulation(config, load_federation(config))
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
        chosen = reported_round(metrics, kind, metric, choice)
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
    }


def _diverged(metrics: pd.DataFrame, kind: str) -> bool:
    """Whether some client's model ended with a loss that is not finite on rows that it has."""
    before = metrics[(metrics["round"] == 0) & (metrics.kind == kind) & (metrics.metric == "loss")]
    last = metrics["round"].max()
    after = metrics[(metrics["round"] == last) & (metrics.kind == kind) & (metrics.metric == "loss")]
    # A client without rows has no loss before training either.
    return bool(np.isfinite(before["value"].to_numpy()).sum() > np.isfinite(after["value"].to_numpy()).sum())


def _play(
    folder: RunFolder, config: RunConfig, simulation: Simulation, watchers: Sequence[Watcher]
) -> RunFolder:
    assert config.threads is not None, "decided when the folder was made"
    torch.set_num_threads(config.threads)
    place_states(simulation, config, folder.path)
    folder.restore(simulation)
    measures = config.evaluation.measures(simulation.federation.task)
    folder.log(f"{'started' if simulation.round == 0 else 'continued'} at round {simulation.round}")
    trackers = open_trackers(config.trackers, folder.path, simulation.round)
    try:
        play_rounds(simulation, config.pace, measures, folder, [*watchers, _Tracking(trackers)])
    finally:
        for tracker in trackers:
            tracker.close()
    summary = summarise_run(
        folder.metrics(),
        folder.clients(),
        folder.rounds(),
        simulation.federation.task,
        measures.main,
        simulation.method,
        config.evaluation.choose,
    )
    folder.finish(summary)
    folder.log(f"finished after round {simulation.round}")
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
