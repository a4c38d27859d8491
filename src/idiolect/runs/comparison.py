"""Several methods on the same clients, rows, batches and initial models, for several seeds.

OUT/comparison.json     format, methods, seeds, folders and configurations of the runs, why some failed
OUT/table.parquet       a row for each method and model kind: what `idiolect compare` prints
OUT/gains.parquet       each client's gain under each model, with intervals (see `gains.py`)
OUT/gain-summary.parquet    who gains, under each model
OUT/choices.parquet     the model that each client keeps by its validation rows (see `choice.py`)
OUT/METHOD-seedN/       the runs
OUT/report.html         the report page, if the extra `report` is installed
OUT/log.txt             tracebacks of runs that failed before they had a folder
"""

import hashlib
import os
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from idiolect.errors import UserError
from idiolect.methods.catalogue import find_method
from idiolect.runs.choice import Kept, kept_by
from idiolect.runs.client_model import client_number
from idiolect.runs.config import RunConfig, resolve
from idiolect.runs.folder import RunFolder
from idiolect.runs.gains import GainTables, measure_gains
from idiolect.runs.lifecycle import Watch, check, find_run, nobody, start_or_continue
from idiolect.runs.lock import LOCK, alone_in
from idiolect.runs.reported import CHOSEN
from idiolect.runs.settings import Settings, merge, parse_settings, write_settings
from idiolect.runs.setup import load_federation
from idiolect.runs.signatures import alias_of, fields_of
from idiolect.runs.tabulation import client_values, refuse_namesakes, tabulate
from idiolect.store.files import clear_write_errors, read_json, read_parquet, write_json, write_parquet

FORMAT = "idiolect-comparison-1"
PAGE = "report.html"
GAIN_FILES = ("gains.parquet", "gain-summary.parquet", "choices.parquet")
OWN_OF_RUN = ("weight_decay",)  # settings of a run that a method can have its own of


@dataclass(frozen=True)
class ComparisonConfig:
    """The runs of a comparison: one for each method and seed."""

    configs: tuple[RunConfig, ...]
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    folder: Path


class Failure(NamedTuple):
    """A run that ended with an error."""

    run: str  # the name of its folder
    method: str
    seed: int
    reason: str


class Comparison:
    """Reads a comparison's folder."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        marker = self.path / "comparison.json"
        if not marker.is_file():
            raise UserError(f"{str(path)!r} is not the folder of a comparison: it has no comparison.json")
        self._content = read_json(marker)
        if self._content.get("format") != FORMAT:
            raise UserError(f"{str(path)!r} is a comparison of another format than {FORMAT}")
        begun = [self.path / name for name in self._content["runs"] if (self.path / name).is_dir()]
        self.runs = tuple(run for run in map(RunFolder, begun) if run.finished)

    @property
    def failures(self) -> tuple[Failure, ...]:
        """The runs that ended with an error, and with which."""
        finished = {run.path.name for run in self.runs}
        return tuple(
            Failure(failed["run"], failed["method"], failed["seed"], failed["reason"])
            for failed in self._content.get("failed", [])
            if failed["run"] not in finished
        )

    def require_finished(self) -> None:
        """Say that some runs are neither finished nor failed."""
        ended = len(self.runs) + len(self.failures)
        if ended < len(self._content["runs"]):
            raise UserError(
                f"the comparison {str(self.path)!r} is not finished: {ended} of its "
                f"{len(self._content['runs'])} runs are; continue it with `idiolect resume {self.path}`"
            )
        if not self.runs:
            raise UserError(_all_failed(self.path, self.failures))

    @property
    def config(self) -> ComparisonConfig:
        """The runs that there are to be."""
        configs = tuple(
            replace(resolve(parse_settings(text, name)), out=str(self.path / name))
            for name, text in self._content.get("configs", {}).items()
        )
        if not configs:
            raise UserError(
                f"{str(self.path)!r} does not say what to compare: give the `compare` command again"
            )
        content = self._content
        return ComparisonConfig(configs, tuple(content["methods"]), tuple(content["seeds"]), self.path)

    @property
    def table(self) -> pd.DataFrame:
        """A row for each method and model kind: what `idiolect compare` prints."""
        return tabulate(self.runs)

    @property
    def page(self) -> Path | None:
        """The report page, if one was written."""
        page = self.path / PAGE
        return page if page.is_file() else None

    def gains(self) -> pd.DataFrame:
        """Each client's gain under each model over training alone and over the shared one, with intervals."""
        return self.gain_tables.clients

    def gain_summary(self) -> pd.DataFrame:
        """Who gains, loses and is within noise: a row for each model and what it is compared with."""
        return self.gain_tables.models

    def choices(self) -> pd.DataFrame:
        """The model that each client keeps, by its own validation rows, under each method and seed."""
        return self.gain_tables.choices

    def kept_by(self, client: str) -> Kept:
        """The model that a client takes home: the one that it chose by its own validation rows."""
        made = self.choices()
        if made.empty:
            raise UserError(
                f"--kind {CHOSEN} is not possible: clients choose between training alone and another method, "
                f"by validation rows, and {str(self.path)!r} lacks these or finished runs of both; compare "
                "methods=local,fedavg,apfl"
            )
        client_number(client, tuple(made.client.unique()))  # says who there is
        return kept_by(made, client, higher_is_better=self.runs[0].summary()["higher_is_better"])

    def run_of(self, method: str, seed: int) -> RunFolder:
        """One of the finished runs."""
        return next(run for run in self.runs if (run.config.method_name, run.config.seed) == (method, seed))

    @cached_property
    def gain_tables(self) -> GainTables:
        """All that is known of gains; measured once, when the comparison is made."""
        files = [self.path / name for name in GAIN_FILES]
        if not all(file.is_file() for file in files):
            return measure_gains(self.runs)
        return GainTables(*map(read_parquet, files))

    def keep_tables(self) -> None:
        """Write what was measured into the folder."""
        write_parquet(self.path / "table.parquet", self.table)
        for name in GAIN_FILES:  # of other runs, if some were missing
            (self.path / name).unlink(missing_ok=True)
        measured = self.gain_tables
        for name, table in zip(
            GAIN_FILES, (measured.clients, measured.models, measured.choices), strict=True
        ):
            write_parquet(self.path / name, table)

    def client_values(self) -> pd.DataFrame:
        """The reported values: a row for each client, a column for each method and model kind."""
        return client_values(self.runs)


def resolve_comparison(settings: Settings) -> ComparisonConfig:
    """The runs of `methods=local,fedavg,apfl seeds=5 ...`.

    `method.*` settings go to every method that has them; `apfl.mixing=0.5` goes to one, and so can
    `apfl.weight_decay=0.01`.
    """
    settings = dict(settings)
    if "method" in settings and "name" in settings["method"]:
        raise UserError("method=... is for one run; a comparison takes methods=local,fedavg,apfl")
    written = _listed(settings.pop("methods", None), "methods")
    kinds = [find_method(name) for name in written]
    names = tuple(kind.name for kind in kinds)
    if len(set(kinds)) < len(kinds):
        raise UserError(f"methods={','.join(written)} names a method twice")
    refuse_namesakes(written)
    seeds = read_seeds(settings.pop("seeds", 1), settings.get("seed", 0))
    own = {name: settings.pop(name, {}) for name in names}
    for name, options in own.items():
        if not isinstance(options, Mapping):
            raise UserError(f"{name}={options} is not possible: give its settings, as {name}.local_steps=5")
        own[name] = dict(options)
    shared = settings.pop("method", {})
    known = {kind.name: method_options(kind) for kind in kinds}
    for option in shared:
        if not any(option in options for options in known.values()):
            raise UserError(f"method.{option} is not a setting of any of {', '.join(names)}")
    configs = []
    for name, full_name in zip(names, written, strict=True):
        common = {option: value for option, value in shared.items() if option in known[name]}
        of_run = {
            key: own[name].pop(key) for key in OWN_OF_RUN if key in own[name] and key not in known[name]
        }
        method = {**common, **own[name], "name": full_name}
        config = resolve(merge({**settings, **of_run}, {"method": method}))
        configs += [replace(config, seed=seed) for seed in seeds]
    folder = Path(configs[0].out or _default_folder(configs))
    configs = [replace(c, out=str(folder / f"{c.method_name}-seed{c.seed}")) for c in configs]
    return ComparisonConfig(tuple(configs), names, seeds, folder)


def compare_methods(config: ComparisonConfig, watch: Watch = nobody) -> Comparison:
    """Make the runs that are missing, continue those that were stopped or failed, and tabulate them all.

    A run that fails does not take the others with it: its reason is kept, and it is tried again next time.
    """
    folder = config.folder
    marker = folder / "comparison.json"
    if folder.exists() and not marker.is_file() and (not folder.is_dir() or set(os.listdir(folder)) - {LOCK}):
        raise UserError(f"out={str(folder)!r} exists and is not a comparison; choose another folder")
    _check(config)
    with clear_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with alone_in(folder):
        failures: list[Failure] = []
        _write(marker, config, failures)
        for run_config in config.configs:
            try:
                start_or_continue(run_config, watch)
            except Exception as error:
                failures.append(_failure(run_config, error))
                _log(run_config.folder if run_config.folder.is_dir() else folder, error)
                _write(marker, config, failures)
        if len(failures) == len(config.configs):
            raise UserError(_all_failed(folder, failures))
        comparison = Comparison(folder)
        comparison.keep_tables()
    return comparison


def _check(config: ComparisonConfig) -> None:
    """Say what is wrong with the settings before anything is written or played."""
    fresh = [run_config for run_config in config.configs if find_run(run_config) is None]
    fresh = [run_config for run_config in fresh if run_config.seed == fresh[0].seed]
    if fresh:
        federation = load_federation(fresh[0])
        for run_config in fresh:
            check(run_config, federation)


def _write(marker: Path, config: ComparisonConfig, failures: Sequence[Failure]) -> None:
    content = {
        "format": FORMAT,
        "methods": config.methods,
        "seeds": config.seeds,
        "runs": [run_config.folder.name for run_config in config.configs],
        "failed": [failure._asdict() for failure in failures],
        "configs": {run_config.folder.name: run_config.to_yaml() for run_config in config.configs},
    }
    write_json(marker, content)


def _failure(config: RunConfig, error: Exception) -> Failure:
    said = " ".join(str(error).split())
    reason = said if isinstance(error, UserError) else f"{type(error).__name__}: {said}"
    return Failure(config.folder.name, config.method_name, config.seed, reason)


def _log(folder: Path, error: Exception) -> None:
    path = folder / "log.txt"
    with clear_write_errors(path), path.open("a", encoding="utf-8") as file:
        file.write("".join(traceback.format_exception(error)))


def _all_failed(folder: Path, failures: Sequence[Failure]) -> str:
    first = failures[0]
    return (
        f"all {len(failures)} runs of the comparison {str(folder)!r} failed, the first one ({first.method}, "
        f"seed {first.seed}) with: {first.reason}; the whole errors are in the log.txt of each run's folder"
    )


def open_folder(path: str | Path) -> RunFolder | Comparison:
    """The run or the comparison that is in a folder."""
    return Comparison(path) if (Path(path) / "comparison.json").is_file() else RunFolder(path)


def runs_of(results: RunFolder | Comparison) -> tuple[RunFolder, ...]:
    """The runs of a comparison, or the one run."""
    return results.runs if isinstance(results, Comparison) else (results,)


def _default_folder(configs: Sequence[RunConfig]) -> Path:
    """A name under runs/ that follows from what is compared."""
    words = "".join(write_settings(config.identity()) for config in configs)
    digest = hashlib.sha256(words.encode()).hexdigest()[:8]
    return Path("runs") / f"{Path(configs[0].data_name).stem}-compare-{digest}"


def method_options(kind: type) -> set[str]:
    """The settings that a method has, with their short names."""
    fields = fields_of(kind)
    return set(fields) | {alias for field in fields.values() if (alias := alias_of(field))}


def _listed(value: Any, name: str) -> list[str]:
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list) or not items or not all(isinstance(i, str) and i.strip() for i in items):
        shown = "missing" if value is None else f"{value}, which is not possible"
        raise UserError(f"{name} is {shown}: give it as {name}=local,fedavg,apfl")
    return [item.strip() for item in items]


def read_seeds(value: Any, first: Any = 0) -> tuple[int, ...]:
    """A number of seeds, or the seeds themselves."""
    if isinstance(value, str) and all(part.strip().isdigit() for part in value.split(",")):
        numbers = [int(part) for part in value.split(",")]
        value = numbers if "," in value else numbers[0]
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1 and isinstance(first, int):
        return tuple(range(first, first + value))
    if isinstance(value, list) and value and all(isinstance(s, int) and s >= 0 for s in value):
        if len(set(value)) < len(value):
            shown = ",".join(map(str, value))
            raise UserError(f"seeds={shown} is not possible: a seed that is played twice says nothing new")
        return tuple(value)
    raise UserError(f"seeds={value} is not possible: give how many, as seeds=5, or which, as seeds=0,1,7")
