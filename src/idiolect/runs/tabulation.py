"""The table of a comparison: a row for each method and model kind, with gains over the two baselines."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from idiolect.errors import UserError
from idiolect.evaluation.gain import count_gains, gains
from idiolect.evaluation.summary import reported_values
from idiolect.methods.catalogue import CATALOGUE as METHODS
from idiolect.methods.catalogue import find_method
from idiolect.runs.folder import RunFolder
from idiolect.runs.reported import ALONE, SHARED, Model

FLAGS = ("diverged", "untrained", "still_improving")
_NO_NUMBERS = ("method", "kind", "metric", "higher_is_better", "part", "seed", *FLAGS)


def model_name(method: str, kind: str) -> str:
    """How one of a method's models is called in tables and on pages."""
    return str(Model(method, kind))


def client_values(runs: Sequence[RunFolder]) -> pd.DataFrame:
    """The reported values, means over seeds: a row for each client, a column for each model."""
    tables = []
    for run in runs:
        values, method = run.client_values(), run.config.method_name
        tables.append(values.set_axis([model_name(method, str(kind)) for kind in values], axis=1))
    together = pd.concat(tables, axis=1)
    return together.T.groupby(level=0, sort=False).mean().T


def tabulate(runs: Sequence[RunFolder]) -> pd.DataFrame:
    """A row for each method and model kind, with mean and standard deviation over seeds.

    Numbers, those of clients too, are means over seeds. What a row must not be read without is true if it is
    so for some seed: `diverged`, `untrained`, `still_improving`.
    """
    refuse_namesakes([run.config.method["name"] for run in runs])
    metrics = list(dict.fromkeys(run.summary()["metric"] for run in runs))
    if len(metrics) > 1:
        raise UserError(
            f"the runs are reported by different metrics: {' and '.join(metrics)}; "
            f"choose one with evaluation.metric={metrics[0]}"
        )
    by_seed: dict[int, list[RunFolder]] = {}
    for run in runs:
        by_seed.setdefault(run.config.seed, []).append(run)
    rows = [row for same_seed in by_seed.values() for row in _rows_of_seed(same_seed)]
    table = pd.DataFrame(rows)
    order = list(dict.fromkeys(zip(table.method, table.kind, strict=True)))
    grouped = table.groupby(["method", "kind"], sort=False)
    numbers = [c for c in table.columns if c not in _NO_NUMBERS]
    result = grouped[numbers].mean()
    result.insert(1, "std_over_seeds", grouped["mean"].std(ddof=1))
    result.insert(0, "metric", grouped["metric"].first())
    result.insert(0, "part", grouped["part"].first())
    for flag in FLAGS:
        result[flag] = grouped[flag].any()
    result["seeds"] = grouped.size()
    return result.loc[order].reset_index()


def _rows_of_seed(runs: Sequence[RunFolder]) -> list[dict[str, Any]]:
    """The numbers of each method and kind for one seed, with gains over the two baselines."""
    values: dict[tuple[str, str], pd.Series[float]] = {}
    rows = []
    for run in runs:
        summary, metrics = run.summary(), run.metrics()
        for kind, numbers in summary["kinds"].items():
            method = run.config.method_name
            values[method, kind] = reported_values(metrics, kind, summary["metric"], numbers["round"])
            rows.append(
                {
                    "method": method,
                    "kind": kind,
                    "metric": summary["metric"],
                    "higher_is_better": summary["higher_is_better"],
                    "part": summary["part"],
                    "seed": run.config.seed,
                    **{name: value for name, value in numbers.items() if name not in ("failed", "diverged")},
                    "diverged": kind in summary["diverged"],
                    "down_bits": summary["down_bits"],
                    "up_bits": summary["up_bits"],
                }
            )
    for row in rows:
        own = values[row["method"], row["kind"]]
        for name, baseline in (("alone", ALONE), ("shared", SHARED)):
            comparable = baseline in values and baseline != (row["method"], row["kind"])
            higher = row["higher_is_better"]
            gain = gains(own, values[baseline], higher_is_better=higher) if comparable else None
            row[f"gain_over_{name}"] = float("nan") if gain is None else count_gains(gain).better
            row[f"lose_to_{name}"] = float("nan") if gain is None else count_gains(gain).worse
    return rows


def refuse_namesakes(written: Sequence[str]) -> None:
    """Refuse different methods that call themselves by one name, which tables could not tell apart."""
    first: dict[str, str] = {}
    for full_name in map(METHODS.spelled, written):
        kind = find_method(full_name)
        other = first.setdefault(kind.name, full_name)
        if find_method(other) is not kind:
            raise UserError(
                f"{other} and {full_name} are different methods that are both called {kind.name!r}; "
                "give one of the classes another name"
            )
