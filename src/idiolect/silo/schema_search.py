"""The schema that silos find together: their summaries joined, or the differences between their tables."""

import logging
import shlex
from collections.abc import Iterator, Mapping, Sequence

from idiolect.data.preprocessing import ColumnKind, ColumnSummary, Preprocessing
from idiolect.data.targets import MOST_WHOLE_CLASSES
from idiolect.errors import UserError
from idiolect.silo.requests import Link, Request, TooFewAnswersError, ask_all
from idiolect.silo.schema import Schema, Search, agreed_weights
from idiolect.silo.served_run import ServedRun
from idiolect.silo.table_summary import TableSummary
from idiolect.silo.wire import Packet

log = logging.getLogger(__name__)

Summaries = Mapping[str, TableSummary]  # by silo
_HOLDS: dict[ColumnKind, str] = {"number": "numbers", "category": "texts"}


def agree_on_schema(run: ServedRun, link: Link) -> None:
    """Find the schema where the configuration leaves it open, once in a run, and keep it."""
    search, silos = run.settings.schema, run.settings.silos
    if isinstance(search, Schema):
        return
    requests = {
        name: Request({"ask": "summary", "run": run.name, "name": name, **search.plain()}, {}, _read)
        for name in silos
    }
    try:
        summaries = ask_all(link, requests, run.settings.patience, None)
    except TooFewAnswersError as error:
        others = f"; besides, {found}" if (found := _differences(error.answers)) else ""
        raise UserError(f"{error}{others}") from None
    schema = find_schema(search, {name: summaries[name] for name in silos})
    run.agree(schema)
    rows = schema.preprocessing
    log.info(
        "found the schema together: %d columns, %d inputs, %s; it is in schema.json",
        len(rows.columns),
        len(rows.feature_names),
        f"classes {', '.join(rows.class_names)}" if rows.class_names else "regression",
    )


def find_schema(search: Search, summaries: Summaries) -> Schema:
    """The schema of all tables together, as if fitted on all their training rows."""
    if differences := _differences(summaries):
        raise UserError(f"the silos' tables differ and nothing was trained: {differences}")
    tables = list(summaries.values())
    by_name = [{column.name: column for column in table.columns} for table in tables]
    columns = tuple(
        ColumnSummary.joined([table[column.name] for table in by_name]).fit(search.missing)
        for column in tables[0].columns
    )
    if not columns:
        raise UserError(f"the silos' tables have no columns besides the target {search.target!r}")
    classes, mean, scale = _join_targets(search, [table.target for table in tables])
    rows = Preprocessing(columns, search.missing, classes, search.target, mean, scale)
    weights = agreed_weights(search.class_weights, classes)
    return Schema(rows, search.fractions, search.split_seed, weights)


def _read(packet: Packet) -> TableSummary:
    return TableSummary.from_plain(packet.header.get("summary"))


def _join_targets(search: Search, parts: Sequence[ColumnSummary]) -> tuple[tuple[str, ...], float, float]:
    """Classes and no scaling, or no classes and the scaling of a regression; by the rule of a table's."""
    if search.classes:
        return search.classes, 0.0, 1.0
    joined = ColumnSummary.joined(parts)
    if joined.kind == "number" and not _are_classes(search, parts, joined):
        return (), *joined.moments.standard()
    classes = sorted(joined.counts, key=float) if joined.kind == "number" else sorted(joined.counts)
    if len(classes) < 2:
        raise UserError(
            f"the target {search.target!r} has fewer than two classes at all silos together: "
            f"{', '.join(classes) or 'none'}"
        )
    return tuple(classes), 0.0, 1.0


def _are_classes(search: Search, parts: Sequence[ColumnSummary], joined: ColumnSummary) -> bool:
    if search.task != "auto":
        return search.task == "classification"
    return all(part.counts for part in parts) and len(joined.counts) <= MOST_WHOLE_CLASSES


def _differences(summaries: Summaries) -> str:
    """In what the tables differ, by column and silo, and what to type; empty if they do not."""
    holdings: dict[str, dict[str, ColumnKind]] = {}  # column -> silo -> what it holds there
    for silo, table in summaries.items():
        for column in (*table.columns, table.target):
            holdings.setdefault(column.name, {})[silo] = column.kind
    differences = [
        text for name, kinds in holdings.items() if (text := _difference(name, kinds, list(summaries)))
    ]
    if not differences:
        return ""
    return (
        f"{'; '.join(differences)} (leave columns out and go on with `idiolect serve --resume`"
        f"{''.join(_ignored(holdings, list(summaries)))}, or start anew with schema.categories if their "
        "numbers are codes)"
    )


def _ignored(holdings: Mapping[str, Mapping[str, ColumnKind]], silos: Sequence[str]) -> Iterator[str]:
    """The options with which silos leave out what not all of them have."""
    for silo in silos:
        extra = [name for name, kinds in holdings.items() if silo in kinds and len(kinds) < len(silos)]
        if extra:
            yield f"; {silo}: --ignore {shlex.quote(','.join(extra))}"


def _difference(name: str, kinds: Mapping[str, ColumnKind], silos: Sequence[str]) -> str:
    if lacking := [silo for silo in silos if silo not in kinds]:
        if 2 * len(lacking) < len(silos):
            return f"{name!r} is missing at {', '.join(lacking)}"
        return f"{name!r} is only at {', '.join(kinds)}"
    where = {text: ", ".join(silo for silo in silos if kinds[silo] == kind) for kind, text in _HOLDS.items()}
    if not all(where.values()):
        return ""
    return f"{name!r} holds " + " and ".join(f"{text} at {at}" for text, at in where.items())
