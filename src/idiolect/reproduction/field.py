"""All methods over all federations of the field's comparison: ranks, costs, and what is usually said of them.

Made from the records of the recipes of `field`, each of which is one federation.
"""

import math
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
_PROTOCOL = """\
The same clients, rows, batches, first models and number of rounds for all; the same number of settings tried
for each, chosen on validation rows; accuracy on each client's own test rows at the round chosen on validation
rows, the mean over clients and seeds."""
_ABOUT_RANKS = """\
The mean rank over federations (1 is the best) with a 95 % interval over federations and seeds. A method with
one shared model is ranked by that, all others by their own kind of model. Federations that some methods
cannot be played on do not count in ranks. Bold: the best of a federation."""
_ABOUT_COSTS = """\
Means over federations: accuracy of the worst tenth of clients, and of clients that were left out of training
(where a federation has some) after they trained as their method has it; traffic and seconds of training
relative to FedAvg; how much better the best test round, the field's habit, looks than the reported one."""


# Of one federation: by the line of the recipe, the row of its table.
Models = dict[str, dict[str, Any]]


class Rank(NamedTuple):
    """The mean rank of a method over federations, 1 being the best, with its 95 % interval."""

    mean: float
    low: float
    high: float


def judged_models(record: Record) -> Models:
    """The models of a federation that methods are ranked by."""
    return {row["line"]: row for row in record["table"] if row["judged"]}


def mean_ranks(federations: Sequence[Models]) -> dict[str, Rank]:
    """Of the methods that all federations have, the best first.

    A replicate of the interval draws federations with replacement, and every method's mean in each of them
    from what it varies by between seeds.
    """
    lines = [line for line in federations[0] if all(line in models for models in federations)]
    values = np.array([[models[line]["reported"] for line in lines] for models in federations])
    noise = np.array([[_noise_of_seeds(models[line]) for line in lines] for models in federations])
    draw = np.random.default_rng(0)
    replicates = []
    for _ in range(REPLICATES):
        places = draw.integers(len(federations), size=len(federations))
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
    federations = {record["item"]: judged_models(record) for record in records}
    most = max(map(len, federations.values()))
    ranks = mean_ranks([models for models in federations.values() if len(models) == most])
    named = ", ".join(f"[{record['item']}](../{record['name']}/README.md)" for record in records)
    lines = [
        "# All methods under one protocol",
        "",
        f"{len(ranks)} methods (FedAvg twice: its shared model, and what clients make of it) on {named}.",
        "",
        _PROTOCOL,
        "",
        "## Ranks",
        "",
        _ABOUT_RANKS,
        "",
        *_rank_table(ranks, federations),
        "",
        "## What is said in the field",
        "",
        *(f"- {sentence}" for sentence in _statements(records, federations, ranks)),
        "",
        "## What it costs, and for whom",
        "",
        _ABOUT_COSTS,
        "",
        *_cost_table(ranks, federations),
    ]
    return "\n".join(lines) + "\n"


def _ranks(values: np.ndarray) -> np.ndarray:
    """Of the columns in each row, the highest being 1; equal values share the mean of their places."""
    return pd.DataFrame(-values).rank(axis=1).to_numpy()


def _noise_of_seeds(model: dict[str, Any]) -> float:
    """The standard error of a mean over seeds; none where there is one seed."""
    spread = float(model.get("over_seeds", math.nan))
    return 0.0 if math.isnan(spread) else spread / math.sqrt(model["seeds"])


def _rank_table(ranks: dict[str, Rank], federations: dict[str, Models]) -> list[str]:
    winners = _winners(federations, "reported")
    rows = []
    for line, rank in ranks.items():
        kind = next(models[line]["kind"] for models in federations.values() if line in models)
        cells = [line, kind, f"{rank.mean:.1f} ({rank.low:.1f} to {rank.high:.1f})"]
        for item, models in federations.items():
            value = show_value(models[line]["reported"], models[line]["metric"]) if line in models else "–"
            cells.append(f"**{value}**" if winners[item] == line else value)
        rows.append(cells)
    return _markdown(["method", "model", "mean rank", *federations], rows)


def _cost_table(ranks: dict[str, Rank], federations: dict[str, Models]) -> list[str]:
    rows = []
    for line in ranks:
        there = [models for models in federations.values() if line in models]
        own = [models[line] for models in there]
        shared = [models[_SHARED] for models in there if _SHARED in models]
        metric = own[0]["metric"]
        rows.append(
            [
                line,
                show_value(_mean([model["worst_tenth"] for model in own]), metric),
                show_value(_mean([model.get("newcomers", math.nan) for model in own]), metric),
                _relative(own, shared, "megabytes"),
                _relative(own, shared, "seconds"),
                show_gain(_mean([_flattery(model) for model in own]), metric),
            ]
        )
    return _markdown(["method", "worst 10 %", "newcomers", "traffic", "seconds", "best test round"], rows)


def _statements(
    records: Sequence[Record], federations: dict[str, Models], ranks: dict[str, Rank]
) -> list[str]:
    """What is usually said, and how it stands here."""
    claims = dict.fromkeys(claim["says"] for record in records for claim in record["claims"])
    said = [_of_recipes(records, says) for says in claims]
    said.append(_no_winner(federations))
    if _TUNED in ranks:
        said.append(_fine_tuned(federations, ranks))
    return [*said, _flatters(federations)]


def _of_recipes(records: Sequence[Record], says: str) -> str:
    """A claim with its verdict in each federation."""
    verdicts: dict[str, list[str]] = {}
    for record in records:
        for claim in record["claims"]:
            if claim["says"] == says:
                verdicts.setdefault(claim["verdict"], []).append(record["item"])
    told = "; ".join(f"**{verdict}** on {', '.join(items)}" for verdict, items in verdicts.items())
    return f"{says}: {told}."


def _no_winner(federations: dict[str, Models]) -> str:
    winners = _winners(federations, "reported")
    several = len(set(winners.values())) > 1
    verdict = "confirmed" if several else "contradicted" if len(federations) > 1 else "inconclusive"
    where = "; ".join(f"{item}: {line}" for item, line in winners.items())
    return f"No method wins everywhere: **{verdict}**. The best are, if often within noise, {where}."


def _fine_tuned(federations: dict[str, Models], ranks: dict[str, Rank]) -> str:
    lacks = [
        max(model["reported"] for model in models.values()) - models[_TUNED]["reported"]
        for models in federations.values()
        if _TUNED in models
    ]
    return (
        f"Fine-tuned FedAvg has the mean rank {ranks[_TUNED].mean:.1f} of {len(ranks)}; to the best of a "
        f"federation it lacks {_points(min(lacks))} to {_points(max(lacks))}."
    )


def _flatters(federations: dict[str, Models]) -> str:
    every = [_flattery(model) for models in federations.values() for model in models.values()]
    by_test, reported = (_winners(federations, column) for column in ("best", "reported"))
    changed = sum(by_test[item] != line for item, line in reported.items())
    return (
        "Choosing the round on test rows flatters, as it cannot but do. The best test round is better than "
        f"the reported one by {_points(_mean(every))} in the mean over methods and federations, at most by "
        f"{_points(max(every))}, and makes another method the best in {changed} of {len(federations)} "
        "federations."
    )


def _winners(federations: dict[str, Models], column: str) -> dict[str, str]:
    """The best method of each federation."""
    return {
        item: max(models, key=lambda line: float(models[line][column]))
        for item, models in federations.items()
    }


def _flattery(model: dict[str, Any]) -> float:
    return float(model["best"] - model["reported"])


def _relative(own: Sequence[dict[str, Any]], shared: Sequence[dict[str, Any]], column: str) -> str:
    """How many times as much as FedAvg; nothing where that is missing."""
    if len(shared) != len(own):
        return "–"
    return (
        f"{_mean([model[column] / fedavg[column] for model, fedavg in zip(own, shared, strict=True)]):.2g} x"
    )


def _mean(values: Sequence[float]) -> float:
    """Of the values that there are."""
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def _points(share: float) -> str:
    return f"{100 * share:.1f} points"


def _markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [
        f"| {' | '.join(headings)} |",
        "|" + "---|" * len(headings),
        *(f"| {' | '.join(r)} |" for r in rows),
    ]
