"""What a run gives to the clients that were left out of it: models from the states that are reported.

    newcomers.parquet   client, stage (before, after), kind, part, metric, value

"before" is a newcomer as it arrives, "after" it has done what its method has for newcomers
(`Method.newcomer`). A kind of model comes from the round that is reported for it. The kind "alone" is no
model of the run: gradient steps on the newcomer's rows from the run's first model, as many and with the
method's learning rate. In a run that hides rows newcomers train with the same noise, and what that costs
them is counted apart from the run's ledger: each training of theirs, also the one alone.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from idiolect.core.around import innermost_method
from idiolect.core.exchange import LocalWork
from idiolect.data.federation import Federation
from idiolect.errors import UserError
from idiolect.evaluation.metrics import Measures, evaluate
from idiolect.methods.local import Local
from idiolect.privacy.row_private import row_privacy_of
from idiolect.quantities import show_value
from idiolect.runs.privacy import Counts, Prices, finite_or_none
from idiolect.runs.run_summary import thresholds_of
from idiolect.simulation import Simulation

COLUMNS = ("client", "stage", "kind", "part", "metric", "value")
BEFORE, AFTER = "before", "after"
ALONE = "alone"


def meet_newcomers(
    simulation: Simulation,
    newcomers: Federation,
    steps: LocalWork | None,
    summary: Mapping[str, Any],
    measures: Measures,
    go_to: Callable[[int], None],
) -> pd.DataFrame:
    """All metrics of all newcomers, before and after they train; `go_to` puts the simulation at a round.

    The simulation is left at one of the reported rounds.
    """
    known = replace(measures, thresholds=thresholds_of(summary))  # a few newcomers' own would be noise
    tables = []
    for number in reported_rounds(summary):
        go_to(number)
        there = [kind for kind, numbers in summary["kinds"].items() if numbers["round"] == number]
        for stage in (BEFORE, AFTER):
            met = simulation.newcomers(newcomers, steps=steps, trained=stage == AFTER)
            found = evaluate(met, known)
            tables.append(found[found.kind.isin(there)].assign(stage=stage))
    tables += _numbers_alone(simulation, newcomers, steps, measures)
    return pd.concat(tables, ignore_index=True)[list(COLUMNS)]


def reported_rounds(summary: Mapping[str, Any]) -> list[int]:
    """The rounds that models of some kind are of: at each newcomers train anew."""
    return list(dict.fromkeys(numbers["round"] for numbers in summary["kinds"].values()))


def newcomers_spend(
    simulation: Simulation,
    newcomers: Federation,
    steps: LocalWork | None,
    *,
    trainings: int = 1,
    alone: bool = False,
) -> dict[str, float]:
    """ε of each newcomer's rows after some trainings, and after one alone; nobody's where no rows are hidden.

    What is more than the run may spend is refused.
    """
    private = row_privacy_of(simulation.method)
    if private is None:
        return {}
    privacy, spent = private.privacy, defaultdict[str, Counts](Counter)
    met = simulation.newcomers(newcomers, steps=steps, trained=False)
    prices = Prices(met.engine.setting, met.plan, privacy)
    for client, counts in prices.of_round(met.server, met.round).items():
        for gradients, releases in counts.items():
            spent[client][gradients] += trainings * releases
    without = _alone(simulation, newcomers, steps) if alone else None
    if without is not None:
        of_alone = Prices(without.engine.setting, without.plan, privacy).of_round(without.server, 0)
        for client, counts in of_alone.items():
            spent[client] += counts
    epsilons = {
        client: prices.epsilon(client, counts, privacy.multiplier) for client, counts in spent.items()
    }
    dearest = max(epsilons, key=lambda client: epsilons[client], default=None)
    if dearest is not None and privacy.epsilon is not None and epsilons[dearest] > privacy.epsilon:
        raise UserError(
            f"privacy.epsilon={privacy.epsilon:g} is not enough for newcomers: training would cost the rows "
            f"of {dearest!r} ε = {epsilons[dearest]:.3g}; let them take fewer steps"
        )
    return epsilons


def most_of_newcomers(
    simulation: Simulation, newcomers: Federation, steps: LocalWork | None, summary: Mapping[str, Any]
) -> float | None:
    """ε of whoever spent most of those who were met, for the summary."""
    trainings = len(reported_rounds(summary))
    epsilons = newcomers_spend(simulation, newcomers, steps, trainings=trainings, alone=True)
    return finite_or_none(max(epsilons.values(), default=0.0))


def _alone(simulation: Simulation, newcomers: Federation, steps: LocalWork | None) -> Simulation | None:
    """The newcomers without the run; None where the method has no learning rate of its own."""
    method = innermost_method(simulation.method)
    work, rate = steps or getattr(method, "local_steps", None), getattr(method, "learning_rate", None)
    if work is None or rate is None:
        return None
    return simulation.with_others(Local(learning_rate=rate, local_steps=work), newcomers)


def _numbers_alone(
    simulation: Simulation, newcomers: Federation, steps: LocalWork | None, measures: Measures
) -> Iterator[pd.DataFrame]:
    """How good they are without it, before and after they train."""
    alone = _alone(simulation, newcomers, steps)
    if alone is None:
        return
    threshold = measures.threshold if isinstance(measures.threshold, float) else 0.5
    plain = replace(measures, thresholds={}, threshold=threshold)
    for stage in (BEFORE, AFTER):
        if stage == AFTER:
            alone.advance()
        yield evaluate(alone, plain).assign(stage=stage, kind=ALONE)


def newcomer_numbers(table: pd.DataFrame, summary: Mapping[str, Any]) -> dict[str, Any]:
    """The means of the metric in the reported part, by kind and stage, for the summary."""
    told = table[(table.metric == summary["metric"]) & (table.part == summary["part"])]
    means = {
        kind: {
            stage: float(told["value"][(told.kind == kind) & (told.stage == stage)].mean())
            for stage in (BEFORE, AFTER)
        }
        for kind in dict.fromkeys(table.kind)
    }
    return {"clients": list(dict.fromkeys(table.client)), "kinds": means}


def newcomer_sentence(name: str, summaries: Sequence[Mapping[str, Any]]) -> str | None:
    """What runs of one method did for newcomers, in the mean over the runs; None where there are none."""
    told = [summary["newcomers"] for summary in summaries if "newcomers" in summary]
    if not told:
        return None
    metric, label = summaries[0]["metric"], summaries[0]["metric_label"]
    count = len(told[0]["clients"])
    shown = []
    for kind in told[0]["kinds"]:
        before, after = (
            show_value(sum(each["kinds"][kind][stage] for each in told) / len(told), metric)
            for stage in (BEFORE, AFTER)
        )
        shown.append(f"{kind} {before} -> {after}")
    who = f"{count} newcomer{'s' if count > 1 else ''}"
    return f"{name}: {who}, {summaries[0]['part']} {label} before and after training: {', '.join(shown)}"
