"""The numbers of a recipe beside the paper's: a row for each panel and model.

reported, low, high   the mean over clients and seeds at the round chosen on validation rows, with its 95 %
                      interval
last, best            the same at the last round, and at the best test round: the field's habit, which looks
                      at the test rows to choose, and is no estimate of anything
worst_tenth           the mean of the worst tenth of the clients at the reported round
newcomers             the mean of clients left out of training, where there are some
train_loss            on training rows, where they were evaluated
megabytes, seconds    of the whole run
paper, ...            what the paper reports
"""

from typing import Any

import numpy as np
import pandas as pd

from idiolect.errors import UserError
from idiolect.reproduction.claims import Moment, Part
from idiolect.reproduction.plan import Place
from idiolect.reproduction.played import PlayedRecipe, summary_of
from idiolect.reproduction.quantities import megabytes
from idiolect.reproduction.recipe import Numbers
from idiolect.reproduction.verdicts import paired_difference

_NOTHING = float("nan")


def table_of(played: PlayedRecipe) -> pd.DataFrame:
    """All models of all lines."""
    rows = [
        _row(played, panel, line, kind)
        for (panel, line), runs in played.runs.items()
        for kind in _kinds(runs)
    ]
    table = pd.DataFrame(rows)
    for numbers in played.recipe.numbers:
        own = [
            _of_paper(numbers, panel, model) for panel, model in zip(table.panel, table.model, strict=True)
        ]
        if any(value == value for value in own):
            table[f"paper_{numbers.part}_{numbers.metric}"] = own
    return table.dropna(axis=1, how="all")


def _kinds(runs: dict[int, Any]) -> list[str]:
    return list(next((summary_of(run.path)["kinds"] for run in runs.values()), ()))


def _row(played: PlayedRecipe, panel: str, line: str, kind: str) -> dict[str, Any]:
    model = f"{line} {kind}"
    runs = [
        run for place, by_seed in played.runs.items() if place == (panel, line) for run in by_seed.values()
    ]
    reported = played.values(model, panel)
    mean, low, high = paired_difference(reported, reported * 0)
    summaries = [summary_of(run.path) for run in runs]
    return {
        "panel": panel,
        "line": line,
        "kind": kind,
        "model": model,
        "judged": played.kind_of(Place(panel, line)) == kind,
        "metric": played.metric,
        "reported": mean,
        "low": low,
        "high": high,
        "over_seeds": float(reported.mean().std(ddof=1)) if reported.shape[1] > 1 else _NOTHING,
        "round": float(np.mean([summary["kinds"][kind]["round"] for summary in summaries])),
        "last": _mean(played, model, panel, at="last"),
        "best": _mean(played, model, panel, at="best"),
        "worst_tenth": float(np.mean([summary["kinds"][kind]["worst_tenth"] for summary in summaries])),
        "newcomers": _mean(played, model, panel, part="newcomers"),
        "train_loss": _mean(played, model, panel, of="loss", part="train"),
        "megabytes": float(np.mean([megabytes(run) for run in runs])),
        "seconds": float(np.mean([run.timing()["seconds"].max() for run in runs])),
        "diverged": any(kind in summary["diverged"] for summary in summaries),
        "seeds": len(runs),
    }


def _mean(
    played: PlayedRecipe,
    model: str,
    panel: str,
    *,
    of: str | None = None,
    part: Part | None = None,
    at: Moment = "reported",
) -> float:
    try:
        return float(np.nanmean(played.values(model, panel, of, part, at).to_numpy()))
    except UserError:
        return _NOTHING


def _of_paper(numbers: Numbers, panel: str, model: str) -> float:
    value = numbers.values.get(panel, {}).get(model, _NOTHING)
    return value / 100 if numbers.percent else value
