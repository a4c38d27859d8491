"""The answer of a comparison in plain sentences: does joining help, how much, whom, and is it noise?"""

import math
from typing import Any

import pandas as pd

from idiolect.quantities import show_ends, show_gain, show_value
from idiolect.runs.gains import GainTables
from idiolect.runs.reported import ALONE, CHOSEN, SHARED, TUNED, Model

_PLAIN = {SHARED: "one shared model", TUNED: "the shared model fine-tuned by each client"}
_MOST_NAMED = 4

Row = dict[Any, Any]


def gain_answer(
    gains: GainTables | None, table: pd.DataFrame, label: str, *, higher_is_better: bool
) -> list[str]:
    """Sentences for who has half a minute; none where nobody trained alone or nothing is beside it.

    The method that is spoken of is the best on validation rows: the best of several on the test rows would
    gain by chance, and its interval would not say so.

    table: of the comparison; models that diverged or are untrained are not in the answer.
    label: how the metric is called, as "test accuracy".
    """
    if gains is None or gains.models.empty:
        return []
    models, clients = gains.models, gains.clients
    told = models[(models.over == "alone") & (models.kind != CHOSEN)].to_dict(orient="records")
    bad = table[table.diverged | table.untrained]
    failed = {*zip(bad.method, bad.kind, strict=True)}
    joined = [
        row for row in told if math.isfinite(row["mean_gain"]) and (row["method"], row["kind"]) not in failed
    ]
    if not joined:
        return []
    sign = 1 if higher_is_better else -1
    kept_apart = (sign * table.set_index(["method", "kind"])["validation"]).dropna().to_dict()
    by_validation = all((row["method"], row["kind"]) in kept_apart for row in joined)
    best = max(
        joined, key=lambda row: kept_apart[row["method"], row["kind"]] if by_validation else row["mean_gain"]
    )
    how = "the best on validation rows" if by_validation else "the best on these very rows, which flatters it"
    alone = clients[(clients.method == ALONE.method) & (clients.kind == ALONE.kind)]["value"].mean()
    rest = sorted((row for row in joined if row is not best), key=lambda row: -float(row["mean_gain"]))
    return [_headline(best, how, label, float(alone)), *_who(best), *_others(rest)]


def _headline(best: Row, how: str, label: str, alone: float) -> str:
    metric, low, high = best["metric"], best["low"], best["high"]
    values = (
        f"with {_named(best)}, {how}, the mean {label} is {show_value(best['mean'], metric)} instead "
        f"of {show_value(alone, metric)} alone, a {'gain' if best['mean_gain'] >= 0 else 'loss'} of "
        f"{show_gain(abs(best['mean_gain']), metric).removeprefix('+')}"
    )
    if math.isnan(low):
        return f"{values[0].upper()}{values[1:]}; nobody can say whether that is more than noise."
    verdict = (
        "Joining helps"
        if low > 0
        else "Joining does not help"
        if high < 0
        else "Joining makes no difference that is more than noise"
    )
    beyond = "" if low <= 0 <= high else ", more than noise"
    return f"{verdict}: {values} (95 %: {show_ends(low, high, metric)}{beyond})."


def _who(best: Row) -> list[str]:
    """How many clients gain and lose by it."""
    if best["no_interval"] == best["clients"]:
        return []
    chance = best["by_chance"]
    by_chance = f"; by chance alone about {chance:.2g} would seem to gain or lose" if chance else ""
    lose = {0: "none loses", 1: "1 loses"}.get(best["lose"], f"{best['lose']} lose")
    return [
        f"With it {best['gain']} of {best['clients']} clients gain more than noise, {lose}, and "
        f"{best['within_noise']} cannot be told from no change{by_chance}."
    ]


def _others(rest: list[Row]) -> list[str]:
    """What can be said of the other methods, the best ones first."""
    groups = {
        "Also better than alone": [row for row in rest if row["low"] > 0],
        "Within noise of training alone": [row for row in rest if row["low"] <= 0 <= row["high"]],
        "Worse than alone": [row for row in rest if row["high"] < 0],
    }
    return [f"{words}: {_listed(rows)}." for words, rows in groups.items() if rows]


def _listed(rows: list[Row]) -> str:
    names = [f"{_named(row)} ({show_gain(row['mean_gain'], row['metric'])})" for row in rows]
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _named(row: Row) -> str:
    return _PLAIN.get(Model(row["method"], row["kind"]), str(row["method"]))
