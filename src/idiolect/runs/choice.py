"""No client worse off: each keeps the model that is best on its own validation rows.

A client chooses between what it has alone, the shared model, that fine-tuned, and what a method is judged by.
Of equals it keeps the first of these, so that it joins only where that helps; where the metric has no value
on its validation rows their loss decides, and without such rows it stays alone. What it costs to choose by a
few rows is told by the best choice for the test rows, which nobody can make (the oracle).
"""

import math
from typing import NamedTuple

import numpy as np
import pandas as pd

from idiolect.evaluation.summary import TIED, TIED_AT_ZERO
from idiolect.runs.reported import ALONE, CHOSEN, SHARED, TUNED, Model, Reported

COLUMNS = ("method", "seed", "client", "chosen", "validation", "value", "oracle", "oracle_value")


def candidates(reported: Reported, method: str) -> list[Model]:
    """What a client that knows one method chooses from; the first one is kept of equals."""
    own = [model for model in reported.models if model.method == method]
    return [model for model in dict.fromkeys((ALONE, SHARED, TUNED, *own)) if model in reported.models]


def choosing_methods(reported: Reported) -> list[str]:
    """The methods beside training alone, if that is there to be kept.

    FedAvg's own models are in everybody's choice: it has one of its own only where it is the only method.
    Nobody chooses without validation rows, nor on the rows by which the choice would be judged.
    """
    if ALONE not in reported.models or not reported.has_both_parts:
        return []
    methods = list(dict.fromkeys(model.method for model in reported.models))
    others = [method for method in methods if method != ALONE.method]
    beside = [method for method in others if method != SHARED.method]
    return beside or others


def choices(reported: Reported) -> pd.DataFrame:
    """What each client keeps under each method and seed, and what would have been best on its test rows."""
    rows = [
        row
        for method in choosing_methods(reported)
        for seed in reported.seeds
        for row in _choices_of(reported, method, seed)
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _choices_of(reported: Reported, method: str, seed: int) -> list[tuple[object, ...]]:
    runs = {model: reported.of(model, seed) for model in candidates(reported, method)}
    if any(run is None for run in runs.values()):  # one of them failed
        return []
    sign = 1 if reported.higher_is_better else -1
    by_model = {
        model: (run.validation[model.kind], run.losses[model.kind], run.values[model.kind])
        for model, run in runs.items()
        if run is not None
    }
    rows: list[tuple[object, ...]] = []
    for client in reported.clients:
        told = [[float(series.get(client, np.nan)) for series in each] for each in by_model.values()]
        validation, losses, values = (np.array(column) for column in zip(*told, strict=True))
        scores = sign * validation if (~np.isnan(validation)).any() else -losses
        kept, best = _first_best(scores), _first_best(sign * values)
        models = list(by_model)
        rows.append(
            (
                method,
                seed,
                client,
                str(models[kept]),
                validation[kept],
                values[kept],
                # Whoever keeps one of several that are equally good has not chosen wrongly.
                str(models[kept if _equal(values[kept], values[best]) else best]),
                values[best],
            )
        )
    return rows


def _first_best(scores: np.ndarray) -> int:
    known = np.where(np.isnan(scores), -np.inf, scores)
    return next(place for place, score in enumerate(known) if _equal(score, known.max()))


def _equal(one: float, other: float) -> bool:
    both_unknown = math.isnan(one) and math.isnan(other)
    return both_unknown or math.isclose(one, other, rel_tol=TIED, abs_tol=TIED_AT_ZERO)


def cost_of_choosing(made: pd.DataFrame, method: str, *, higher_is_better: bool) -> dict[str, float]:
    """Over clients and seeds: what the oracle has more, and how often another model was better."""
    own = made[(made.method == method) & made.value.notna()]
    better = (own.oracle_value - own.value) * (1 if higher_is_better else -1)
    return {
        "oracle": float(own.oracle_value.mean()),
        "cost_of_choosing": float(better.mean()),
        "wrong_choices": float((own.chosen != own.oracle).mean()),
    }


class Kept(NamedTuple):
    """The model that a client takes home, and beside which method's it was chosen."""

    model: Model
    seed: int
    method: str


def kept_by(made: pd.DataFrame, client: str, *, higher_is_better: bool) -> Kept:
    """What a client keeps under the first seed; of several methods' that whose choices validate best."""
    own = made[made.client == client]
    means = made.groupby("method", sort=False)["validation"].mean()
    if means.notna().any():
        method = str(means.idxmax() if higher_is_better else means.idxmin())
    else:
        method = str(own.method.iloc[0])
    first = own[own.method == method].iloc[0]
    return Kept(Model.named(str(first.chosen)), int(first.seed), method)


def chosen_model(method: str) -> Model:
    """What clients keep that choose between a method and the baselines."""
    return Model(method, CHOSEN)
