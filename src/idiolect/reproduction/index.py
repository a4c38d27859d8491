"""Markdown of what came of recipes: an index with all verdicts, and a page for each recipe."""

from collections.abc import Sequence
from pathlib import Path

from idiolect.quantities import duration
from idiolect.reproduction.field import PAPER as FIELD
from idiolect.reproduction.field import field_page
from idiolect.reproduction.recipe import PAPERS, recipe_names
from idiolect.reproduction.record import Record, counts, read_record
from idiolect.reproduction.words import MARKS, Table, about, chosen, numbers, seen
from idiolect.store.files import write_bytes

HOW = """\
A claim is *confirmed* (✓) if the whole 95 % interval of the difference, over clients and seeds, is on its
side, *contradicted* (✗) if the whole interval is on the other side, and *inconclusive* (?) otherwise.
The counts are no score of a paper: its sentences are split into claims that can be computed, some claims are
other readings that were added when a first one did not hold, and bounds for words such as "almost" are ours;
each recipe's page says so. Seconds were measured on a busy machine.
`idiolect reproduce NAME` plays a recipe, and `idiolect reproduce NAME --text` prints it to be changed."""


def write_index(out: Path) -> None:
    """Write all verdicts of the recipes that were played below a folder, and a page for each of them."""
    records = read_records(out)
    for record in records:
        folder = out / record["name"]
        figures = [file.name for file in figures_of(folder)]
        write_bytes(folder / "README.md", recipe_page(record, figures).encode())
    if of_field := [record for record in records if record["paper"] == FIELD]:
        (out / FIELD).mkdir(exist_ok=True)
        write_bytes(out / FIELD / "README.md", field_page(of_field).encode())
    write_bytes(
        out / "README.md", index_page(records, [p for p in PAPERS if (out / f"{p}.html").is_file()]).encode()
    )


def figures_of(folder: Path) -> list[Path]:
    """The figures of a recipe, without those of the same curves over megabytes or seconds."""
    return [
        file for file in sorted(folder.glob("*.svg")) if not file.stem.endswith(("-megabytes", "-seconds"))
    ]


def read_records(out: Path) -> list[Record]:
    """What was kept of the recipes that were played below a folder, in the papers' order."""
    found = [record for folder in sorted(out.iterdir()) if (record := read_record(folder)) is not None]
    order = list(PAPERS)
    return sorted(found, key=lambda record: (order.index(record["paper"]), record["name"]))


def index_page(records: Sequence[Record], pages: Sequence[str]) -> str:
    """All verdicts, by paper."""
    total = {verdict: sum(counts(record).get(verdict, 0) for record in records) for verdict in MARKS}
    spent = sum(record["seconds"] for record in records)
    lines = [
        "# The papers' results, reproduced",
        "",
        f"{len(records)} recipes, {sum(total.values())} claims: "
        + ", ".join(f"{number} {verdict}" for verdict, number in total.items())
        + f". All runs together took {duration(spent)} of training on one processor core.",
        "",
        HOW,
    ]
    for paper, title in PAPERS.items():
        own = [record for record in records if record["paper"] == paper]
        if own:
            link = (
                f"\n\nWith all figures, to hover and zoom: [{paper}.html]({paper}.html)"
                if paper in pages
                else ""
            )
            if paper == FIELD:
                link += f"\n\nAll federations together: [ranks, costs, and what is said]({FIELD}/README.md)"
            lines += [
                "",
                f"## {title}{link}",
                "",
                "| recipe | what it is | size | claims |",
                "|---|---|---|---|",
            ]
            lines += [_index_row(record) for record in own]
    if missing := [name for name in recipe_names() if name not in {record["name"] for record in records}]:
        lines += ["", "## Not played yet", "", ", ".join(f"`{name}`" for name in missing)]
    return "\n".join(lines) + "\n"


def recipe_page(record: Record, figures: Sequence[str] = ()) -> str:
    """One recipe: verdicts, figures, numbers beside the paper's, what was chosen, and how to get it again."""
    lines = [
        f"# {record['item']}: {record['title']}",
        "",
        f"{record['paper_title']}. {about(record)}",
        "",
        f"```\n{record['command']}\n```",
    ]
    if record["claims"]:
        lines += ["", "## What the paper claims", "", "| claim | verdict | seen |", "|---|---|---|"]
        for claim in record["claims"]:
            compared = _cell("<br>".join(seen(claim, one) for one in claim["compared"]))
            lines.append(f"| {_cell(claim['says'])} | **{claim['verdict']}** | {compared} |")
    if record["found"]:
        lines += ["", "## What was found", "", record["found"].strip()]
    if figures:
        lines += ["", "## Figures", "", *(f"![]({name})" for name in figures)]
    if record["table"]:
        lines += ["", "## Numbers", "", *_markdown(numbers(record))]
    if record["left_open"]:
        lines += ["", "## What the paper leaves open", "", record["left_open"].strip()]
    if record["chosen"]:
        lines += [
            "",
            "Chosen on validation rows, with as many trials for each line:",
            "",
            *_markdown(chosen(record)),
        ]
    if record["failures"]:
        lines += ["", "## Runs that failed", "", *(f"- {failure}" for failure in record["failures"])]
    return "\n".join(lines) + "\n"


def _index_row(record: Record) -> str:
    said = "<br>".join(f"{MARKS[claim['verdict']]} {claim['says']}" for claim in record["claims"])
    link = f"[{record['name']}]({record['name']}/README.md)"
    return f"| {link} | {record['item']}: {record['title']} | {record['size']} | {said} |"


def _markdown(table: Table) -> list[str]:
    headings, rows = table
    lines = [f"| {' | '.join(headings)} |", "|" + "---|" * len(headings)]
    return lines + [f"| {' | '.join(map(_cell, row))} |" for row in rows]


def _cell(text: str) -> str:
    """A text that does not end the cell of a table."""
    return text.replace("|", "\\|")
