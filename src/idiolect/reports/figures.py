"""The charts of a report: how clients fare, who gains, how it was learned, at what cost."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from idiolect.quantities import show_value
from idiolect.reports.charts import Bars, Chart, Curves, Intervals, Series, Spread
from idiolect.reports.diagnosed import diagnosed_charts
from idiolect.reports.evidence import Evidence
from idiolect.reports.room import Room, room_for
from idiolect.runs.reported import CHOSEN, Model
from idiolect.runs.tabulation import model_name

MOST_NAMED = 3
_CENTRAL = 0.96  # of the values: a curve that is level for long has its rise within the axis
_MOST_PARTS = 8  # of messages that have a colour of their own
_SMALL = 0.1  # megabytes; below it traffic is shown in kilobytes
_AGAINST = {"alone": "training alone", "shared": "the one shared model"}


def report_charts(evidence: Evidence) -> list[Chart]:
    """The charts of a page besides those of gains, in their order."""
    return [
        spread_chart(evidence),
        curves_chart(evidence),
        *traffic_charts(evidence),
        *diagnosed_charts(evidence.runs),
    ]


class Models:
    """The models of a page by their names: methods and kinds, and which ones the axes have to follow."""

    def __init__(self, evidence: Evidence) -> None:
        table = evidence.table
        pairs = list(zip(table.method, table.kind, strict=True))
        names = [model_name(method, kind) for method, kind in pairs]
        self.means = table["mean"].set_axis(names)
        self.pairs: dict[str, tuple[str, str]] = dict(zip(names, pairs, strict=True))
        sound = [name for name, bad in zip(names, table.diverged | table.untrained, strict=True) if not bad]
        self.sound = sound or names


def spread_chart(evidence: Evidence) -> Spread:
    """Every client's value under the models that the methods are judged by."""
    models, judged = Models(evidence), evidence.judged
    followed = [evidence.clients[model] for model in judged if model in models.sound]
    room = room_for(
        followed or [evidence.clients[model] for model in judged],
        may_be_logarithmic=not evidence.higher_is_better,
    )
    outside = [
        f"{client} under {model} ({show_value(float(value), evidence.metric)})"
        for model in judged
        for client, value in evidence.clients[model].items()
        if room.outside(value)
    ]
    return Spread(
        "How each client fares",
        f"Each small mark is a client: its {evidence.part} {evidence.metric_label} under a method's model at "
        "the reported round. The bar spans the middle half of the clients, its stroke is the median."
        + _room_words(room, some_of(outside)),
        f"{evidence.part} {evidence.metric_label}",
        {model: _by_name(evidence.clients[model]) for model in judged},
        percent=is_share(evidence.metric),
        looks={model: models.pairs[model] for model in judged},
        room=room,
        higher_is_better=evidence.higher_is_better,
    )


def curves_chart(evidence: Evidence) -> Curves:
    """The mean over clients after every evaluation, for each model, by round, traffic and time."""
    models, table = Models(evidence), evidence.curves
    room = curves_room(evidence)
    moved, factor = _unit_of(table.megabytes)
    series = []
    for model, own in table.groupby("model", sort=False):
        x = {"round": own["round"].tolist()}
        if (own.megabytes > 0).any():
            x[moved] = (factor * own.megabytes).tolist()
        if own.seconds.notna().all():
            x["seconds"] = own.seconds.tolist()
        method, kind = models.pairs[str(model)]
        series.append(
            Series(
                str(model),
                x,
                own["value"].tolist(),
                own["low"].tolist(),
                own["high"].tolist(),
                method,
                kind,
                level=None if moved in x else float(models.means[str(model)]),
                aside=model not in evidence.judged,
            )
        )
    return Curves(
        "Learning curves",
        _curves_words(evidence, room),
        series,
        f"mean {evidence.part} {evidence.metric_label}",
        y_log=room.logarithmic,
        percent=is_share(evidence.metric),
        room=room,
    )


def curves_room(evidence: Evidence) -> Room:
    """Room for all reported values, and for most of the curves after round 0; not for what diverged."""
    models, curves = Models(evidence), evidence.curves
    followed = curves[curves.model.isin(models.sound) & (curves["round"] > 0)]
    return room_for(
        [followed["value"]],
        models.means[models.sound],
        central=_CENTRAL,
        may_be_logarithmic=not evidence.higher_is_better,
    )


def gain_charts(evidence: Evidence) -> list[Intervals]:
    """Mean gains over each baseline, and each client's gain under the best method."""
    if evidence.gains is None or evidence.gains.models.empty:
        return []
    models = evidence.gains.models[evidence.gains.models.kind != CHOSEN]
    charts = []
    for over, baseline in _AGAINST.items():
        told = models[models.over == over].sort_values("mean_gain", ascending=False, kind="stable")
        if len(told):
            charts.append(
                Intervals(
                    f"Mean gain over {baseline}",
                    f"By how much clients are better off on average than with {baseline}, with 95 % "
                    "intervals: a bar that does not touch the line at zero is more than noise.",
                    _gain_label(evidence),
                    [
                        (model_name(row.method, row.kind), row.mean_gain, row.low, row.high)
                        for row in _records(told)
                    ],
                    percent=is_share(evidence.metric),
                )
            )
    return charts + _client_gains(evidence, models)


def _client_gains(evidence: Evidence, models: pd.DataFrame) -> list[Intervals]:
    alone = models[models.over == "alone"]
    if evidence.gains is None or alone.empty:
        return []
    best = _records(alone.sort_values("mean_gain", ascending=False))[0]
    clients = evidence.gains.clients
    own = clients[(clients.method == best.method) & (clients.kind == best.kind)]
    own = own.sort_values("gain_over_alone", ascending=False)
    model = Model(best.method, best.kind)
    return [
        Intervals(
            f"Each client's gain with {model}",
            f"By how much each client is better off with {model}, which gains most on average, than alone, "
            "with 95 % intervals.",
            _gain_label(evidence),
            [
                (str(row.client), row.gain_over_alone, row.low_over_alone, row.high_over_alone)
                for row in _records(own)
            ],
            percent=is_share(evidence.metric),
        )
    ]


def traffic_charts(evidence: Evidence) -> list[Bars]:
    """Bits of a whole run by direction and by the named parts of its messages."""
    traffic = evidence.traffic
    if traffic.empty or not (traffic.megabytes > 0).any():
        return []
    largest = traffic.groupby("part").megabytes.sum().sort_values(ascending=False).index[:_MOST_PARTS]
    unit, factor = _unit_of(traffic.groupby("method").megabytes.sum())
    groups: dict[str, dict[str, float]] = {}
    for row in _records(traffic):
        parts = groups.setdefault(f"{row.method} {row.direction}", {})
        part = row.part if row.part in largest else "other parts"
        parts[part] = parts.get(part, 0.0) + factor * row.megabytes
    return [
        Bars(
            "What crosses the wire",
            "What a whole run sends by the named parts of the messages: what the server gets to see (up), "
            "what it sends to train (down) and to predict (brief).",
            unit,
            groups,
        )
    ]


def is_share(metric: str) -> bool:
    """Whether a metric is shown in per cent."""
    return show_value(0.5, metric).endswith("%")


def some_of(names: Sequence[str]) -> str:
    """The first names, and how many more there are.

    >>> some_of(["a", "b"]), some_of(["a", "b", "c", "d", "e"])
    ('a, b', 'a, b, c and 2 more')
    """
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _curves_words(evidence: Evidence, room: Room) -> str:
    when: dict[str, list[str]] = {}
    for model, curve in evidence.curves.groupby("model", sort=False):
        rounds = curve["round"][room.outside(curve["value"])]
        if len(rounds):
            first, last = rounds.min(), rounds.max()
            some = f"round {first}" if first == last else f"rounds {first} to {last}"
            when.setdefault(some, []).append(str(model))
    outside = "; ".join(f"{rounds} of {some_of(models)}" for rounds, models in when.items())
    how = (
        "Mean over clients after each evaluation, with the 95 % interval over clients and seeds. The number "
        "in the table is that of the reported round, not the best of this curve. Traffic is counted from the "
        "messages, both ways."
    )
    if (evidence.curves.groupby("model")["megabytes"].max() == 0).any():
        how += " A method that sends nothing is a level line at its reported value over traffic."
    return how + _room_words(room, outside)


def _room_words(room: Room, outside: str) -> str:
    """What has to be known about an axis: who is not on it, and that it is logarithmic."""
    told = f" Outside of the axis, at its edge with an arrow: {outside}." if outside else ""
    return told + (" The axis is logarithmic." if room.logarithmic else "")


def _unit_of(megabytes: "pd.Series[float]") -> tuple[str, int]:
    return ("megabytes", 1) if megabytes.max() >= _SMALL else ("kilobytes", 1000)


def _gain_label(evidence: Evidence) -> str:
    return "gain, points" if is_share(evidence.metric) else f"gain in {evidence.metric_label}, + is better"


def _by_name(values: "pd.Series[float]") -> dict[str, float]:
    return {str(client): float(value) for client, value in values.items()}


def _records(table: pd.DataFrame) -> list[Any]:
    return list(table.itertuples(index=False))
