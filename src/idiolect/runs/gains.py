"""Who gains by joining, how much, and whether that is more than noise: for each client and model.

The gain is over training alone and over the one shared model, in the metric's own units, positive where the
client is better off; of several seeds it is the mean. Its 95 % interval is a paired bootstrap
(`evaluation/bootstrap.py`). A client gains or loses **beyond noise** if the interval excludes zero and it has
at least `LEAST_ROWS` rows; else it is **within noise**. The mean gain over clients has an interval too, for
which clients are drawn as well.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from idiolect.evaluation.bootstrap import (
    LEAST_ROWS,
    RESAMPLES,
    client_counts,
    interval,
    over_seeds,
    replicates,
    row_counts,
    seed_counts,
    seed_part,
)
from idiolect.runs.choice import candidates, choices, choosing_methods, chosen_model, cost_of_choosing
from idiolect.runs.folder import RunFolder
from idiolect.runs.reported import ALONE, CHOSEN, SHARED, Model, Reported

BASELINES = {"alone": ALONE, "shared": SHARED}
GAIN, LOSS, NOISE, FEW_ROWS, UNDEFINED = "gain", "loss", "within noise", "too few rows", "undefined"
NO_INTERVAL = "no interval"
BY_CHANCE = 0.05  # of clients without any difference seem to have one
SIZES = ("small", "middle", "large")
DISTANCES = ("near", "between", "far")
_LEAST_IN_THIRDS = 6  # clients

Replicates = dict[Model, dict[int, np.ndarray]]  # by seed


class Gain(NamedTuple):
    """By how much a client is better off, the ends of the 95 % interval, and what to make of it."""

    gain: float
    low: float
    high: float
    verdict: str


@dataclass(frozen=True)
class GainTables:
    """A row for each model and client; for each model and baseline; for each choice of a client."""

    clients: pd.DataFrame
    models: pd.DataFrame
    choices: pd.DataFrame


def measure_gains(runs: Sequence[RunFolder], resamples: int = RESAMPLES) -> GainTables:
    """The gains of all clients under all methods of a comparison."""
    reported = Reported(runs)
    made = choices(reported)
    values = _values(reported, made)
    pairs = [
        (model, over)
        for over, baseline in BASELINES.items()
        if baseline in values
        for model in values
        if model != baseline
    ]
    sign = 1 if reported.higher_is_better else -1
    drawn_clients = client_counts(len(reported.clients), resamples)
    drawn_seeds = seed_counts(len(reported.seeds), resamples)
    means = {pair: _MeanGain(resamples) for pair in pairs}
    kept: dict[Any, Any] = made.set_index(["method", "seed", "client"])["chosen"].to_dict()
    rows = []
    for place, client in enumerate(reported.clients):
        found, tested = _replicates(reported, client, resamples)
        found |= _of_choices(found, reported, kept, client)
        gains = {}
        for model, over in pairs:
            baseline = BASELINES[over]
            with np.errstate(invalid="ignore"):  # both may be infinite
                by_seed = sign * (values[model][place] - values[baseline][place])
            drawn = _drawn_gains(found, (model, baseline), reported.seeds, sign, by_seed, drawn_seeds)
            gains[model, over] = _gain(by_seed, drawn, tested)
            means[model, over].add(by_seed, drawn, drawn_clients[:, place])
        known = {"client": client, "train_rows": float(reported.train_rows[client]), "tested_rows": tested}
        rows += [_client_row(known, _mean(values[model][place]), gains, model) for model in values]
    clients = pd.DataFrame(rows)
    models = [
        _model_row(reported, clients, made, pair, values[pair[0]], means[pair].interval(drawn_seeds))
        for pair in pairs
    ]
    return GainTables(clients, pd.DataFrame(models), made)


def _values(reported: Reported, made: pd.DataFrame) -> dict[Model, np.ndarray]:
    """The reported values of each model, [clients, seeds]; what clients chose is a model too."""
    values = {model: reported.values(model).to_numpy() for model in reported.models}
    for method in choosing_methods(reported):
        own = made[made.method == method].pivot(index="client", columns="seed", values="value")
        own = own.reindex(index=reported.clients, columns=reported.seeds)
        values[chosen_model(method)] = own.to_numpy(np.float64)
    return values


def _replicates(reported: Reported, client: str, resamples: int) -> tuple[Replicates, int]:
    """Every model's values on redrawn rows, for each seed; and how many rows there are to draw from."""
    said = {
        (model, seed): rows
        for model in reported.models
        for seed in reported.seeds
        if (run := reported.of(model, seed)) and run.said and (rows := run.said.rows(model.kind, client))
    }
    first = {seed: rows.rows for (_, seed), rows in reversed(said.items())}
    if not first:
        return {}, 0
    counts = dict(zip(first, row_counts(client, list(first.values()), resamples), strict=True))
    found: Replicates = {}
    for (model, seed), rows in said.items():
        run = reported.of(model, seed)
        if run is None or run.said is None or not rows.rows.equal(first[seed]):
            continue  # other rows cannot be paired
        task = run.said.task(model.kind)
        values = replicates(run.said.metric, task, rows.outputs, rows.targets, counts[seed])
        found.setdefault(model, {})[seed] = values
    return found, len(np.unique(np.concatenate([rows.numpy() for rows in first.values()])))


def _of_choices(found: Replicates, reported: Reported, kept: dict[Any, Any], client: str) -> Replicates:
    """Those of the models that the client chose under each seed."""
    chosen: Replicates = {}
    for method in choosing_methods(reported):
        for seed in reported.seeds:
            name = kept.get((method, seed, client))
            if name is not None and seed in (of_seed := found.get(Model.named(name), {})):
                chosen.setdefault(chosen_model(method), {})[seed] = of_seed[seed]
    return chosen


class Drawn(NamedTuple):
    """The gain in each replicate with drawn rows, [resamples], and what drawing seeds adds to it."""

    rows: np.ndarray
    seeds: np.ndarray


def _drawn_gains(
    found: Replicates,
    pair: tuple[Model, Model],
    seeds: Sequence[int],
    sign: int,
    by_seed: np.ndarray,
    drawn_seeds: np.ndarray,
) -> Drawn | None:
    """Replicates of the gain of one model over another; None without predictions of both."""
    own, other = (found.get(model, {}) for model in pair)
    places = [p for p, s in enumerate(seeds) if not np.isnan(by_seed[p]) and s in own and s in other]
    if not places:
        return None
    with np.errstate(invalid="ignore"):
        gains = np.stack([sign * (own[seeds[place]] - other[seeds[place]]) for place in places])
    return Drawn(*over_seeds(gains, by_seed[places], drawn_seeds[:, places]))


def _mean(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


def _gain(by_seed: np.ndarray, drawn: Drawn | None, rows: int) -> Gain:
    gain, low, high = _mean(by_seed), np.nan, np.nan
    if drawn is not None and (rows >= LEAST_ROWS or np.isinf(gain)):
        low, high = map(float, interval(drawn.rows + drawn.seeds))
    return Gain(gain, low, high, _verdict(gain, low, high, rows))


def _verdict(gain: float, low: float, high: float, rows: int) -> str:
    if np.isnan(gain):
        return UNDEFINED
    if np.isinf(gain):  # one of the models has failed
        return GAIN if gain > 0 else LOSS
    if 0 < rows < LEAST_ROWS:
        return FEW_ROWS
    if np.isnan(low):
        return NO_INTERVAL
    return GAIN if low > 0 else LOSS if high < 0 else NOISE


class _MeanGain:
    """The mean gain over clients, for which a replicate draws clients too, and their rows, and seeds."""

    def __init__(self, resamples: int) -> None:
        self.sums, self.times = np.zeros(resamples), np.zeros(resamples)
        self.by_seed: list[np.ndarray] = []

    def add(self, by_seed: np.ndarray, drawn: Drawn | None, counts: np.ndarray) -> None:
        """One client, drawn so often; without predictions its gain is taken as it is."""
        gains = np.full(len(self.sums), _mean(by_seed)) if drawn is None else drawn.rows
        times = np.where(np.isnan(gains), 0, counts)
        self.sums += np.where(times > 0, gains, 0) * times
        self.times += times
        if np.isfinite(by_seed).all():
            self.by_seed.append(by_seed)

    def interval(self, drawn_seeds: np.ndarray) -> tuple[float, float]:
        """Its 95 % interval."""
        means = np.where(self.times > 0, self.sums / np.maximum(self.times, 1), np.nan)
        low, high = interval(means + self._of_seeds(drawn_seeds))
        return float(low), float(high)

    def _of_seeds(self, drawn: np.ndarray) -> np.ndarray:
        """What drawing seeds adds: these differ for all clients alike by what is not each client's own."""
        if len(self.by_seed) < 2 or drawn.shape[1] < 2:
            return np.zeros(len(drawn))
        gains = np.stack(self.by_seed)
        clients, seeds = gains.shape
        own = gains - gains.mean(0) - gains.mean(1, keepdims=True) + gains.mean()
        noise = float(np.square(own).sum()) / ((clients - 1) * (seeds - 1) * clients)
        return seed_part(gains.mean(0), noise, drawn)


def _client_row(
    known: dict[str, Any], value: float, gains: dict[tuple[Model, str], Gain], model: Model
) -> dict[str, Any]:
    row: dict[str, Any] = {"method": model.method, "kind": model.kind, **known, "value": value}
    for over in BASELINES:
        gain = gains.get((model, over), Gain(np.nan, np.nan, np.nan, ""))
        row |= {f"{name}_over_{over}": each for name, each in gain._asdict().items()}
    return row


def _model_row(
    reported: Reported,
    clients: pd.DataFrame,
    made: pd.DataFrame,
    pair: tuple[Model, str],
    values: np.ndarray,
    ends: tuple[float, float],
) -> dict[str, Any]:
    model, over = pair
    own = clients[(clients.method == model.method) & (clients.kind == model.kind)].set_index("client")
    gains, verdicts = own[f"gain_over_{over}"].dropna(), own[f"verdict_over_{over}"]
    row: dict[str, Any] = {
        "method": model.method,
        "kind": model.kind,
        "over": over,
        "metric": reported.metric,
        # As in the table of a comparison: over the clients, then over the seeds.
        "mean": _mean(np.array([_mean(of_seed) for of_seed in values.T])),
        "clients": len(gains),
        "gain": int((verdicts == GAIN).sum()),
        "lose": int((verdicts == LOSS).sum()),
        "within_noise": int(verdicts.isin([NOISE, FEW_ROWS]).sum()),
        "too_few_rows": int((verdicts == FEW_ROWS).sum()),
        "no_interval": int((verdicts == NO_INTERVAL).sum()),
        "by_chance": BY_CHANCE * int(verdicts.isin([GAIN, LOSS, NOISE]).sum()),
        "mean_gain": float(gains.mean()),
        "low": ends[0],
        "high": ends[1],
        **_worst_off(own, over),
        **_thirds(gains, reported.train_rows, SIZES),
        **_thirds(gains, reported.distances(), DISTANCES),
        **_traffic(reported, model),
    }
    if model.kind == CHOSEN:
        row |= cost_of_choosing(made, model.method, higher_is_better=reported.higher_is_better)
    return row


def _worst_off(own: pd.DataFrame, over: str) -> dict[str, Any]:
    known = own[own[f"gain_over_{over}"].notna()]
    if known.empty:
        return {"worst_client": "", "worst_gain": np.nan, "worst_low": np.nan, "worst_high": np.nan}
    place = int(known[f"gain_over_{over}"].to_numpy().argmin())
    ends = {f"worst_{end}": float(known[f"{end}_over_{over}"].iloc[place]) for end in ("gain", "low", "high")}
    return {"worst_client": str(known.index[place]), **ends}


def _thirds(
    gains: "pd.Series[float]", by: "pd.Series[float] | None", names: Sequence[str]
) -> dict[str, float]:
    """The mean gain of a third of the clients each, in some order."""
    known = None if by is None else by.reindex(gains.index).dropna()
    if known is None or len(known) < _LEAST_IN_THIRDS or known.nunique() == 1:
        return dict.fromkeys(names, np.nan)
    thirds = np.array_split(known.sort_values(kind="stable").index, 3)
    return {name: float(gains[third].mean()) for name, third in zip(names, thirds, strict=True)}


def _traffic(reported: Reported, model: Model) -> dict[str, float]:
    """Bits of a whole run, in the mean over seeds; of a choice those of all runs that it needs."""
    needed = candidates(reported, model.method) if model.kind == CHOSEN else [model]
    runs = [
        run.summary
        for method in dict.fromkeys(each.method for each in needed)
        for seed in reported.seeds
        if (run := reported.runs.get((method, seed)))
    ]
    methods = len({each.method for each in needed})
    return {bits: methods * float(np.mean([run[bits] for run in runs])) for bits in ("down_bits", "up_bits")}
