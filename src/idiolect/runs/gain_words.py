"""Gains in words and in rows of a table, the same on screens and pages."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from idiolect.evaluation.bootstrap import LEAST_ROWS
from idiolect.quantities import amount, show_ends, show_gain, show_value
from idiolect.runs.folder import RunFolder
from idiolect.runs.gains import BASELINES, DISTANCES, FEW_ROWS, GAIN, LOSS, SIZES
from idiolect.runs.predictions import why_none
from idiolect.runs.reported import ALONE, CHOSEN, SHARED, TUNED, Model

AGAINST = {"alone": "training alone", "shared": "the one shared model"}
HEADINGS = (
    "model",
    "mean",
    "mean gain over training alone (95 %)",
    "clients that gain / lose / within noise",
    "worst-off client (95 %)",
    "mean gain over the shared model (95 %)",
    "gain / lose / within noise",
)
GROUP_HEADINGS = (
    "mean gain over training alone",
    "few rows",
    "middle",
    "many rows",
    "near the others",
    "between",
    "far",
)

Row = Mapping[Any, Any]


def called(method: str, kind: str) -> str:
    """A model's name, and what it is if it is a baseline or a choice."""
    model = Model(method, kind)
    if kind == CHOSEN:
        return f"{model} (each client's best on validation)"
    what = {ALONE: "alone", SHARED: "shared", TUNED: "fine-tuned"}.get(model)
    return f"{model} ({what})" if what else str(model)


def gain_sentences(models: pd.DataFrame) -> list[str]:
    """Who gains over training alone, and who over the shared model where there is nothing else to say."""
    if models.empty:
        return []
    over = "alone" if (models.over == "alone").any() else "shared"
    told = models[(models.over == over) & ((models.method != SHARED.method) | (models.kind != SHARED.kind))]
    return [sentence(row) for row in told.to_dict(orient="records")]


def sentence(row: Row) -> str:
    """One model against one baseline."""
    name, against = called(row["method"], row["kind"]), AGAINST[row["over"]]
    if not row["clients"]:
        return f"{name} against {against}: no client has a value of both"
    if row["no_interval"] == row["clients"]:
        counts = "there are no intervals, so nobody can say whether a client's gain is more than noise"
    else:
        counts = (
            f"{row['gain']} of {row['clients']} clients gain beyond noise, {row['lose']} lose, "
            f"{row['within_noise']} are within noise{_too_few(row)}"
        )
    mean = f"mean gain {show_gain(row['mean_gain'], row['metric'])} ({_ends(row, 'low', 'high')})"
    noise = " – within noise" if row["low"] <= 0 <= row["high"] else ""
    return f"{name} against {against}: {counts}; {mean}{noise}"


def _too_few(row: Row) -> str:
    few = row["too_few_rows"]
    return f" ({few} with fewer than {LEAST_ROWS} rows to test on, too few to say)" if few else ""


def _ends(row: Row, low: str, high: str) -> str:
    return f"95 %: {show_ends(row[low], row[high], row['metric'])}"


def choice_sentences(models: pd.DataFrame) -> list[str]:
    """What it costs that each client chooses by its few validation rows."""
    if models.empty:
        return []
    chosen = models[(models.kind == CHOSEN) & (models.over == "alone")]
    return [
        f"{row['method']} chosen: each client keeps what is best on its validation rows of {row['method']} and "
        f"the baselines; {100 * row['wrong_choices']:.0f} % of the choices were not the best on test rows, which "
        f"costs {_unsigned(row['cost_of_choosing'], row['metric'])} against an oracle that knows these "
        f"({show_value(row['oracle'], row['metric'])}); all runs it needs send {amount(row['up_bits'])} up"
        for row in chosen.to_dict(orient="records")
    ]


def _unsigned(gain: float, metric: str) -> str:
    return show_gain(gain, metric).removeprefix("+")


def by_chance(models: pd.DataFrame) -> str | None:
    """How many clients would seem to differ if none did."""
    expected = models["by_chance"].max() if len(models) else 0
    if not expected:
        return None
    return (
        "beyond noise: the 95 % interval (paired bootstrap over the client's test rows and the seeds) does "
        f"not hold 0; by chance alone about {expected:.1g} client(s) of a row would seem to gain or lose"
    )


def gain_rows(models: pd.DataFrame, clients: pd.DataFrame) -> list[list[str]]:
    """A row for each model under `HEADINGS`."""
    means = clients.groupby(["method", "kind"], sort=False)["value"].mean()
    metric = models.metric.iloc[0]
    by_pair = {(r["method"], r["kind"], r["over"]): r for r in models.to_dict(orient="records")}
    rows = []
    for (method, kind), mean in means.items():  # type: ignore[misc]
        alone, shared = (by_pair.get((method, kind, over)) for over in BASELINES)
        row = [called(method, kind), show_value(float(mean), metric), _mean_gain(alone), _counts(alone)]
        rows.append([*row, _worst(alone), _mean_gain(shared), _counts(shared)])
    return rows


def _mean_gain(row: Row | None) -> str:
    if row is None or math.isnan(row["mean_gain"]):
        return "–"
    return (
        f"{show_gain(row['mean_gain'], row['metric'])} ({show_ends(row['low'], row['high'], row['metric'])})"
    )


def _counts(row: Row | None) -> str:
    if row is None or row["no_interval"] == row["clients"]:
        return "–"
    return f"{row['gain']} / {row['lose']} / {row['within_noise']}"


def _worst(row: Row | None) -> str:
    if row is None or not row["worst_client"]:
        return "–"
    gain = show_gain(row["worst_gain"], row["metric"])
    ends = (
        ""
        if math.isnan(row["worst_low"])
        else f" ({show_ends(row['worst_low'], row['worst_high'], row['metric'])})"
    )
    return f"{row['worst_client']}: {gain}{ends}"


def group_rows(models: pd.DataFrame) -> list[list[str]]:
    """Gains over training alone by thirds of the clients, under `GROUP_HEADINGS`; none of too few clients."""
    if models.empty:
        return []
    alone = models[models.over == "alone"]
    names = [*SIZES, *DISTANCES]
    return [
        [called(row["method"], row["kind"]), *(show_gain(row[name], row["metric"]) for name in names)]
        for row in alone.to_dict(orient="records")
        if not all(math.isnan(row[name]) for name in names)
    ]


def client_gain_rows(models: pd.DataFrame, clients: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Headings, and for each client its gain over training alone under each model."""
    metric, alone = models.metric.iloc[0], models[models.over == "alone"]
    names = list(dict.fromkeys(zip(alone.method, alone.kind, strict=True)))
    by_place = {(r["method"], r["kind"], r["client"]): r for r in clients.to_dict(orient="records")}
    rows = [
        [str(client), *(_client_gain(by_place[method, kind, client], metric) for method, kind in names)]
        for client in dict.fromkeys(clients.client)
    ]
    return ["client", *(str(Model(*name)) for name in names)], rows


def _client_gain(row: Row, metric: str) -> str:
    """The gain and its interval; marked where it is more than noise."""
    if math.isnan(row["gain_over_alone"]):
        return "–"
    gain = show_gain(row["gain_over_alone"], metric).removesuffix(" points")
    if row["verdict_over_alone"] == FEW_ROWS:
        return f"{gain} (too few rows)"
    if math.isnan(row["low_over_alone"]):
        return gain
    beyond = " *" if row["verdict_over_alone"] in (GAIN, LOSS) else ""
    return f"{gain} ({show_ends(row['low_over_alone'], row['high_over_alone'], metric)}){beyond}"


def why_no_intervals(runs: Sequence[RunFolder]) -> str | None:
    """One sentence, if some run has no predictions."""
    for run in runs:
        if why := why_none(run):
            return f"{run.config.method_name}: no intervals: {why}"
    return None
