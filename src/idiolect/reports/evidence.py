"""What a report shows, taken from run folders as plain tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from idiolect.errors import UserError
from idiolect.reports.averages import BITS_PER_MEGABYTE, curves_of
from idiolect.runs.comparison import Comparison, Failure, open_folder, runs_of
from idiolect.runs.folder import RunFolder
from idiolect.runs.gains import GainTables, measure_gains
from idiolect.runs.summed import is_summed
from idiolect.runs.tabulation import client_values, model_name, tabulate


@dataclass(frozen=True)
class Evidence:
    """The tables behind a page. A model is a method and a kind, as "apfl personal"."""

    runs: tuple[RunFolder, ...]
    table: pd.DataFrame  # a row for each model: what `idiolect compare` prints
    curves: pd.DataFrame  # model, round, megabytes, seconds, value, low, high: means over clients and seeds
    clients: pd.DataFrame  # a row for each client, a column for each model; means over seeds
    traffic: pd.DataFrame  # method, direction, part, megabytes of a whole run; means over seeds
    metric: str
    metric_label: str  # how it is called for people
    metric_reason: str  # why it is not the usual one, if it is not
    higher_is_better: bool
    part: str
    judged_by: dict[str, str]  # method -> model kind
    failures: tuple[Failure, ...] = ()  # runs that ended with an error
    gains: GainTables | None = None  # of runs on the same rows

    @property
    def judged(self) -> list[str]:
        """The models that the methods are judged by, and the shared model to compare them with."""
        names = [model_name(m, self.judged_by[m]) for m in dict.fromkeys(self.table.method)]
        shared = [
            model_name(m, k) for m, k in zip(self.table.method, self.table.kind, strict=True) if k == "global"
        ]
        return list(dict.fromkeys([*names, *shared[:1]]))


def gather(folders: Sequence[Path]) -> Evidence:
    """Read all runs of some folders (runs or comparisons) that have metrics of clients."""
    found = [open_folder(folder) for folder in folders]
    runs = tuple(run for each in found for run in runs_of(each) if not is_summed(run))
    if not runs:
        raise UserError(f"{str(folders[0])!r} has nothing to report: none of its runs is finished")
    summaries = [run.summary() for run in runs]
    metric = summaries[0]["metric"]
    judged_by: dict[str, str] = {}
    for run, summary in zip(runs, summaries, strict=True):
        judged_by[run.config.method_name] = summary["judged_by"]
    return Evidence(
        runs,
        tabulate(runs),
        curves_of(runs, metric),
        client_values(runs),
        _traffic(runs),
        metric,
        summaries[0]["metric_label"],
        summaries[0]["metric_reason"],
        summaries[0]["higher_is_better"],
        summaries[0]["part"],
        judged_by,
        tuple(failure for each in found if isinstance(each, Comparison) for failure in each.failures),
        _gains(found, runs),
    )


def _gains(found: Sequence[RunFolder | Comparison], runs: Sequence[RunFolder]) -> GainTables | None:
    """Those of one comparison, or of runs that could be one."""
    if len(found) == 1 and isinstance(found[0], Comparison):
        return found[0].gain_tables
    named = [(run.config.method_name, run.config.seed) for run in runs]
    digests = {(run.config.seed, run.facts()["data_sha256"]) for run in runs}
    data = {(seed, digest) for seed, digest in digests if digest is not None}  # that of silos is not known
    if len(set(named)) < len(named) or len(data) > len({seed for seed, _ in data}):
        return None  # namesakes, or other rows
    return measure_gains(runs)


def _traffic(runs: Sequence[RunFolder]) -> pd.DataFrame:
    tables = [
        run.traffic().assign(method=run.config.method_name, run=place) for place, run in enumerate(runs)
    ]
    by_run = pd.concat(tables).groupby(["method", "direction", "part", "run"], sort=False)["bits"].sum()
    megabytes = by_run.groupby(["method", "direction", "part"], sort=False).mean() / BITS_PER_MEGABYTE
    return megabytes.rename("megabytes").reset_index()
