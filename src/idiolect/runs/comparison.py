"""Several methods on the same clients, rows, batches and initial models, for several seeds.

OUT/comparison.json     format, metric, methods, seeds and the folders of the runs
OUT/table.parquet       a row for each method and model kind: what `idiolect compare` prints
OUT/METHOD-seedN/       the runs
OUT/report.html         the report page, if the extra `report` is installed
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from idiolect.errors import UserError
from idiolect.evaluation.gain import count_gains, gains
from idiolect.evaluation.summary import reported_values
from idiolect.methods.catalogue import CATALOGUE as METHODS
from idiolect.methods.catalogue import find_method
from idiolect.runs.config import RunConfig, resolve
from idiolect.runs.folder import RunFolder
from idiolect.runs.lifecycle import Watch, find_run, nobody, start_or_continue
from idiolect.runs.settings import Settings, merge
from idiolect.runs.signatures import alias_of, fields_of
from idiolect.store.files import clear_write_errors, read_json, write_json, write_parquet

FORMAT = "idiolect-comparison-1"
PAGE = "report.html"
ALONE = ("local", "personal")  # the baseline "training alone"
SHARED = ("fedavg", "global")  # the baseline "one shared model"
_NO_NUMBERS = ("method", "kind", "metric", "higher_is_better", "part", "seed")


@dataclass(frozen=True)
class ComparisonConfig:
    """The runs of a comparison: one for each method and seed."""

    configs: tuple[RunConfig, ...]
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    folder: Path


class Comparison:
    """Reads a comparison's folder."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        marker = self.path / "comparison.json"
        if not marker.is_file():
            raise UserError(f"{str(path)!r} is not the folder of a comparison: it has no comparison.json")
        content = read_json(marker)
        if content.get("format") != FORMAT:
            raise UserError(f"{str(path)!r} is a comparison of another format than {FORMAT}")
        self.runs = tuple(RunFolder(self.path / name) for name in content["runs"])

    @property
    def table(self) -> pd.DataFrame:
        """A row for each method and model kind: what `idiolect compare` prints."""
        return tabulate(self.runs)

    @property
    def page(self) -> Path | None:
        """The report page, if one was written."""
        page = self.path / PAGE
        return page if page.is_file() else None

    def client_values(self) -> pd.DataFrame:
        """The reported values: a row for each client, a column for each method and model kind."""
        return client_values(self.runs)


def resolve_comparison(settings: Settings) -> ComparisonConfig:
    """The runs of `methods=local,fedavg,apfl seeds=5 ...`.

    `method.*` settings go to every method that has them; `apfl.mixing=0.5` goes to one.
    """
    settings = dict(settings)
    if "method" in settings and "name" in settings["method"]:
        raise UserError("method=... is for one run; a comparison takes methods=local,fedavg,apfl")
    written = _listed(settings.pop("methods", None), "methods")
    kinds = [find_method(name) for name in written]
    names = tuple(kind.name for kind in kinds)
    if len(set(kinds)) < len(kinds):
        raise UserError(f"methods={','.join(written)} names a method twice")
    _refuse_namesakes(written)
    seeds = _seeds(settings.pop("seeds", 1), settings.get("seed", 0))
    own = {name: settings.pop(name, {}) for name in names}
    for name, options in own.items():
        if not isinstance(options, Mapping):
            raise UserError(f"{name}={options} is not possible: give its settings, as {name}.local_steps=5")
    shared = settings.pop("method", {})
    known = {kind.name: _option_names(kind) for kind in kinds}
    for option in shared:
        if not any(option in options for options in known.values()):
            raise UserError(f"method.{option} is not a setting of any of {', '.join(names)}")
    configs = []
    for name, full_name in zip(names, written, strict=True):
        common = {option: value for option, value in shared.items() if option in known[name]}
        config = resolve(merge(settings, {"method": {**common, **own[name], "name": full_name}}))
        configs += [replace(config, seed=seed) for seed in seeds]
    folder = Path(configs[0].out or _default_folder(configs))
    configs = [replace(c, out=str(folder / f"{c.method_name}-seed{c.seed}")) for c in configs]
    return ComparisonConfig(tuple(configs), names, seeds, folder)


def compare_methods(config: ComparisonConfig, watch: Watch = nobody) -> Comparison:
    """Make the runs that are missing, continue those that were stopped, and tabulate them all."""
    folder = config.folder
    marker = folder / "comparison.json"
    if folder.exists() and not marker.is_file() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"out={str(folder)!r} exists and is not a comparison; choose another folder")
    for run_config in config.configs:
        find_run(run_config)  # refuses another run before anything is written
    with clear_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    content = {
        "format": FORMAT,
        "methods": config.methods,
        "seeds": config.seeds,
        "runs": [Path(run_config.out or "").name for run_config in config.configs],
    }
    write_json(marker, content)
    runs = [start_or_continue(run_config, watch(run_config)) for run_config in config.configs]
    write_parquet(folder / "table.parquet", tabulate(runs))
    return Comparison(folder)


def open_folder(path: str | Path) -> RunFolder | Comparison:
    """The run or the comparison that is in a folder."""
    return Comparison(path) if (Path(path) / "comparison.json").is_file() else RunFolder(path)


def runs_of(results: RunFolder | Comparison) -> tuple[RunFolder, ...]:
    """The runs of a comparison, or the one run."""
    return results.runs if isinstance(results, Comparison) else (results,)


def model_name(method: str, kind: str) -> str:
    """How one of a method's models is called in tables and on pages."""
    return f"{method} {kind}"


def client_values(runs: Sequence[RunFolder]) -> pd.DataFrame:
    """The reported values, means over seeds: a row for each client, a column for each model."""
    tables = []
    for run in runs:
        values, method = run.client_values(), run.config.method_name
        tables.append(values.set_axis([model_name(method, str(kind)) for kind in values], axis=1))
    together = pd.concat(tables, axis=1)
    return together.T.groupby(level=0, sort=False).mean().T


def tabulate(runs: Sequence[RunFolder]) -> pd.DataFrame:
    """A row for each method and model kind, with mean and standard deviation over seeds."""
    _refuse_namesakes([run.config.method["name"] for run in runs])
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
                    **numbers,
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


def _refuse_namesakes(written: Sequence[str]) -> None:
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


def _default_folder(configs: Sequence[RunConfig]) -> Path:
    """A name under runs/ that follows from what is compared."""
    digest = hashlib.sha256("".join(config.to_yaml() for config in configs).encode()).hexdigest()[:8]
    return Path("runs") / f"{Path(configs[0].data_name).stem}-compare-{digest}"


def _option_names(kind: type) -> set[str]:
    fields = fields_of(kind)
    return set(fields) | {alias for field in fields.values() if (alias := alias_of(field))}


def _listed(value: Any, name: str) -> list[str]:
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list) or not items or not all(isinstance(i, str) and i.strip() for i in items):
        shown = "missing" if value is None else f"{value}, which is not possible"
        raise UserError(f"{name} is {shown}: give it as {name}=local,fedavg,apfl")
    return [item.strip() for item in items]


def _seeds(value: Any, first: Any) -> tuple[int, ...]:
    """A number of seeds, or the seeds themselves."""
    if isinstance(value, str) and all(part.strip().isdigit() for part in value.split(",")):
        value = [int(part) for part in value.split(",")]
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1 and isinstance(first, int):
        return tuple(range(first, first + value))
    if isinstance(value, list) and value and all(isinstance(s, int) and s >= 0 for s in value):
        return tuple(value)
    raise UserError(f"seeds={value} is not possible: give how many, as seeds=5, or which, as seeds=0,1,7")
