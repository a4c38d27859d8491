"""Markdown of what came of recipes: an index with all verdicts, and a page for each recipe."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from idiolect.quantities import duration, show_ends, show_gain, show_value
from idiolect.reproduction.field import PAPER as FIELD
from idiolect.reproduction.field import field_page
from idiolect.reproduction.record import Record, counts, read_record
from idiolect.reproduction.recipe import PAPERS
from idiolect.store.files import write_bytes

_MARKS = {"confirmed": "✓", "contradicted": "✗", "inconclusive": "?"}


def write_index(out: Path) -> None:
    """Write all verdicts of the recipes that were played below a folder, and a page for each of them."""
    records = [record for folder in sorted(out.iterdir()) if (record := read_record(folder)) is not None]
    for record in records:
        write_bytes(out / record["name"] / "README.md", recipe_page(record).encode())
    if of_field := [record for record in records if record["paper"] == FIELD]:
        (out / FIELD).mkdir(exist_ok=True)
        write_bytes(out / FIELD / "README.md", field_page(of_field).encode())
    write_bytes(out / "README.md", index_page(records).encode())


def index_page(records: Sequence[Record]) -> str:
    """All verdicts, by paper."""
    total = {verdict: sum(counts(record).get(verdict, 0) for record in records) for verdict in _MARKS}
    spent = sum(record["seconds"] for record in records)
    lines = [
        "# The papers' results, reproduced",
        "",
        f"{len(records)} figures and tables, {sum(total.values())} claims: "
        + ", ".join(f"{number} {verdict}" for verdict, number in total.items())
        + f". All runs took {duration(spent)} of training, one after the other.",
        "",
        "A claim is *confirmed* if the whole 95 % interval of the difference, over clients and seeds, is on its "
        "side, *contradicted* if the whole interval is on the other side, and *inconclusive* otherwise. "
        "Every number comes from `idiolect reproduce NAME`.",
    ]
    for paper, title in PAPERS.items():
        own = [record for record in records if record["paper"] == paper]
        if own:
            lines += ["", f"## {title}", ""]
            if paper == FIELD:
                lines += [
                    f"All federations together: [ranks, costs, and what the field says]({FIELD}/README.md).",
                    "",
                ]
            lines += ["| | size | claims | |", "|---|---|---|---|"]
            lines += [_index_row(record) for record in own]
    return "\n".join(lines) + "\n"


def recipe_page(record: Record) -> str:
    """One recipe: verdicts, numbers beside the paper's, what was chosen, and how to get it again."""
    made = record["made_with"]
    from_commit = f", commit {made['commit']}" if isinstance(made.get("commit"), str) else ""
    lines = [
        f"# {record['item']}: {record['title']}",
        "",
        f"{record['paper_title']}. Size: **{record['size']}**"
        + (f" ({record['changes']})" if record["changes"] else "")
        + f"; seeds {', '.join(map(str, record['seeds']))}; idiolect {made['idiolect']}{from_commit}, torch "
        f"{made['torch']}; {record['runs']} runs, {duration(record['seconds'])} of training.",
        "",
        f"```\n{record['command']}\n```",
    ]
    if record["claims"]:
        lines += ["", "## What the paper claims", "", "| claim | verdict | seen |", "|---|---|---|"]
        lines += [_claim_row(claim) for claim in record["claims"]]
    if record["found"]:
        lines += ["", "## What does not hold, and what was tried", "", record["found"].strip()]
    if record["table"]:
        lines += ["", "## Numbers", "", *_table(record["table"])]
    if record["left_open"]:
        lines += ["", "## What the paper leaves open", "", record["left_open"].strip()]
    if record["chosen"]:
        lines += [
            "",
            "Chosen on validation rows, with as many trials for each line:",
            "",
            *_chosen(record["chosen"]),
        ]
    if record["failures"]:
        lines += ["", "## Runs that failed", "", *(f"- {failure}" for failure in record["failures"])]
    return "\n".join(lines) + "\n"


def seen(claim: dict[str, Any], compared: dict[str, Any]) -> str:
    """A comparison in words."""
    where = f"{compared['panel']}: " if compared["panel"] else ""
    mark, difference = _MARKS[compared["verdict"]], compared["difference"]
    names = f"{compared['first']} − {compared['second']}"
    if not isinstance(difference, dict):
        return f"{mark} {where}{names}: {compared['why']}"
    value, low, high = (difference[end] for end in ("value", "low", "high"))
    ends = "" if low == high else f" ({show_ends(low, high, claim['metric'])})"
    return f"{mark} {where}{names}: {show_gain(value, claim['metric'])}{ends}"


def _index_row(record: Record) -> str:
    verdicts = " ".join(_MARKS[claim["verdict"]] for claim in record["claims"])
    said = "<br>".join(f"{_MARKS[c['verdict']]} {c['says']}" for c in record["claims"])
    return f"| [{record['item']}]({record['name']}/README.md) {record['title']} | {record['size']} | {said} | {verdicts} |"


def _claim_row(claim: dict[str, Any]) -> str:
    return f"| {claim['says']} | **{claim['verdict']}** | {'<br>'.join(seen(claim, c) for c in claim['compared'])} |"


_HEADINGS = {
    "reported": "reported",
    "last": "last round",
    "best": "best test round",
    "worst_tenth": "worst 10 %",
    "newcomers": "newcomers",
}


def _table(rows: Sequence[dict[str, Any]]) -> list[str]:
    metric = rows[0]["metric"]
    columns = [name for name in _HEADINGS if any(_known(row.get(name)) for row in rows)]
    others = [
        name for name in ("train_loss", "megabytes", "seconds") if any(_known(row.get(name)) for row in rows)
    ]
    of_paper = [name for name in rows[0] if name.startswith("paper_")]
    headings = [
        "panel", "model", *(f"{_HEADINGS[name]}" for name in columns), *(n.replace("_", " ") for n in (*others, *of_paper)),
    ]  # fmt: skip
    lines = [f"| {' | '.join(headings)} |", "|" + "---|" * len(headings)]
    for row in rows:
        cells = [row["panel"], row["model"]]
        for name in columns:
            shown = show_value(row.get(name, math.nan), metric)
            if name == "reported" and _known(row.get("low")):
                shown += f" ({show_value(row['low'], metric)} to {show_value(row['high'], metric)})"
            cells.append(shown)
        cells += [f"{row[name]:.3g}" if _known(row.get(name)) else "–" for name in others]
        cells += [show_value(row.get(name, math.nan), name.split("_", 2)[2]) for name in of_paper]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _chosen(rows: Sequence[dict[str, Any]]) -> list[str]:
    names = list(dict.fromkeys(name for row in rows for name in row if name not in ("panel", "line")))
    lines = [f"| panel | line | {' | '.join(names)} |", "|" + "---|" * (len(names) + 2)]
    return lines + [
        f"| {row['panel']} | {row['line']} | {' | '.join(str(row.get(name, '')) for name in names)} |"
        for row in rows
    ]


def _known(value: Any) -> bool:
    return isinstance(value, float) and not math.isnan(value)
