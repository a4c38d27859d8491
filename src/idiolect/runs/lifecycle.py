"""A run from its configuration to its finished folder."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
import torch

from idiolect.core.device import is_here
from idiolect.data.federation import Federation, fingerprint
from idiolect.errors import UserError
from idiolect.evaluation.metrics import Measures
from idiolect.runs.config import RunConfig
from idiolect.runs.decisions import decide
from idiolect.runs.folder import RunFolder
from idiolect.runs.identity import identity
from idiolect.runs.lock import alone_in, creating_in
from idiolect.runs.newcomers import meet_newcomers, most_of_newcomers, newcomer_numbers, newcomers_spend
from idiolect.runs.predictions import keep_predictions
from idiolect.runs.privacy import ledger_of, spent_in_all
from idiolect.runs.rounds import Training, Watcher, play_rounds
from idiolect.runs.run_summary import summarise_run
from idiolect.runs.setup import build_simulation, load_parties, place_states
from idiolect.simulation import Simulation
from idiolect.trackers import Tracker, open_trackers

# Who is to be told what happens in a run, once its configuration is known.
Watch = Callable[[RunConfig], Sequence[Watcher]]


def nobody(config: RunConfig) -> Sequence[Watcher]:
    """Nobody watches the run."""
    return ()


def start_or_continue(config: RunConfig, watch: Watch = nobody) -> RunFolder:
    """Run a configuration in its folder; a folder of the same run is continued where it stopped."""
    begun = find_run(config)
    if begun is not None:
        return continue_run(begun, watch)
    federation, newcomers = load_parties(config)
    decision = decide(config, federation)
    simulation = check(decision.config, federation)
    if newcomers is not None:
        refuse_newcomers(decision.config, simulation, newcomers)
    with creating_in(config.folder.parent):
        folder = find_run(config)  # another process may have been faster
        folder = folder or RunFolder.create(
            config.folder,
            decision.config,
            federation,
            asked=config.plain(),
            notes=decision.notes,
            way=simulation.way,
        )
    return _begin(folder, simulation, watch, newcomers)


def check(config: RunConfig, federation: Federation) -> Simulation:
    """What is to be played; what is wrong with the settings is said before a folder is made."""
    config.evaluation.measures(federation)
    return build_simulation(config, federation)


def refuse_newcomers(config: RunConfig, simulation: Simulation, newcomers: Federation) -> None:
    """Refuse those who would spend too much, or whose training looks at rows as they are; before a run."""
    trainings = len(simulation.method.kinds) if config.evaluation.choose == "validation" else 1
    newcomers_spend(simulation, newcomers, config.newcomers.steps, trainings=trainings, alone=True)


def find_run(config: RunConfig) -> RunFolder | None:
    """The run of this configuration if it was begun; another one in its folder is refused."""
    own = config.identity()  # what no file can hold is refused before anything is written
    if not (config.folder / "run.json").is_file():
        return None
    folder = RunFolder(config.folder)
    # The same words as before, or what they became: the run's own config.yaml.
    if own not in (identity(folder.facts().get("asked") or {}), folder.config.identity()):
        raise UserError(f"out={str(config.folder)!r} holds another run; choose another folder or remove it")
    return folder


def continue_run(folder: RunFolder, watch: Watch = nobody) -> RunFolder:
    """Continue a run from its last checkpoint, bitwise as if it had never stopped."""
    if folder.finished:
        return folder
    config = folder.config
    if config.at_silos:
        raise UserError(
            f"the run {str(folder.path)!r} is played with silos: continue it with `{folder.continuation}`, "
            "with the keys and the address that it began with"
        )
    federation, newcomers = load_parties(config)
    if fingerprint(federation) != folder.facts()["data_sha256"]:
        raise UserError(
            f"the data {config.data['name']!r} changed since the run {str(folder.path)!r} began; "
            "start a new run in another folder"
        )
    folder.require_same_weights()
    simulation = build_simulation(config, federation, folder.way)
    folder.keep_way(simulation.way)
    return _begin(folder, simulation, watch, newcomers)


def reported_simulation(folder: RunFolder, kind: str | None = None) -> Simulation:
    """The simulation in the state whose numbers are reported for a kind, or for the one judged by.

    Of a run between silos it is without its clients.
    """
    config = folder.config
    if not is_here(config.device):  # models are the same everywhere
        config = replace(config, device="cpu")
    folder.require_same_weights()
    simulation = build_simulation(config, folder.federation(), folder.way)
    place_states(simulation, config, folder.path)
    # Whoever asks for a kind that there is not is told by what looks for the model.
    folder.restore_reported(simulation, kind if kind in simulation.method.kinds else None)
    return simulation


def _begin(
    folder: RunFolder, simulation: Simulation, watch: Watch, newcomers: Federation | None
) -> RunFolder:
    """Play a simulation from where its folder is."""
    with alone_in(folder.path):
        if not folder.finished:
            place_states(simulation, folder.config, folder.path)
            folder.restore(simulation)
            play(folder, simulation, watch(folder.config), newcomers)
    return folder


def play(
    folder: RunFolder,
    training: Training,
    watchers: Sequence[Watcher] = (),
    newcomers: Federation | None = None,
) -> RunFolder:
    """Play all rounds that are left of a run in its folder, meet those who come after it, and finish it."""
    config = folder.config
    assert config.threads is not None, "decided when the folder was made"
    torch.set_num_threads(config.threads)
    measures = config.evaluation.measures(training.federation)
    folder.log(f"{'started' if training.round == 0 else 'continued'} at round {training.round}")
    ledger = ledger_of(training, config.privacy, folder.privacy())
    trackers = open_trackers(config.trackers, folder.path, training.round)
    try:
        told = [*watchers, _Tracking(trackers)]
        broke_off = play_rounds(
            training, config.pace, measures, folder, told, config.evaluation.choose, ledger
        )
    finally:
        for tracker in trackers:
            tracker.close()
    summary = summarise_run(
        folder.metrics(),
        folder.clients(),
        folder.rounds(),
        training.federation.task,
        measures,
        training.method,
        config.evaluation.choose,
        broke_off,
    )
    ended = broke_off.reason if broke_off else f"finished after round {training.round}"
    if ledger is not None and config.privacy is not None:
        summary["privacy"] = spent_in_all(config.privacy, folder.privacy())
    if isinstance(training, Simulation):  # silos keep their rows to themselves
        keep_predictions(folder, training, summary)
        if newcomers is not None:
            summary["newcomers"] = _meet(folder, training, newcomers, summary, measures)
            if "privacy" in summary:
                summary["privacy"]["newcomers_epsilon"] = most_of_newcomers(
                    training, newcomers, config.newcomers.steps, summary
                )
    folder.finish(summary)
    folder.log(ended)
    return folder


def _meet(
    folder: RunFolder,
    simulation: Simulation,
    newcomers: Federation,
    summary: Mapping[str, Any],
    measures: Measures,
) -> dict[str, Any]:
    """Keep what the run gives to newcomers; the numbers of it that the summary has."""
    met = meet_newcomers(
        simulation,
        newcomers,
        folder.config.newcomers.steps,
        summary,
        measures,
        lambda number: folder.restore_round(simulation, number),
    )
    folder.keep_newcomers(met)
    return newcomer_numbers(met, summary)


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
