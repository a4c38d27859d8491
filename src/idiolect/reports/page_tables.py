"""The words and tables of the report page, as its template shows them."""

from typing import Any

import pandas as pd

from idiolect.methods.catalogue import find_method
from idiolect.quantities import amount, show_value
from idiolect.reports.evidence import Evidence
from idiolect.reports.styles import mark_path, method_styles
from idiolect.reports.thinning import evenly
from idiolect.runs import gain_words
from idiolect.runs.folder import RunFolder
from idiolect.runs.gain_answer import gain_answer
from idiolect.runs.notes import mark
from idiolect.runs.tabulation import model_name

MOST_CELLS = 10_000  # of a table of clients: more would make the page heavy
_LEAST_CLIENTS = 100


def answer(evidence: Evidence) -> list[str]:
    """What a hurried reader takes away: does joining help, and the best row that can be trusted."""
    label = f"{evidence.part} {evidence.metric_label}"
    return [
        *gain_answer(evidence.gains, evidence.table, label, higher_is_better=evidence.higher_is_better),
        _best_on_average(evidence),
    ]


def _best_on_average(evidence: Evidence) -> str:
    table = evidence.table
    sound = table[~table.diverged & ~table.untrained & table["mean"].notna()]
    if sound.empty:
        return (
            "No model was trained to an end: every row of the table diverged, is untrained or has no value."
        )
    best = sound.sort_values("mean", ascending=not evidence.higher_is_better).iloc[0]
    among = f" among the {len(sound)} rows that neither diverged nor are untrained"
    return (
        f"Best on average{among if len(sound) < len(table) else ''}: {model_name(best.method, best.kind)}, "
        f"mean {evidence.part} {evidence.metric_label} {show_value(best['mean'], evidence.metric)}, "
        f"worst client {show_value(best.worst, evidence.metric)}."
    )


def gain_tables(evidence: Evidence) -> dict[str, Any] | None:
    """Who gains by joining: tables and sentences; None where there is nothing to compare with."""
    if evidence.gains is None or evidence.gains.models.empty:
        return None
    clients, models = evidence.gains.clients, evidence.gains.models
    headings, rows = gain_words.client_table(models, clients)
    rows, left_out = _few_enough(rows, len(headings))
    return {
        "unit": gain_words.unit(evidence.metric),
        "sentences": [*gain_words.gain_sentences(models), *gain_words.choice_sentences(models)],
        "noise": gain_words.what_noise_is(models, evidence.runs),
        "models": gain_words.gain_table(models, clients),
        "groups": gain_words.group_table(models),
        "clients": (headings, rows),
        "left_out": left_out,
    }


def marks(evidence: Evidence) -> dict[str, dict[str, str]]:
    """The colour and the mark of each method, to be drawn beside its name."""
    styles = method_styles(evidence.table.method)
    return {
        name: {"colour": f"var(--{style.colour_name})", "path": mark_path(style.mark, 10)}
        for name, style in styles.items()
    }


def model_row(evidence: Evidence, row: "pd.Series[Any]") -> dict[str, str]:
    """A row of the table of models."""

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


def round_choice(evidence: Evidence) -> str:
    """How the reported round was chosen, in words."""
    chosen = dict.fromkeys(run.summary()["chosen_by"] for run in evidence.runs)
    words = {"validation": "the best on validation rows", "last": "the last one"}
    return " or ".join(words[way] for way in chosen)


def reported_rounds(evidence: Evidence) -> dict[str, str]:
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


def client_rows(evidence: Evidence) -> tuple[list[tuple[str, list[str]]], str]:
    """The values of each client as they are shown, and in words which of very many clients are not."""
    table = evidence.clients
    rows = [
        (str(client), [show_value(value, evidence.metric) for value in values])
        for client, values in zip(table.index, table.to_numpy(), strict=True)
    ]
    return _few_enough(rows, len(table.columns))


def _few_enough(rows: list[Any], columns: int) -> tuple[list[Any], str]:
    """Rows of a table of clients, not too many for a page, and words for those that are left out."""
    kept = evenly(rows, max(_LEAST_CLIENTS, MOST_CELLS // max(columns, 1)))
    if len(kept) == len(rows):
        return rows, ""
    told = f"Of {len(rows):,} clients {len(kept):,} are here; the runs' own tables have all."
    return kept, told


def data_notes(evidence: Evidence) -> list[str]:
    """What was found in the data, once for each data set: other seeds differ in the numbers only."""
    first: dict[str, RunFolder] = {}
    for run in evidence.runs:
        first.setdefault(str(run.config.data["name"]), run)
    return [note for run in first.values() for note in run.notes]


def run_card(run: RunFolder) -> dict[str, Any]:
    """What is needed to make a run again."""
    config = run.config
    method = find_method(config.method["name"])
    return {
        "name": run.path.name,
        "paper": method.paper,
        "config": config.to_yaml(),
        "versions": run.facts()["versions"],
        "data_sha256": run.facts()["data_sha256"],
    }
