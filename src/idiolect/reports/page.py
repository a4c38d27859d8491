"""The report page: one HTML file with everything in it, and its figures as files beside it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd

from idiolect.errors import UserError
from idiolect.methods.catalogue import find_method
from idiolect.quantities import amount, show_value
from idiolect.reports.clients import clients_compared, clients_words
from idiolect.reports.curves import curves_words, learning_curves, traffic_words, value_for_traffic
from idiolect.reports.evidence import Evidence, gather
from idiolect.reports.html import render
from idiolect.reports.sheet import Sheet, save
from idiolect.reports.styles import mark_path, method_styles
from idiolect.runs import gain_words
from idiolect.runs.folder import RunFolder
from idiolect.runs.notes import comparison_notes, mark
from idiolect.runs.tabulation import model_name
from idiolect.store.files import write_bytes


@dataclass(frozen=True)
class FigureOnPage:
    """A drawing, for wide and for narrow windows, and what it says in words."""

    name: str
    title: str
    description: str
    wide: str
    narrow: str


DRAWINGS: tuple[tuple[str, str, Callable[[Evidence, Sheet], Any], Callable[[Evidence], str]], ...] = (
    ("clients", "How each client fares", clients_compared, clients_words),
    ("curves", "Round by round", learning_curves, curves_words),
    ("traffic", "For how much traffic?", value_for_traffic, traffic_words),
)


def can_write_reports() -> bool:
    """Whether what a page is drawn with is installed."""
    return all(find_spec(name) is not None for name in ("matplotlib", "jinja2"))


def write_report(folders: Sequence[Path], page: Path) -> None:
    """Write the page for some runs or comparisons, and its figures beside it in `figures/`."""
    if not can_write_reports():
        raise UserError("a report page needs matplotlib and jinja2: pip install 'idiolect[report]'")
    evidence = gather(folders)
    page.parent.mkdir(parents=True, exist_ok=True)
    drawn = [
        FigureOnPage(
            name, title, words(evidence), **save(name, partial(draw, evidence), page.parent / "figures")
        )
        for name, title, draw, words in DRAWINGS
    ]
    html = render(
        "page.html",
        title=_title(evidence),
        evidence=evidence,
        answer=_answer(evidence),
        notes=comparison_notes(evidence.runs),
        marks=_marks(evidence),
        amount=amount,
        seeds=int(evidence.table.seeds.max()),
        choice=_choice(evidence),
        gains=_gains(evidence),
        models=[_model_row(evidence, row) for _, row in evidence.table.iterrows()],
        rounds=_rounds(evidence),
        client_columns=list(evidence.clients.columns),
        client_rows=_client_rows(evidence),
        figures=drawn,
        runs=[_run_card(run) for run in evidence.runs],
        data_notes=_data_notes(evidence),
    )
    write_bytes(page, html.encode())


def _gains(evidence: Evidence) -> dict[str, Any] | None:
    """Who gains by joining: tables and sentences; None where there is nothing to compare with."""
    if evidence.gains is None or evidence.gains.models.empty:
        return None
    clients, models = evidence.gains.clients, evidence.gains.models
    return {
        "unit": gain_words.unit(evidence.metric),
        "sentences": [*gain_words.gain_sentences(models), *gain_words.choice_sentences(models)],
        "noise": gain_words.what_noise_is(models, evidence.runs),
        "models": gain_words.gain_table(models, clients),
        "groups": gain_words.group_table(models),
        "clients": gain_words.client_table(models, clients),
    }


def _title(evidence: Evidence) -> str:
    methods = ", ".join(dict.fromkeys(evidence.table.method))
    data = ", ".join(dict.fromkeys(Path(run.config.data_name).stem for run in evidence.runs))
    return f"{methods} on {data}"


def _answer(evidence: Evidence) -> str:
    """The one sentence that a hurried reader takes away: the best row of the table that can be trusted."""
    table = evidence.table
    sound = table[~table.diverged & ~table.untrained & table["mean"].notna()]
    if sound.empty:
        return (
            "No model was trained to an end: every row of the table diverged, is untrained or has no value."
        )
    best = sound.sort_values("mean", ascending=not evidence.higher_is_better).iloc[0]
    among = f" among the {len(sound)} rows that neither diverged nor are untrained"
    sentence = (
        f"Best on average{among if len(sound) < len(table) else ''}: {model_name(best.method, best.kind)}, "
        f"mean {evidence.part} {evidence.metric_label} {show_value(best['mean'], evidence.metric)}, "
        f"worst client {show_value(best.worst, evidence.metric)}."
    )
    told = _gain_of(evidence, best.method, best.kind)
    return f"{sentence} {told[0].upper()}{told[1:]}." if told else sentence


def _gain_of(evidence: Evidence, method: str, kind: str) -> str | None:
    """Who gains over training alone with one model, if that is known."""
    if evidence.gains is None or evidence.gains.models.empty:
        return None
    models = evidence.gains.models
    own = models[(models.method == method) & (models.kind == kind) & (models.over == "alone")]
    return next(iter(gain_words.gain_sentences(own)), None)


def _marks(evidence: Evidence) -> dict[str, dict[str, str]]:
    """The colour and the mark of each method, to be drawn beside its name."""
    styles = method_styles(evidence.table.method)
    return {
        name: {"colour": f"var(--{style.colour_name})", "path": mark_path(style.mark, 10)}
        for name, style in styles.items()
    }


def _model_row(evidence: Evidence, row: "pd.Series[Any]") -> dict[str, str]:
    def gain(name: str) -> str:
        better, worse = row[f"gain_over_{name}"], row[f"lose_to_{name}"]
        return "–" if pd.isna(better) else f"{better:.3g} / {worse:.3g}"

    return {
        "method": row.method,
        "model": model_name(row.method, row.kind),
        "mean": show_value(row["mean"], evidence.metric),
        "spread": ""
        if pd.isna(row.std_over_seeds)
        else f" ± {show_value(row.std_over_seeds, evidence.metric)}",
        "mark": mark(diverged=row.diverged, untrained=row.untrained),
        "validation": show_value(row.validation, evidence.metric),
        "std": show_value(row["std"], evidence.metric),
        "worst_tenth": show_value(row.worst_tenth, evidence.metric),
        "worst": show_value(row.worst, evidence.metric),
        "alone": gain("alone"),
        "shared": gain("shared"),
        "down": amount(row.down_bits),
        "up": amount(row.up_bits),
    }


def _choice(evidence: Evidence) -> str:
    """How the reported round was chosen, in words."""
    chosen = dict.fromkeys(run.summary()["chosen_by"] for run in evidence.runs)
    words = {"validation": "the best on validation rows", "last": "the last one"}
    return " or ".join(words[way] for way in chosen)


def _rounds(evidence: Evidence) -> dict[str, str]:
    """The reported round of each model; that of each seed may be another one."""
    rounds: dict[str, list[int]] = {}
    for run in evidence.runs:
        method = run.config.method_name
        for kind, numbers in run.summary()["kinds"].items():
            rounds.setdefault(model_name(method, kind), []).append(numbers["round"])
    return {
        model: str(own[0]) if len(set(own)) == 1 else f"{min(own)}–{max(own)}"
        for model, own in rounds.items()
    }


def _client_rows(evidence: Evidence) -> list[tuple[str, list[str]]]:
    return [
        (str(client), [show_value(value, evidence.metric) for value in values])
        for client, values in zip(evidence.clients.index, evidence.clients.to_numpy(), strict=True)
    ]


def _data_notes(evidence: Evidence) -> list[str]:
    """What was found in the data, once for each data set: other seeds differ in the numbers only."""
    first: dict[str, RunFolder] = {}
    for run in evidence.runs:
        first.setdefault(str(run.config.data["name"]), run)
    return [note for run in first.values() for note in run.notes]


def _run_card(run: RunFolder) -> dict[str, Any]:
    config = run.config
    method = find_method(config.method["name"])
    return {
        "name": run.path.name,
        "paper": method.paper,
        "config": config.to_yaml(),
        "versions": run.facts()["versions"],
        "data_sha256": run.facts()["data_sha256"],
    }
