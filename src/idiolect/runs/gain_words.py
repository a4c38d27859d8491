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
    "gain over training alone",
    "gain/lose/noise",
    "worst-off client",
    "gain over the shared model",
    "gain/lose/noise",
)
_GROUPS = dict(
    zip(
        (*SIZES, *DISTANCES),
        ("few rows", "middle", "many rows", "near the others", "between", "far"),
        strict=True,
    )
)

Row = Mapping[Any, Any]
Table = tuple[list[str], list[list[str]]]  # headings and rows


def gain_sentences(models: pd.DataFrame) -> list[str]:
    """Who gains over training alone with each method; over the shared model where nobody trained alone."""
    if models.empty:
        return []
    over = "alone" if (models.over == "alone").any() else "shared"
    told = models[(models.over == over) & (models.kind != CHOSEN)]
    return [_sentence(row) for row in told.to_dict(orient="records")]


def choice_sentences(models: pd.DataFrame) -> list[str]:
    """What it costs that each client chooses by its few validation rows."""
    if models.empty:
        return []
    chosen = models[(models.kind == CHOSEN) & (models.over == "alone")]
    costs = [
        f"{row['method']} {show_gain(row['cost_of_choosing'], row['metric']).removeprefix('+')} "
        f"({100 * row['wrong_choices']:.0f} % of the choices; {amount(row['up_bits'])} up)"
        for row in chosen.to_dict(orient="records")
    ]
    if not costs:
        return []
    return [
        "chosen: each client keeps what is best on its own validation rows, the method or a baseline; an "
        f"oracle that knows test rows would be better by: {', '.join(costs)}"
    ]


def what_noise_is(models: pd.DataFrame, runs: Sequence[RunFolder]) -> list[str]:
    """What beyond noise means, how many clients would seem to differ if none did; or why nobody can say."""
    sentences = []
    if len(models) and (expected := models["by_chance"].max()):
        sentences.append(
            "beyond noise: the 95 % interval (paired bootstrap over the client's test rows and the seeds) "
            f"does not hold 0; by chance alone about {expected:.2g} client(s) in each row would seem to gain "
            "or lose"
        )
    for run in runs:
        if why := why_none(run):
            return [*sentences, f"{run.config.method_name} has no intervals: {why}"]
    return sentences


def gain_table(models: pd.DataFrame, clients: pd.DataFrame) -> Table:
    """A row for each model."""
    means = clients.groupby(["method", "kind"], sort=False)["value"].mean().reset_index()
    by_pair = {(r["method"], r["kind"], r["over"]): r for r in models.to_dict(orient="records")}
    rows = []
    for each in means.to_dict(orient="records"):
        method, kind = each["method"], each["kind"]
        alone, shared = (by_pair.get((method, kind, over)) for over in BASELINES)
        mean = show_value((alone or shared or {"mean": each["value"]})["mean"], models.metric.iloc[0])
        row = [_called(method, kind), mean, _mean_gain(alone), _counts(alone), _worst(alone)]
        rows.append([*row, _mean_gain(shared), _counts(shared)])
    return list(HEADINGS), rows


def group_table(models: pd.DataFrame) -> Table:
    """Mean gains over training alone by thirds of the clients; no rows where there are too few of them."""
    alone = models[models.over == "alone"]
    names = [name for name in _GROUPS if alone[name].notna().any()]
    rows = [
        [_called(row["method"], row["kind"]), *(_number(row[name], row["metric"]) for name in names)]
        for row in alone.to_dict(orient="records")
    ]
    return ["model", *(_GROUPS[name] for name in names)], rows if names else []


def client_table(models: pd.DataFrame, clients: pd.DataFrame) -> Table:
    """Each client's gain over training alone under each model, starred where it is beyond noise."""
    metric, alone = models.metric.iloc[0], models[models.over == "alone"]
    names = list(zip(alone.method, alone.kind, strict=True))
    by_place = {(r["method"], r["kind"], r["client"]): r for r in clients.to_dict(orient="records")}
    rows = [
        [str(client), *(_client_gain(by_place[method, kind, client], metric) for method, kind in names)]
        for client in dict.fromkeys(clients.client)
    ]
    return ["client", *(str(Model(*name)) for name in names)], rows if names else []


def unit(metric: str) -> str:
    """What gains are counted in."""
    return "in points" if show_gain(0.0, metric).endswith("points") else f"in {metric}, + is better"


def _called(method: str, kind: str) -> str:
    """A model's name, and what it is if it is a baseline."""
    model = Model(method, kind)
    what = {ALONE: "alone", SHARED: "shared", TUNED: "fine-tuned"}.get(model)
    return f"{model} ({what})" if what else str(model)


def _sentence(row: Row) -> str:
    """One model against one baseline."""
    about = f"{_called(row['method'], row['kind'])} against {AGAINST[row['over']]}"
    if not row["clients"]:
        return f"{about}: no client has a value of both"
    counts = "nobody can say what is more than noise"
    if row["no_interval"] < row["clients"]:
        few = row["too_few_rows"]
        too_few = f" ({few} with fewer than {LEAST_ROWS} test rows, too few to say)" if few else ""
        unknown = f", {row['no_interval']} have no interval" if row["no_interval"] else ""
        counts = (
            f"{row['gain']} of {row['clients']} clients gain beyond noise, {row['lose']} lose, "
            f"{row['within_noise']} are within noise{too_few}{unknown}"
        )
    gain, metric = show_gain(row["mean_gain"], row["metric"]), row["metric"]
    noise = ", within noise" if row["low"] <= 0 <= row["high"] else ""
    return f"{about}: {counts}; mean gain {gain} (95 %: {show_ends(row['low'], row['high'], metric)}{noise})"


def _mean_gain(row: Row | None) -> str:
    return "–" if row is None else _with_ends(row["mean_gain"], row["low"], row["high"], row["metric"])


def _counts(row: Row | None) -> str:
    if row is None or row["no_interval"] == row["clients"]:
        return "–"
    return f"{row['gain']}/{row['lose']}/{row['within_noise']}"


def _worst(row: Row | None) -> str:
    if row is None or not row["worst_client"]:
        return "–"
    gain = _with_ends(row["worst_gain"], row["worst_low"], row["worst_high"], row["metric"])
    return f"{row['worst_client']} {gain}"


def _client_gain(row: Row, metric: str) -> str:
    if row["verdict_over_alone"] == FEW_ROWS:
        return f"{_number(row['gain_over_alone'], metric)} (too few rows)"
    gain = _with_ends(row["gain_over_alone"], row["low_over_alone"], row["high_over_alone"], metric)
    return gain + " *" * (row["verdict_over_alone"] in (GAIN, LOSS))


def _with_ends(gain: float, low: float, high: float, metric: str) -> str:
    """A gain and its interval."""
    return _number(gain, metric) + ("" if math.isnan(low) else f" ({show_ends(low, high, metric)})")


def _number(gain: float, metric: str) -> str:
    """In a table whose title names the unit."""
    return show_gain(gain, metric).removesuffix(" points")
