"""The report page: one HTML file with everything in it, and its figures as files beside it."""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd

from idiolect.errors import UserError
from idiolect.methods.catalogue import find_method
from idiolect.quantities import show_value
from idiolect.reports import figures
from idiolect.reports.evidence import BITS_PER_MEGABYTE, Evidence, gather
from idiolect.reports.html import render
from idiolect.runs import gain_words
from idiolect.runs.folder import RunFolder
from idiolect.runs.notes import comparison_notes, mark
from idiolect.runs.tabulation import model_name
from idiolect.store.files import write_bytes


@dataclass(frozen=True)
class FigureOnPage:
    """A drawing, and what it says in words."""

    name: str
    title: str
    description: str
    svg: str


DRAWINGS: tuple[tuple[str, Callable[[Evidence], Any], str, str], ...] = (
    (
        "clients",
        figures.clients_compared,
        "Does joining help each client?",
        "Each row is a client; each mark is its value under one method's model.",
    ),
    (
        "curves",
        figures.learning_curves,
        "Round by round",
        "Mean over clients after each evaluation. The number in the table is that of the round chosen on "
        "validation rows, not the best of this curve.",
    ),
    (
        "traffic",
        figures.value_for_traffic,
        "For how much traffic?",
        "The same means against the bits that crossed so far, counted from the messages.",
    ),
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
    drawn = [_draw(evidence, page.parent / "figures", *drawing) for drawing in DRAWINGS]
    html = render(
        "page.html",
        title=_title(evidence),
        evidence=evidence,
        answer=_answer(evidence),
        notes=comparison_notes(evidence.runs),
        gains=_gains(evidence),
        models=[_model_row(evidence, row) for _, row in evidence.table.iterrows()],
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


def _draw(
    evidence: Evidence, folder: Path, name: str, draw: Callable[[Evidence], Any], title: str, description: str
) -> FigureOnPage:
    from matplotlib import rc_context

    figure = draw(evidence)
    folder.mkdir(parents=True, exist_ok=True)
    picture, vector = io.BytesIO(), io.StringIO()
    figure.savefig(picture, format="png", dpi=150)
    # No date and no random names: two reports of the same runs are the same file.
    with rc_context({"svg.hashsalt": name}):
        figure.savefig(vector, format="svg", metadata={"Date": None})
    write_bytes(folder / f"{name}.png", picture.getvalue())
    svg = vector.getvalue()
    return FigureOnPage(name, title, description, svg[svg.index("<svg") :])


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


def _model_row(evidence: Evidence, row: "pd.Series[Any]") -> dict[str, str]:
    spread = "" if pd.isna(row.std_over_seeds) else f" ± {show_value(row.std_over_seeds, evidence.metric)}"

    told = mark(diverged=row.diverged, untrained=row.untrained)

    def gain(name: str) -> str:
        better, worse = row[f"gain_over_{name}"], row[f"lose_to_{name}"]
        averaged = " on average over seeds" if row.seeds > 1 else ""
        return "–" if pd.isna(better) else f"{better:.3g} gain, {worse:.3g} lose{averaged}"

    return {
        "model": model_name(row.method, row.kind),
        "mean": show_value(row["mean"], evidence.metric) + spread + told,
        "validation": show_value(row.validation, evidence.metric),
        "std": show_value(row["std"], evidence.metric),
        "worst_tenth": show_value(row.worst_tenth, evidence.metric),
        "worst": show_value(row.worst, evidence.metric),
        "alone": gain("alone"),
        "shared": gain("shared"),
        "down": f"{row.down_bits / BITS_PER_MEGABYTE:.2f}",
        "up": f"{row.up_bits / BITS_PER_MEGABYTE:.2f}",
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
