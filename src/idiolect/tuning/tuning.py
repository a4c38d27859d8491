"""Methods tuned with the same budget on the same clients, rows, batches and initial models.

OUT/tuning.json         format, what was asked, what values are of, a fingerprint of the data
OUT/trials/             a file for each finished trial: METHOD-0000.json has the settings that are not tuned
OUT/best.yaml           the choice, as `idiolect compare` takes it
OUT/best-METHOD.yaml    the choice for one method, as `idiolect run` takes it
OUT/report.html         the page, if the extra `report` is installed
OUT/log.txt             tracebacks of trials that failed
"""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from idiolect.data.federation import Federation
from idiolect.errors import UserError
from idiolect.evaluation.metrics import Measures, label_of
from idiolect.methods.catalogue import find_method
from idiolect.runs.comparison import resolve_comparison
from idiolect.runs.config import RunConfig
from idiolect.runs.folder import fingerprint
from idiolect.runs.lifecycle import check
from idiolect.runs.lock import LOCK, alone_in
from idiolect.runs.settings import Settings, merge, write_settings
from idiolect.runs.setup import load_federation
from idiolect.runs.signatures import spelled_out
from idiolect.store.files import (
    clear_write_errors,
    read_json,
    remove_leftovers,
    write_bytes,
    write_json,
)
from idiolect.tuning.budget import Budget, read_budget
from idiolect.tuning.space import configured, space_of
from idiolect.tuning.study import MethodStudy, Told, best_trial, read_trials
from idiolect.tuning.trials import Trial, without_test_rows

FORMAT = "idiolect-tuning-1"
MARKER = "tuning.json"
PAGE = "report.html"
BEST = "best.yaml"


@dataclass(frozen=True)
class TuningConfig:
    """What is to be tuned, and how much."""

    configs: tuple[RunConfig, ...]  # one for each method
    given: Mapping[str, Settings]  # by method: what the user has decided about it
    shared: Settings  # what the user has decided for all of them, as plain data
    budget: Budget
    folder: Path

    @property
    def asked(self) -> Settings:
        """As settings that mean the same again, without the budget, which may grow."""
        methods = [config.method["name"] for config in self.configs]
        return {"methods": methods, **self.shared, **{name: own for name, own in self.given.items() if own}}

    @property
    def words(self) -> Settings:
        """The same with the budget."""
        seconds, trials = self.budget
        return {**self.asked, **({"trials": trials} if seconds is None else {"budget": f"{seconds}s"})}


def resolve_tuning(settings: Settings) -> TuningConfig:
    """What `methods=local,apfl budget=20m ...` asks for; the rest are settings of a comparison of one seed."""
    settings = dict(settings)
    budget = read_budget(settings)
    for name in ("budget", "trials"):
        settings.pop(name, None)
    if "seeds" in settings:
        raise UserError("seeds is not a setting of tune, which has one: give seed=1, and seeds to compare")
    configs = [replace(config, out=None) for config in resolve_comparison(settings).configs]
    given = {config.method_name: _given(config, settings) for config in configs}
    plain = configs[0].plain()
    # The split that is tuned on: in other seeds' splits its validation rows would be test rows.
    data = {"seed": configs[0].seed, **plain["data"]}
    shared = {name: plain[name] for name in plain if name in settings and name != "method"} | {"data": data}
    tuning = TuningConfig(tuple(configs), given, shared, budget, Path())
    return replace(tuning, folder=Path(settings.get("out") or _default_folder(tuning)))


def _given(config: RunConfig, settings: Settings) -> Settings:
    """What the user has decided about one method, by hyper-parameter."""
    kind = find_method(config.method["name"])
    own = spelled_out(kind, {**settings.get("method", {}), **settings.get(kind.name, {})})
    given = {name: config.method[name] for name in own if name in config.method}
    return given | ({"weight_decay": config.weight_decay} if "weight_decay" in own else {})


def _default_folder(tuning: TuningConfig) -> Path:
    """A name under runs/ that follows from what is tuned."""
    digest = hashlib.sha256(write_settings(tuning.words).encode()).hexdigest()[:8]
    return Path("runs") / f"{Path(tuning.configs[0].data_name).stem}-tune-{digest}"


class Tuning:
    """Reads the folder of a tuning."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not is_tuning(self.path):
            raise UserError(f"{str(path)!r} is not the folder of a tuning: it has no {MARKER}")
        self._content = read_json(self.path / MARKER)
        if self._content.get("format") != FORMAT:
            raise UserError(f"{str(path)!r} is a tuning of another format than {FORMAT}")
        self.methods: tuple[str, ...] = tuple(self._content["names"])
        self.metric: str = self._content["metric"]
        self.metric_label: str = self._content["metric_label"]
        self.higher_is_better: bool = self._content["higher_is_better"]
        self.asked: Settings = self._content["asked"]
        self.words: Settings = self._content["words"]

    @property
    def budget(self) -> Budget:
        """Of all methods together, in seconds; or of each, in trials."""
        return read_budget(self.words)

    def trials_of(self, method: str) -> list[Trial]:
        """The finished trials of a method, in their order; the first has the settings that are not tuned."""
        return read_trials(self.path / "trials", method, self.higher_is_better)

    def best_of(self, method: str) -> Trial | None:
        """The trial that is chosen for a method, if any was played to its end."""
        return best_trial(self.trials_of(method), self.higher_is_better)

    @property
    def best(self) -> dict[str, Settings]:
        """The chosen settings by method, with those that were given."""
        given = {name: self.asked.get(name, {}) for name in self.methods}
        found = {name: self.best_of(name) for name in self.methods}
        return {name: merge(given[name], trial.settings) for name, trial in found.items() if trial is not None}

    @property
    def settings(self) -> Settings:
        """The choice as `idiolect.compare` takes it; a method that failed is left out."""
        best = self.best
        shared = {name: value for name, value in self.asked.items() if name not in self.methods}
        names = dict(zip(self.methods, self.asked["methods"], strict=True))
        return {**shared, "methods": [names[name] for name in best], **best}

    def settings_of(self, method: str) -> Settings:
        """The choice for one method as `idiolect.run` takes it."""
        settings, section = self.settings, dict(self.best[method])
        full_name = dict(zip(self.methods, self.asked["methods"], strict=True))[method]
        of_run = {"weight_decay": section.pop("weight_decay")} if "weight_decay" in section else {}
        shared = {name: settings[name] for name in settings if name not in ("methods", *self.methods)}
        return {**shared, **of_run, "method": {"name": full_name, **section}}

    @property
    def trials(self) -> pd.DataFrame:
        """A row for each trial; `settings` are those of the method, `point` where in the space they are."""
        columns = [name for name in Trial._fields if name not in ("reported", "rungs")]
        rows = [[getattr(trial, c) for c in columns] for m in self.methods for trial in self.trials_of(m)]
        return pd.DataFrame(rows, columns=columns)

    @property
    def table(self) -> pd.DataFrame:
        """A row for each method: validation values without and with tuning, and how the budget was spent."""
        return pd.DataFrame([self._row(name) for name in self.methods])

    def _row(self, method: str) -> dict[str, Any]:
        trials, best = self.trials_of(method), self.best_of(method)
        states = [trial.state for trial in trials]
        default = trials[0] if trials else None
        return {
            "method": method,
            "default": default.value if default and default.state == "complete" else float("nan"),
            "default_state": default.state if default else "failed",
            "tuned": float("nan") if best is None else best.value,
            "chosen_trial": -1 if best is None else best.number,
            "round": -1 if best is None else best.round,
            "settings": {} if best is None else best.settings,
            "trials": len(trials),
            **{state: states.count(state) for state in ("complete", "stopped", "late", "diverged", "failed")},
            "rounds": sum(trial.rounds for trial in trials),
            "seconds": sum(trial.seconds for trial in trials),
        }

    @property
    def notes(self) -> list[str]:
        """What is to be known about the choice, in sentences."""
        return [note for name in self.methods for note in self._notes(name)]

    def _notes(self, method: str) -> list[str]:
        trials, best = self.trials_of(method), self.best_of(method)
        if best is None:
            last = trials[-1].reason if trials else "no trial was played"
            return [f"{method}: nothing was chosen: none of {len(trials)} trials came to its end; {last}"]
        notes = []
        if trials[0].state != "complete":
            notes.append(f"{method}: {trials[0].state} with the settings that are not tuned: {trials[0].reason}")
        if best.number == 0:
            notes.append(f"{method}: none of {len(trials)} trials was better than what is not tuned")
        if best.round == 0:
            notes.append(f"{method}: untrained: no round was better on validation rows than the first model")
        return notes

    @property
    def page(self) -> Path | None:
        """The report page, if one was written."""
        page = self.path / PAGE
        return page if page.is_file() else None


def is_tuning(folder: str | Path) -> bool:
    """Whether a folder holds a tuning."""
    return (Path(folder) / MARKER).is_file()


def tune_methods(config: TuningConfig, told: Told = lambda trial, share: None) -> Tuning:
    """Play the trials that are missing, and write the choice."""
    folder = config.folder
    if folder.exists() and not is_tuning(folder) and (not folder.is_dir() or set(os.listdir(folder)) - {LOCK}):
        raise UserError(f"out={str(folder)!r} exists and is not a tuning; choose another folder")
    federation = load_federation(config.configs[0])
    measures = _check(config, federation)
    with clear_write_errors(folder):
        (folder / "trials").mkdir(parents=True, exist_ok=True)
    with alone_in(folder):
        _require_same(config, federation)
        remove_leftovers(folder)
        _write_marker(config, federation, measures)
        seen = without_test_rows(federation)
        for run_config in config.configs:
            given = {*config.given[run_config.method_name], *config.shared}
            budget = config.budget.of_each(len(config.configs))
            space = space_of(run_config, given)
            MethodStudy(run_config, space, seen, measures, budget, folder / "trials").play(told)
        tuning = Tuning(folder)
        if not tuning.best:
            raise UserError(f"no trial of the tuning {str(folder)!r} came to its end; {tuning.notes[0]}")
        write_bytes(folder / BEST, write_settings(tuning.settings).encode())
        for name in tuning.best:
            text = write_settings(tuning.settings_of(name))
            write_bytes(folder / f"best-{name}.yaml", text.encode())
    return tuning


def _check(config: TuningConfig, federation: Federation) -> Measures:
    """Say what is wrong with the settings before anything is written or played."""
    if not len(federation.validation.index):
        raise UserError(
            "nobody has validation rows, which settings are chosen by: "
            "leave some, as data.fractions=[0.6,0.2,0.2]"
        )
    for run_config in config.configs:
        check(configured(run_config, {}, federation), federation)
    return config.configs[0].evaluation.measures(federation)


def _require_same(config: TuningConfig, federation: Federation) -> None:
    """Refuse a folder of other settings or other data."""
    if not is_tuning(config.folder):
        return
    begun = Tuning(config.folder)
    if begun.asked != config.asked:
        raise UserError(
            f"out={str(config.folder)!r} holds another tuning; choose another folder or remove it"
        )
    if read_json(config.folder / MARKER)["data_sha256"] != fingerprint(federation):
        raise UserError(
            f"the data {config.configs[0].data['name']!r} changed since the tuning {str(config.folder)!r} "
            "began; start a new one in another folder"
        )


def _write_marker(config: TuningConfig, federation: Federation, measures: Measures) -> None:
    content = {
        "format": FORMAT,
        "names": [run_config.method_name for run_config in config.configs],
        "asked": config.asked,
        "words": config.words,
        "metric": measures.main.name,
        "metric_label": label_of(measures.main.name, federation.task),
        "metric_reason": measures.reason,
        "higher_is_better": measures.main.higher_is_better,
        "data_name": config.configs[0].data_name,
        "clients": len(federation),
        "validation_rows": len(federation.validation.index),
        "data_sha256": fingerprint(federation),
    }
    write_json(config.folder / MARKER, content)
