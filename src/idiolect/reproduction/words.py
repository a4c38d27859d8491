"""What came of a recipe in words and tables, the same in Markdown and on pages."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from idiolect.quantities import amount, duration, show_ends, show_gain, show_value
from idiolect.reproduction.record import Record, counts

MARKS = {"confirmed": "✓", "contradicted": "✗", "inconclusive": "?"}
Table = tuple[list[str], list[list[str]]]

_VALUES = {
    "reported": "reported",
    "last": "last round",
    "best": "best test round",
    "worst_tenth": "worst 10 %",
    "newcomers": "newcomers",
}


def about(record: Record) -> str:
    """How a recipe was played."""
    made = record["made_with"]
    from_commit = f", commit {made['commit']}" if isinstance(made.get("commit"), str) else ""
    made_with = f"idiolect {made['idiolect']}{from_commit}, torch {made['torch']}"
    changes = f" ({record['changes']})" if record["changes"] else ""
    seeds = ", ".join(map(str, record["seeds"]))
    return (
        f"Size {record['size']}{changes}; seeds {seeds}; {record['runs']} runs, "
        f"{duration(record['seconds'])} of training; {made_with}."
    )


def verdict_words(record: Record) -> str:
    """How many claims have which verdict, as "3 confirmed, 1 contradicted"."""
    return ", ".join(f"{number} {verdict}" for verdict, number in counts(record).items())


def seen(claim: Mapping[str, Any], compared: Mapping[str, Any]) -> str:
    """One comparison of a claim: the difference, and its interval."""
    where = f"{compared['panel']}: " if compared["panel"] else ""
    mark, difference = MARKS[compared["verdict"]], compared["difference"]
    names = f"{compared['first']} − {compared['second']}"
    if not isinstance(difference, Mapping):
        return f"{mark} {where}{names}: {compared['why']}"
    value, low, high = (difference[end] for end in ("value", "low", "high"))
    ends = "" if low == high else f" ({show_ends(low, high, claim['metric'])})"
    return f"{mark} {where}{names}: {show_gain(value, claim['metric'])}{ends}"


def numbers(record: Record) -> Table:
    """The numbers of a recipe beside the paper's."""
    rows = record["table"]
    if not rows:
        return [], []
    metric = rows[0]["metric"]
    panels = any(row["panel"] for row in rows)
    values = [name for name in _VALUES if _some(rows, name)]
    of_paper = [name for name in rows[0] if name.startswith("paper_")]
    costs = [name for name in ("megabytes", "seconds") if _some(rows, name)]
    losses = [name for name in ("train_loss",) if _some(rows, name)]
    headings = [
        *(["panel"] if panels else []),
        "model",
        *(_VALUES[name] for name in values),
        *(name.replace("_", " ") for name in (*losses, *of_paper)),
        *({"megabytes": "sent", "seconds": "time"}[name] for name in costs),
    ]
    table = []
    for row in rows:
        cells = [row["panel"], row["model"]] if panels else [row["model"]]
        cells += [_value(row, name, metric) for name in values]
        cells += [show_value(_number(row, name), "loss") for name in losses]
        cells += [show_value(_number(row, name), name.split("_", 2)[2]) for name in of_paper]
        cells += [_cost(name, _number(row, name)) for name in costs]
        table.append(cells)
    return headings, table


def chosen(record: Record) -> Table:
    """What was open and is decided."""
    rows = record["chosen"]
    places = ["panel", "line"] if any(row["panel"] for row in rows) else ["line"]
    names = list(dict.fromkeys(name for row in rows for name in row if name not in ("panel", "line")))
    headings = [*places, *names]
    return headings, [[str(row.get(name, "")) for name in headings] for row in rows]


def _value(row: Mapping[str, Any], name: str, metric: str) -> str:
    shown = show_value(_number(row, name), metric)
    if name == "reported" and not math.isnan(_number(row, "low")) and row["low"] != row["high"]:
        shown += f" ({show_value(row['low'], metric)} to {show_value(row['high'], metric)})"
    return shown + (" diverged" if name == "reported" and row.get("diverged") else "")


def _cost(name: str, number: float) -> str:
    if math.isnan(number):
        return "–"
    return amount(8e6 * number) if name == "megabytes" else duration(number)


def _number(row: Mapping[str, Any], name: str) -> float:
    value = row.get(name)
    return float(value) if isinstance(value, int | float) else math.nan


def _some(rows: Sequence[Mapping[str, Any]], name: str) -> bool:
    return any(not math.isnan(_number(row, name)) for row in rows)
