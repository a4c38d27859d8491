"""Methods tuned with the same budget on the same clients, rows, batches and initial models.

OUT/tuning.json         format, what was asked, what values are of, a fingerprint of the data
OUT/trials/             a file for each finished trial: METHOD-0000.json has the settings that are not tuned
OUT/best.yaml           the choice, as `idiolect compare` takes it
OUT/best-METHOD.yaml    the choice for one method, as `idiolect run` takes it
OUT/report.html         the page, if the extra `report` is installed
OUT/log.txt             tracebacks of trials that failed
"""

from pathlib import Path
from typing import Any

import pandas as pd

from idiolect.errors import UserError
from idiolect.methods.catalogue import find_method
from idiolect.runs.settings import Settings, merge
from idiolect.runs.signatures import fields_of
from idiolect.store.files import read_json
from idiolect.tuning.budget import Budget, read_budget
from idiolect.tuning.study import best_trial, read_trials
from idiolect.tuning.trials import Trial

FORMAT = "idiolect-tuning-1"
MARKER = "tuning.json"
PAGE = "report.html"
BEST = "best.yaml"


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
        self.metric_reason: str = self._content["metric_reason"]
        self.data_name: str = self._content["data_name"]
        self.clients: int = self._content["clients"]
        self.validation_rows: int = self._content["validation_rows"]
        self.data_sha256: str = self._content["data_sha256"]
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
        return {
            name: merge(given[name], trial.settings) for name, trial in found.items() if trial is not None
        }

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
        hyper_parameters = fields_of(find_method(full_name))
        of_run = {name: section.pop(name) for name in list(section) if name not in hyper_parameters}
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
            notes.append(f"{method}: without tuning {trials[0].reason}")
        if best.number == 0:
            notes.append(f"{method}: {_why_untuned(trials)}")
        if best.round == 0:
            notes.append(f"{method}: untrained: no round was better on validation rows than the first model")
        return notes

    @property
    def page(self) -> Path | None:
        """The report page, if one was written."""
        page = self.path / PAGE
        return page if page.is_file() else None


def _why_untuned(trials: list[Trial]) -> str:
    if not trials[0].settings:
        return "nothing was left to be tuned"
    if len(trials) == 1:
        return "only the settings that are not tuned were played: a larger budget tries others"
    return f"none of {len(trials)} trials was better than what is not tuned"


def is_tuning(folder: str | Path) -> bool:
    """Whether a folder holds a tuning."""
    return (Path(folder) / MARKER).is_file()
