"""The figures of a recipe that was played."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from idiolect.errors import UserError
from idiolect.evaluation.summary import reported_part
from idiolect.reports.averages import BITS_PER_MEGABYTE
from idiolect.reports.charts import Bars, Chart, Curves, HeatMap, Series, Spread
from idiolect.reports.ordering import by_similarity
from idiolect.reproduction.claims import Moment
from idiolect.reproduction.figure_plans import Drawing, FigurePlan
from idiolect.reproduction.plan import Place
from idiolect.reproduction.played import PlayedRecipe, metrics_of
from idiolect.reproduction.quantities import words_of
from idiolect.reproduction.recipe import kind_and_line
from idiolect.runs.folder import RunFolder

_SHARES = ("accuracy", "balanced_accuracy")
_LAST: Moment = "last"


def charts_of(played: PlayedRecipe) -> list[Chart]:
    """All figures of a recipe; one for which a run is missing is left out."""
    charts: list[Chart] = []
    for plan in played.recipe.figures:
        for panel in _panels(played, plan):
            try:
                charts.extend(_DRAW[plan.draw](played, plan, panel))
            except UserError:
                continue
    return charts


def _panels(played: PlayedRecipe, plan: FigurePlan) -> Sequence[str]:
    if plan.draw in ("panels", "functions"):
        return [played.plan.panels[0]]
    return [panel for panel in plan.panels or played.plan.panels if panel in played.plan.panels]


def _curves(played: PlayedRecipe, plan: FigurePlan, panel: str) -> Iterator[Chart]:
    metric = plan.of or played.metric
    series = []
    for model in plan.models or played.models():
        _, kind, runs = _runs(played, model, panel)
        tables = [_over_rounds(run, kind, metric, plan.part) for run in runs]
        series.append(_band(model, runs, tables, kind))
    series = [*_told_apart(series), *_functions(played, plan)]
    part = plan.part or "test"
    words = f"The mean {metric} on the clients' own {part} rows; 95 % intervals over seeds and clients."
    yield Curves(
        _title(plan, panel),
        words,
        series,
        f"{part} {metric}",
        plan.y_log,
        plan.x_log,
        percent=metric in _SHARES,
    )


def _by_panel(played: PlayedRecipe, plan: FigurePlan, panel: str) -> Iterator[Chart]:
    metric = plan.of or played.metric
    panels = [p for p in plan.panels or played.plan.panels if p in played.plan.panels]
    places = plan.x_values or tuple(range(len(panels)))
    series = []
    for model in plan.models or played.models():
        values = [played.values(model, p, plan.of, plan.part).to_numpy() for p in panels]
        ends = [_interval(table) for table in values]
        method = _method(played, model, panels[0])
        low, high = zip(*ends, strict=True)
        y = [float(np.nanmean(table)) for table in values]
        series.append(Series(model, {plan.x: places}, y, low, high, method, _kind(played, model)))
    series = [*_told_apart(series), *_functions(played, plan)]
    named = "" if plan.x_values else f" From left to right: {', '.join(panels)}."
    words = f"The {metric} at the reported round.{named}"
    yield Curves(
        plan.title, words, series, metric, plan.y_log, plan.x_log, markers=True, percent=metric in _SHARES
    )


def _spread(played: PlayedRecipe, plan: FigurePlan, panel: str) -> Iterator[Chart]:
    metric = plan.of or played.metric
    values = {
        model: {
            str(k): float(v) for k, v in played.values(model, panel, plan.of, plan.part).mean(axis=1).items()
        }
        for model in plan.models or played.models()
    }
    words = f"Every client's {metric} at the reported round, its mean over seeds."
    yield Spread(_title(plan, panel), words, metric, values, percent=metric in _SHARES)


def _diagnostic(played: PlayedRecipe, plan: FigurePlan, panel: str) -> Iterator[Chart]:
    assert plan.of is not None, "which diagnostic"
    series = []
    for model in plan.models or played.plan.lines:
        line, kind, runs = _runs(played, model, panel)
        tables = [_told(run, plan.of, plan.index) for run in runs]
        series.append(_band(line, runs, [t for t in tables if len(t)], kind, axis=plan.x))
    series = [*_told_apart(series), *_functions(played, plan)]
    words = f"What the method tells of itself: {plan.of.replace('_', ' ')}."
    yield Curves(_title(plan, panel), words, series, plan.of.replace("_", " "), plan.y_log, plan.x_log)


def _matrix(played: PlayedRecipe, plan: FigurePlan, panel: str) -> Iterator[Chart]:
    for model in plan.models or played.plan.lines:
        line, _, runs = _runs(played, model, panel)
        values = played.values(line, panel, "diagnostic:mixing_matrix", at=_LAST).iloc[:, 0].to_numpy()
        clients = [str(name) for name in runs[0].clients().index]
        square = values.reshape(len(clients), len(clients))
        order = by_similarity(square)
        names = [clients[place] for place in order]
        words = (
            "How much the client of a row learns from the client of a column: the first seed's weights, with "
            "those side by side whose weights are alike."
        )
        yield HeatMap(
            f"{_title(plan, panel)}: {line}",
            words,
            names,
            names,
            square[np.ix_(order, order)].tolist(),
            "client",
            "learns from",
            "weight",
        )


def _labels(played: PlayedRecipe, plan: FigurePlan, panel: str) -> Iterator[Chart]:
    for model in plan.models or played.plan.lines:
        line, _, runs = _runs(played, model, panel)
        told = runs[0].diagnostics()
        labels = told[told["name"] == "labels"].pivot(index="index", columns="round", values="value")
        if labels.empty:
            raise UserError(f"{line} has no labels")
        names = [str(name) for name in runs[0].clients().index]
        words = "The group of each client after each round, of the first seed."
        yield HeatMap(
            f"{_title(plan, panel)}: {line}",
            words,
            names,
            [str(number) for number in labels.columns],
            labels.to_numpy().tolist(),
            "client",
            "round",
            "group",
            categorical=True,
        )


def _path(played: PlayedRecipe, plan: FigurePlan, panel: str) -> Iterator[Chart]:
    assert plan.of is not None, "which metric"
    assert plan.second is not None, "over which other one"
    series = []
    for model in plan.models or played.models():
        _, kind, runs = _runs(played, model, panel)
        metrics = metrics_of(runs[0].path)
        part = reported_part(metrics)
        own = metrics[(metrics.kind == kind) & (metrics.part == part)]
        for client, rows in own.groupby("client", sort=False):
            x, y = (
                rows[rows.metric == name].sort_values("round")["value"].tolist()
                for name in (plan.of, plan.second)
            )
            name = f"{model}, {client}"
            series.append(
                Series(
                    name, {plan.of.replace("_", " "): x}, y, method=_method(played, model, panel), kind=kind
                )
            )
    words = "The way of each client's model, a mark for each evaluated round."
    yield Curves(_title(plan, panel), words, series, plan.second.replace("_", " "), markers=True)


def _bars(played: PlayedRecipe, plan: FigurePlan, panel: str) -> Iterator[Chart]:
    assert plan.of is not None, "which quantity"
    label = words_of(plan.of)
    groups = {
        model: {label: float(played.values(model, panel, plan.of, at=_LAST).to_numpy().mean())}
        for model in plan.models or played.plan.lines
    }
    yield Bars(_title(plan, panel), f"{label}, means over seeds.".capitalize(), label, groups)


def _only_functions(played: PlayedRecipe, plan: FigurePlan, panel: str) -> Iterator[Chart]:
    yield Curves(
        plan.title, "Curves of theory.", _functions(played, plan), plan.of or "", plan.y_log, plan.x_log
    )


_DRAW: dict[Drawing, Callable[[PlayedRecipe, FigurePlan, str], Iterator[Chart]]] = {
    "curves": _curves,
    "panels": _by_panel,
    "spread": _spread,
    "diagnostic": _diagnostic,
    "matrix": _matrix,
    "labels": _labels,
    "path": _path,
    "bars": _bars,
    "functions": _only_functions,
}


def _runs(played: PlayedRecipe, model: str, panel: str) -> tuple[str, str | None, list[RunFolder]]:
    line, kind = kind_and_line(model, played.plan.lines)
    runs = list(played.runs[Place(panel, line)].values())
    if not runs:
        raise UserError(f"{line} has no finished run")
    return line, kind or played.kind_of(Place(panel, line)), runs


def _over_rounds(run: RunFolder, kind: str | None, metric: str, part: str | None) -> pd.DataFrame:
    """A row for each evaluated round, a column for each client."""
    metrics = metrics_of(run.path)
    chosen = metrics[
        (metrics.kind == kind)
        & (metrics.metric == metric)
        & (metrics.part == (part or reported_part(metrics)))
    ]
    if chosen.empty:
        raise UserError(f"the run {str(run.path)!r} has no {metric} of {part or 'test'} rows")
    return chosen.pivot(index="round", columns="client", values="value")


def _told(run: RunFolder, name: str, index: int | str) -> pd.DataFrame:
    """What a method tells, one column: its mean in each round, one of it, or all of it in a row."""
    told = run.diagnostics()
    own = told[told["name"] == name].sort_values(["round", "index"])
    if index == "all":
        return own["value"].reset_index(drop=True).to_frame()
    if index != "mean":
        own = own[own["index"] == index]
    return own.groupby("round")["value"].mean().to_frame()


def _band(
    name: str,
    runs: Sequence[RunFolder],
    tables: Sequence[pd.DataFrame],
    kind: str | None,
    axis: str = "round",
) -> Series:
    """The mean over seeds and clients, with its interval; rounds that some seed has not are left out."""
    if not tables:
        raise UserError(f"{name} tells nothing of it")
    index = tables[0].index
    for table in tables[1:]:
        index = index.intersection(table.index)
    stacked = np.stack([table.loc[index].to_numpy() for table in tables])  # [seeds, rounds, clients]
    of_rounds = stacked.swapaxes(0, 1).reshape(len(index), -1)
    mean = pd.DataFrame(of_rounds).mean(axis=1)  # of those who have a value; NaN where nobody has one
    ends = [_interval(stacked[:, place].T) for place in range(len(index))]
    low, high = zip(*ends, strict=True)
    x: dict[str, Sequence[float]] = {axis: [float(number) for number in index]}
    if axis == "round":
        x |= _costs(runs, index)
    method = runs[0].config.method_name
    return Series(name, x, mean.tolist(), low, high, method, kind)


def _costs(runs: Sequence[RunFolder], rounds: pd.Index) -> dict[str, Sequence[float]]:
    """Megabytes and seconds until each round, means over seeds."""
    moved = [run.rounds().set_index("round")[["down_bits", "up_bits"]].sum(axis=1).cumsum() for run in runs]
    spent = [run.timing().set_index("round")["seconds"] for run in runs]
    axes = {"megabytes": [m / BITS_PER_MEGABYTE for m in moved], "seconds": spent}
    return {
        name: np.mean(
            [one.reindex(rounds, method="ffill").fillna(0.0).to_numpy() for one in all_runs], axis=0
        ).tolist()
        for name, all_runs in axes.items()
    }


def _interval(values: np.ndarray) -> tuple[float, float]:
    """Of the mean of [clients, seeds]: normal, from the spread over clients and that over seeds."""
    values = values[~np.isnan(values).all(axis=1)]  # clients without rows have no value
    if np.isnan(values).all(axis=0).any():
        return float("nan"), float("nan")
    of_clients, of_seeds = np.nanmean(values, axis=1), np.nanmean(values, axis=0)
    variance = sum(float(np.nanvar(m, ddof=1)) / len(m) for m in (of_clients, of_seeds) if len(m) > 1)
    centre, half = float(np.nanmean(values)), 1.96 * variance**0.5
    return centre - half, centre + half


def _told_apart(series: Sequence[Series]) -> list[Series]:
    """Lines of one method have looks of their own where the method's would not tell them apart."""
    looks = [(one.method, one.kind) for one in series]
    if len(set(looks)) == len(looks):
        return list(series)
    return [replace(one, method=None) for one in series]


def _functions(played: PlayedRecipe, plan: FigurePlan) -> list[Series]:
    chosen = {name: played.recipe.functions[name] for name in plan.functions}
    return [Series(name, {plan.x: function.x}, function.y) for name, function in chosen.items()]


def _method(played: PlayedRecipe, model: str, panel: str) -> str | None:
    _, _, runs = _runs(played, model, panel)
    return runs[0].config.method_name


def _kind(played: PlayedRecipe, model: str) -> str | None:
    return kind_and_line(model, played.plan.lines)[1]


def _title(plan: FigurePlan, panel: str) -> str:
    return f"{plan.title}: {panel}" if panel else plan.title
