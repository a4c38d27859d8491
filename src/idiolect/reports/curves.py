"""The figures with a curve for each model: over rounds, and over traffic."""

from typing import Any

import numpy as np
import pandas as pd

from idiolect.reports.evidence import Evidence
from idiolect.reports.marks import Models, draw_arrows, room_words, set_room, some_of
from idiolect.reports.room import Room, Values, log_ticks, room_for
from idiolect.reports.sheet import Sheet, entry, mark_look, new_figure

_HEIGHT = 3.2  # inches
_TICKS = 6
_LONGER = 10.0  # times as long as the shortest curve: then the axis is logarithmic
_MARKS_APART = 0.16  # of the figure
_CENTRAL = 0.96  # of the values: a curve that is level for long has its rise within the axis
_SMALL = 0.1  # megabytes; below it traffic is shown in kilobytes


def learning_curves(evidence: Evidence, sheet: Sheet) -> Any:
    """The mean over clients after every evaluation, for each model."""
    figure, axes = _new_curves(evidence, sheet)
    for model, curve in evidence.curves.groupby("model", sort=False):
        _curve(evidence, axes, str(model), curve["round"].to_numpy(float), curve["value"].to_numpy(float))
    axes.set_xlabel("round")
    _stretch(evidence, axes, evidence.curves["round"], sheet)
    return figure


def curves_words(evidence: Evidence) -> str:
    """What the curves show."""
    room = curves_room(evidence)
    when: dict[str, list[str]] = {}
    for model, curve in evidence.curves.groupby("model", sort=False):
        rounds = curve["round"][room.outside(curve["value"])]
        if len(rounds):
            first, last = rounds.min(), rounds.max()
            some = f"round {first}" if first == last else f"rounds {first} to {last}"
            when.setdefault(some, []).append(str(model))
    outside = "; ".join(f"{rounds} of {some_of(models)}" for rounds, models in when.items())
    how = (
        "Mean over clients after each evaluation. The number in the table is that of the reported round, not "
        "the best of this curve."
    )
    return how + room_words(room, outside)


def value_for_traffic(evidence: Evidence, sheet: Sheet) -> Any:
    """The same means against all bits moved so far; who moves none has one value at any traffic."""
    figure, axes = _new_curves(evidence, sheet)
    models = Models(evidence)
    moving = evidence.curves[evidence.curves.megabytes > 0]
    unit, factor = ("kilobytes", 1000) if not moving.megabytes.max() >= _SMALL else ("megabytes", 1)
    moved = moving.megabytes * factor
    for model in dict.fromkeys(evidence.curves.model):
        own = moving.model == model
        if own.any():
            _curve(evidence, axes, model, moved[own].to_numpy(float), moving["value"][own].to_numpy(float))
        elif np.isfinite(models.means[model]):
            method, kind = models.look(model)
            level, look = models.means[model], mark_look(method, kind)
            axes.axhline(level, color=method.colour, linestyle=kind.line, linewidth=method.width)
            axes.plot([0.98], [level], transform=axes.get_yaxis_transform(), linestyle="", **look)
    axes.set_xlabel(f"{unit} moved, both ways")
    _stretch(evidence, axes, moved, sheet)
    return figure


def traffic_words(evidence: Evidence) -> str:
    """What the curves over traffic show."""
    how = (
        "The same means on the same axis, from the first traffic on, against the bits that crossed so far, "
        "counted from the messages."
    )
    if (evidence.curves.groupby("model")["megabytes"].max() == 0).any():
        how += " A method that sends nothing is a level line at its reported value."
    return how


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


def _new_curves(evidence: Evidence, sheet: Sheet) -> tuple[Any, Any]:
    models = Models(evidence)
    legend = [entry(name, style, None) for name, style in models.methods.items()]
    legend += [entry(f"{style.word}: {kind}", None, style) for kind, style in models.kinds.items()]
    figure, axes = new_figure(sheet, _HEIGHT, legend)
    axes.set_ylabel(f"mean {evidence.part} {evidence.metric_label}")
    set_room(axes, "y", curves_room(evidence), _TICKS, evidence.metric)
    axes.grid(axis="both")
    return figure, axes


def _curve(evidence: Evidence, axes: Any, model: str, places: Values, values: Values) -> None:
    """A curve that may leave the axis: a mark with an arrow is where it does."""
    if np.isnan(values).all():
        return
    models, room = Models(evidence), curves_room(evidence)
    method, kind = models.look(model)
    look = mark_look(method, kind)
    # Where curves run together, the marks of one are beside those of the others.
    first_mark = _MARKS_APART * list(models.methods).index(model.rsplit(" ", 1)[0]) / len(models.methods)
    axes.plot(
        places,
        room.just_outside(values),
        linestyle=kind.line,
        linewidth=method.width,
        markevery=(first_mark, _MARKS_APART),
        **look,
    )
    outside = room.outside(values)
    leaving = outside & ~np.concatenate([[False], outside[:-1]])
    axes.plot(places[leaving], room.at_edge(values[leaving]), linestyle="", clip_on=False, zorder=3, **look)
    draw_arrows(axes, room, values[leaving][:, None], places[leaving], sideways=False)


def _stretch(evidence: Evidence, axes: Any, places: "pd.Series[float]", sheet: Sheet) -> None:
    """The axis of rounds or traffic; logarithmic where some model's curve is much longer than another's."""
    if places.empty:
        axes.set_xticks([])
        return
    low, high = float(places.min()), float(places.max())
    models = evidence.curves.model[places.index]
    ends = places[models.isin(Models(evidence).sound)].groupby(models).max()
    if high > _LONGER * ends[ends > 0].min():
        positive = float(places[places > 0].min())
        axes.set_xscale("symlog", linthresh=positive, linscale=0.2)
        ticks = log_ticks(positive, high, sheet.ticks)
        axes.set_xticks([0.0, *ticks] if low <= 0 else ticks, minor=False)
        axes.set_xticks([], minor=True)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.4g}")
        axes.set_xlim(low, high * 1.1)
    else:
        axes.locator_params(axis="x", nbins=sheet.ticks, integer=places.dtype.kind == "i")
        padding = 0.02 * (high - low) or max(0.5 * high, 0.5)
        axes.set_xlim(low - padding, high + padding)
