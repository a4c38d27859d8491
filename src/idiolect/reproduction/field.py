"""All methods over all federations of the field's comparison: ranks, costs, and what is usually said of them.

Made from the records of the recipes of `field`, each of which is one federation.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from idiolect.evaluation.bootstrap import interval
from idiolect.quantities import show_gain, show_value
from idiolect.reproduction.record import Record

PAPER = "field"
REPLICATES = 2000
_SHARED, _TUNED = "FedAvg", "FedAvg, fine-tuned"


class Rank(NamedTuple):
    """The mean rank of a method over federations, 1 being the best, with its 95 % interval."""

    mean: float
    low: float
    high: float


def judged_models(record: Record) -> pd.DataFrame:
    """The models of a federation that methods are ranked by, a row for each line of the recipe."""
    rows = [row for row in record["table"] if row["judged"]]
    return pd.DataFrame(rows).set_index("line")


def mean_ranks(tables: Sequence[pd.DataFrame]) -> dict[str, Rank]:
    """Of the methods that all federations have, the best first.

    A replicate of the interval draws federations with replacement, and every method's mean in each of them
    from what it varies by between seeds.
    """
    lines = [line for line in tables[0].index if all(line in table.index for table in tables)]
    values = np.stack([table.loc[lines, "reported"].to_numpy(dtype=float) for table in tables])
    noise = np.stack([_noise_of_seeds(table.loc[lines]) for table in tables])
    draw = np.random.default_rng(0)
    replicates = []
    for _ in range(REPLICATES):
        places = draw.integers(len(tables), size=len(tables))
        drawn = values[places] + noise[places] * draw.normal(size=noise.shape)
        replicates.append(_ranks(drawn).mean(0))
    ends = [interval(column) for column in np.stack(replicates).T]
    means = _ranks(values).mean(0)
    found = {
        line: Rank(float(mean), float(low), float(high))
        for line, mean, (low, high) in zip(lines, means, ends, strict=True)
    }
    return dict(sorted(found.items(), key=lambda item: item[1].mean))


def field_page(records: Sequence[Record]) -> str:
    """Markdown."""
    tables = {record["name"]: judged_models(record) for record in records}
    ranks = mean_ranks(list(tables.values()))
    named = ", ".join(f"[{record['item']}](../{record['name']}/README.md)" for record in records)
    lines = [
        "# All methods under one protocol",
        "",
        f"{len(ranks)} methods on {len(records)} federations: {named}. The same clients, rows, batches, first models "
        "and number of rounds for all; the same number of settings tried for each, chosen on validation rows; accuracy "
        "on each client's own test rows at the round chosen on validation rows, the mean over clients and seeds.",
        "",
        "## Ranks",
        "",
        "The mean rank over federations (1 is the best) with a 95 % interval over federations and seeds. A method with "
        "one shared model is ranked by that, all others by their own kind of model.",
        "",
        *_rank_table(ranks, records, tables),
        "",
        "## What is said in the field",
        "",
        *(f"- {sentence}" for sentence in _statements(records, tables, ranks)),
        "",
        "## What it costs, and for whom",
        "",
        "Means over federations: of the worst tenth of clients, of clients that were left out of training (where a "
        "federation has some), of traffic and of seconds of training relative to FedAvg; and how much better the best "
        "test round, the field's habit, looks than the round chosen on validation rows.",
        "",
        *_cost_table(ranks, tables),
    ]
    return "\n".join(lines) + "\n"


def _ranks(values: np.ndarray) -> np.ndarray:
    """Of the columns in each row, the highest being 1; equal values share the mean of their places."""
    return pd.DataFrame(-values).rank(axis=1).to_numpy()


def _noise_of_seeds(table: pd.DataFrame) -> np.ndarray:
    """The standard error of each mean over seeds; none where there is one seed."""
    if "over_seeds" not in table:
        return np.zeros(len(table))
    return (table["over_seeds"].fillna(0.0) / table["seeds"] ** 0.5).to_numpy(dtype=float)


def _rank_table(
    ranks: dict[str, Rank], records: Sequence[Record], tables: dict[str, pd.DataFrame]
) -> list[str]:
    headings = ["method", "model", "mean rank", *(record["item"] for record in records)]
    lines = [f"| {' | '.join(headings)} |", "|" + "---|" * len(headings)]
    for line, rank in ranks.items():
        first = next(iter(tables.values()))
        cells = [line, str(first.loc[line, "kind"]), f"{rank.mean:.1f} ({rank.low:.1f} to {rank.high:.1f})"]
        for table in tables.values():
            value = show_value(float(table.loc[line, "reported"]), str(table.loc[line, "metric"]))
            best = table.loc[list(ranks), "reported"].idxmax() == line
            cells.append(f"**{value}**" if best else value)
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _statements(
    records: Sequence[Record], tables: dict[str, pd.DataFrame], ranks: dict[str, Rank]
) -> list[str]:
    """What is usually said, and how it stands here."""
    said = [
        _of_recipes(records, says) for says in dict.fromkeys(c["says"] for r in records for c in r["claims"])
    ]
    winners = {
        record["item"]: table.loc[list(ranks), "reported"].idxmax()
        for record, table in zip(records, tables.values(), strict=True)
    }
    several = len(set(winners.values())) > 1
    verdict = "confirmed" if several else "contradicted" if len(records) > 1 else "inconclusive"
    where = "; ".join(f"{item}: {line}" for item, line in winners.items())
    said.append(f"No method wins everywhere: **{verdict}**. The best are {where}.")
    if _TUNED in ranks:
        gaps = [
            table.loc[_TUNED, "reported"] - table.loc[list(ranks), "reported"].max()
            for table in tables.values()
        ]
        said.append(
            f"Fine-tuned FedAvg has the mean rank {ranks[_TUNED].mean:.1f} of {len(ranks)}; to the best of each "
            f"federation it lacks {_points(-max(gaps))} to {_points(-min(gaps))}."
        )
    every = np.concatenate([_flattery(table, list(ranks)) for table in tables.values()])
    changed = sum(
        table.loc[list(ranks), "reported"].idxmax() != table.loc[list(ranks), "best"].idxmax()
        for table in tables.values()
    )
    said.append(
        "Choosing the round on test rows flatters: **confirmed**"
        if every.mean() > 0
        else "Choosing the round on test rows flatters: **contradicted**"
    )
    said[-1] += (
        f". The best test round is better than the reported one by {_points(float(every.mean()))} in the mean over "
        f"methods and federations, at most by {_points(float(every.max()))}, and makes another method the best in "
        f"{changed} of {len(tables)} federations."
    )
    return said


def _of_recipes(records: Sequence[Record], says: str) -> str:
    """A claim with its verdict in each federation."""
    verdicts: dict[str, list[str]] = {}
    for record in records:
        for claim in record["claims"]:
            if claim["says"] == says:
                verdicts.setdefault(claim["verdict"], []).append(record["item"])
    told = "; ".join(f"**{verdict}** on {', '.join(items)}" for verdict, items in verdicts.items())
    return f"{says}: {told}."


def _cost_table(ranks: dict[str, Rank], tables: dict[str, pd.DataFrame]) -> list[str]:
    headings = ["method", "worst 10 %", "newcomers", "traffic", "seconds", "best test round"]
    lines = [f"| {' | '.join(headings)} |", "|" + "---|" * len(headings)]
    metric = str(next(iter(tables.values()))["metric"].iloc[0])
    for line in ranks:
        flattery = np.mean([_flattery(table, [line]) for table in tables.values()])
        cells = [
            line,
            show_value(_mean_of(tables, line, "worst_tenth"), metric),
            show_value(_mean_of(tables, line, "newcomers"), metric),
            _times(_relative(tables, line, "megabytes")),
            _times(_relative(tables, line, "seconds")),
            show_gain(float(flattery), metric),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _flattery(table: pd.DataFrame, lines: Sequence[str]) -> np.ndarray:
    return (table.loc[lines, "best"] - table.loc[lines, "reported"]).to_numpy(dtype=float)


def _mean_of(tables: dict[str, pd.DataFrame], line: str, column: str) -> float:
    """Over the federations that have it."""
    known = [float(table.loc[line, column]) for table in tables.values() if column in table]
    return float(np.mean(known)) if known else float("nan")


def _relative(tables: dict[str, pd.DataFrame], line: str, column: str) -> float:
    if not all(_SHARED in table.index for table in tables.values()):
        return float("nan")
    return float(np.mean([table.loc[line, column] / table.loc[_SHARED, column] for table in tables.values()]))


def _times(ratio: float) -> str:
    return "–" if ratio != ratio else f"{ratio:.2g} x"


def _points(share: Any) -> str:
    return f"{100 * float(share):.1f} points"
