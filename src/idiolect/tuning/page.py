"""The page of a tuning: what was chosen, what it gains, and how the budget was spent."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from idiolect.quantities import duration, show_value
from idiolect.reports.html import render
from idiolect.reports.palette import LIGHT
from idiolect.reports.sheet import MARK_SIZE, LegendEntry, Sheet, new_figure, save
from idiolect.runs.settings import write_settings
from idiolect.store.files import write_bytes
from idiolect.tuning.trials import Trial
from idiolect.tuning.tuning import PAGE, Tuning
from idiolect.tuning.words import STATES, show_default, show_settings

_HEIGHT = 2.4  # inches
_MARKERS = {"complete": "o", "stopped": "v", "late": ">", "diverged": "x"}


def write_page(tuning: Tuning, page: Path | None = None) -> Path:
    """Write the page, into the tuning's folder unless said otherwise, and its figures beside it."""
    page = page or tuning.path / PAGE
    page.parent.mkdir(parents=True, exist_ok=True)
    html = render(
        "tuning.html",
        title=f"{', '.join(tuning.methods)} tuned on {Path(tuning.data_name).stem}",
        tuning=tuning,
        answer=_answer(tuning),
        rows=[_row(tuning, row) for _, row in tuning.table.iterrows()],
        states=STATES,
        figures={
            name: save(f"trials-of-{name}", partial(_figure, tuning, name), page.parent / "figures")
            for name in tuning.methods
            if tuning.trials_of(name)
        },
        trials=[_trial(tuning, trial) for name in tuning.methods for trial in tuning.trials_of(name)],
        choice=write_settings(tuning.settings),
    )
    write_bytes(page, html.encode())
    return page


def _answer(tuning: Tuning) -> str:
    """What a hurried reader takes away: the method that is best on validation rows once all are tuned."""
    table = tuning.table.dropna(subset=["tuned"])
    best = table.sort_values("tuned", ascending=not tuning.higher_is_better, kind="stable").iloc[0]
    value = show_value(best.tuned, tuning.metric)
    before = (
        f", {show_value(best['default'], tuning.metric)} without tuning"
        if best.default_state == "complete"
        else f"; without tuning it {best.default_state}"
    )
    return (
        f"Best on validation rows once all methods are tuned: {best.method}, mean {tuning.metric_label} "
        f"{value}{before}. The value is the best of {best.trials} trials on the same rows, so it flatters: "
        "compare on test rows, which were not looked at."
    )


def _row(tuning: Tuning, row: Any) -> dict[str, Any]:
    return {
        "method": row.method,
        "default": show_default(row, tuning.metric),
        "tuned": show_value(row.tuned, tuning.metric),
        "settings": show_settings(row.settings) or "–",
        "trial": "–" if row.chosen_trial < 0 else row.chosen_trial,
        "trials": row.trials,
        **{state: row[state] for state in STATES},
        "rounds": row.rounds,
        "time": duration(row.seconds),
    }


def _trial(tuning: Tuning, trial: Trial) -> dict[str, Any]:
    best = tuning.best_of(trial.method)
    return {
        "method": trial.method,
        "number": trial.number,
        "chosen": best is not None and best.number == trial.number,
        "state": trial.state,
        "value": show_value(trial.value, tuning.metric),
        "rounds": trial.rounds,
        "time": duration(trial.seconds),
        "settings": show_settings(trial.settings) or "–",
        "reason": trial.reason,
    }


def _figure(tuning: Tuning, method: str, sheet: Sheet) -> Any:
    """Every trial's value, and the best complete one so far."""
    from matplotlib.lines import Line2D
    from matplotlib.ticker import MaxNLocator

    trials = [trial for trial in tuning.trials_of(method) if np.isfinite(trial.value)]
    looks: dict[str, dict[str, Any]] = {
        state: {"marker": _MARKERS[state], "color": LIGHT["accent" if state == "complete" else "faint"]}
        for state in _MARKERS
        if any(trial.state == state for trial in trials)
    }
    legend = [LegendEntry(state, Line2D([], [], linestyle="", **look)) for state, look in looks.items()]
    if "complete" in looks:
        legend.append(LegendEntry("best so far", Line2D([], [], color=LIGHT["bad"])))
    figure, axes = new_figure(sheet, _HEIGHT, legend)
    for state, look in looks.items():
        own = [trial for trial in trials if trial.state == state]
        axes.plot([t.number for t in own], [t.value for t in own], linestyle="", markersize=MARK_SIZE, **look)
    if complete := [trial for trial in trials if trial.state == "complete"]:
        best = np.maximum if tuning.higher_is_better else np.minimum
        best_so_far = best.accumulate([trial.value for trial in complete])
        axes.step([trial.number for trial in complete], best_so_far, where="post", color=LIGHT["bad"])
    axes.set_xlabel("trial")
    axes.set_ylabel(f"validation {tuning.metric_label}")
    axes.xaxis.set_major_locator(MaxNLocator(sheet.ticks, integer=True))
    return figure
