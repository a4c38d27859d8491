"""Runs and comparisons as tables for people, and as JSON for programs."""

import math
from typing import Any

import pandas as pd
import typer

from idiolect.cli.console import print_json, print_table
from idiolect.cli.tuning_table import print_tuning
from idiolect.quantities import amount, show_value
from idiolect.runs.comparison import Comparison, Failure
from idiolect.runs.config import build_method
from idiolect.runs.folder import RunFolder
from idiolect.runs.gain_answer import gain_answer
from idiolect.runs.gain_words import (
    choice_sentences,
    client_table,
    gain_sentences,
    gain_table,
    group_table,
    unit,
    what_noise_is,
)
from idiolect.runs.newcomers import newcomer_sentence
from idiolect.runs.notes import comparison_notes, mark, run_notes
from idiolect.runs.run_summary import thresholds_of
from idiolect.runs.summed import HEADINGS, WHAT_IT_IS, is_summed, summed_records, summed_rows
from idiolect.runs.tabulation import model_name
from idiolect.tuning.tuning import Tuning

MOST_NOTES = 12


def print_run(run: RunFolder, *, clients: bool, json: bool) -> None:
    """The reported numbers of a run."""
    summary, config = run.summary(), run.config
    notes = run_notes(summary, build_method(config.method))
    if json:
        content = {"folder": str(run.path), "config": config.plain(), **summary, "data_notes": run.notes}
        content["way"] = None if run.way is None else run.way.plain()
        content["summed"] = summed_records([run])
        print_json({**content, "notes": notes, "clients": _records(run.client_values())})
        return
    if is_summed(run):
        _print_sums(run)
    else:
        _print_kinds(run, clients=clients)
    if sentence := newcomer_sentence(config.method_name, [summary]):
        typer.echo(sentence)
    for note in notes:
        typer.echo(note)
    typer.echo(f"traffic: {amount(summary['up_bits'])} up, {amount(summary['down_bits'])} down")
    if run.way is not None:
        typer.echo(f"computed: {run.way}")
    _print_notes(run)
    typer.echo(f"run: {run.path}")


def _print_sums(run: RunFolder) -> None:
    """What is known of a run with secure sums."""
    summary, config = run.summary(), run.config
    title = f"{config.method_name} on {config.data_name}: {summary['metric_label']}"
    print_table(title, list(HEADINGS), summed_rows(run))
    typer.echo(WHAT_IT_IS)


def _print_kinds(run: RunFolder, *, clients: bool) -> None:
    """A row for each kind of model, over clients."""
    summary, config = run.summary(), run.config
    metric, part = summary["metric"], summary["part"]
    columns = ("validation", "weighted", "std", "worst_tenth", "worst")
    rows = []
    for kind, numbers in summary["kinds"].items():
        told = mark(diverged=kind in summary["diverged"], untrained=numbers["untrained"])
        shown = [show_value(numbers[column], metric) for column in columns]
        rows.append([kind, show_value(numbers["mean"], metric) + told, *shown, str(numbers["round"])])
    print_table(
        f"{config.method_name} on {config.data_name}: {part} {summary['metric_label']} "
        f"over {clients_with_rows(run)} clients",
        ["model", "mean", "validation", "weighted", "std", "worst 10 %", "worst", "round"],
        rows,
    )
    _print_about_metric(summary, len(run.clients()))
    if thresholds := thresholds_of(summary):
        listed = ", ".join(f"{kind} {show_value(t, 'threshold')}" for kind, t in thresholds.items())
        typer.echo(f"the second class is decided from these probabilities on: {listed}")
    if clients:
        _print_clients(run.client_values(), part, metric)


def print_results(found: RunFolder | Comparison | Tuning, *, clients: bool, json: bool) -> None:
    """A run, a comparison or a tuning, whichever it is."""
    if isinstance(found, Tuning):
        print_tuning(found, json=json)
    elif isinstance(found, Comparison):
        print_comparison(found, clients=clients, json=json)
    else:
        print_run(found, clients=clients, json=json)


def print_comparison(comparison: Comparison, *, clients: bool, json: bool) -> None:
    """A row for each method and model kind, and for each run that failed."""
    table, failures = comparison.table, comparison.failures
    notes = comparison_notes(comparison.runs)
    if json:
        content = {
            "folder": str(comparison.path),
            "rows": table.to_dict(orient="records"),
            "diverged": [record for run in comparison.runs for record in _diverged(run)],
            "failures": [failure._asdict() for failure in failures],
            "notes": notes,
            "data_notes": comparison.runs[0].notes,
            "gains": comparison.gains().to_dict(orient="records"),
            "gain_summary": comparison.gain_summary().to_dict(orient="records"),
            "choices": comparison.choices().to_dict(orient="records"),
            "newcomers": _newcomer_records(comparison),
        }
        print_json({**content, "clients": _records(comparison.client_values())})
        return
    metric, part, seeds = table.metric[0], table.part[0], int(table.seeds.max())
    first, summary = comparison.runs[0], comparison.runs[0].summary()
    headings = ["model", "mean", "validation", "worst 10 %", "worst", "round", "sent up"]
    rows = [_comparison_row(row, metric) for row in table.to_dict(orient="records")]
    # Their reasons, which may be long, are in lines of their own below.
    rows += [[_whose(failure), "failed", *["–"] * (len(headings) - 2)] for failure in failures]
    print_table(
        f"{first.config.data_name}: {part} {summary['metric_label']} "
        f"over {clients_with_rows(first)} clients, {seeds} seed(s)",
        headings,
        rows,
    )
    _print_about_metric(summary, len(comparison.runs[0].clients()))
    if clients:
        _print_clients(comparison.client_values(), part, metric)
    _print_gains(comparison, clients=clients)
    for sentence in _newcomer_sentences(comparison):
        typer.echo(sentence)
    for note in [*notes, *(f"{_whose(failure)}: failed: {failure.reason}" for failure in failures)]:
        typer.echo(note)
    if failures:
        typer.echo(f"{len(failures)} run(s) failed; try them again with `idiolect resume {comparison.path}`")
    _print_notes(comparison.runs[0])
    label, higher = f"{part} {summary['metric_label']}", summary["higher_is_better"]
    for line in gain_answer(comparison.gain_tables, table, label, higher_is_better=higher):
        typer.echo(line)
    typer.echo(f"runs: {comparison.path}")


def _newcomer_records(comparison: Comparison) -> list[dict[str, Any]]:
    """A record for each run that left clients out."""
    told = ((run.config, run.summary().get("newcomers")) for run in comparison.runs)
    return [{"method": c.method_name, "seed": c.seed, **numbers} for c, numbers in told if numbers]


def _newcomer_sentences(comparison: Comparison) -> list[str]:
    """One for each method whose runs left clients out."""
    by_method: dict[str, list[dict[str, Any]]] = {}
    for run in comparison.runs:
        by_method.setdefault(run.config.method_name, []).append(run.summary())
    sentences = (newcomer_sentence(method, summaries) for method, summaries in by_method.items())
    return [sentence for sentence in sentences if sentence]


def clients_with_rows(run: RunFolder) -> int:
    """How many clients the reported numbers are about; silos may tell nothing of theirs."""
    metrics = run.metrics()
    told = (metrics.part == run.summary()["part"]) & (metrics.metric == "loss") & metrics["value"].notna()
    return int(metrics.client[told].nunique())


def _diverged(run: RunFolder) -> list[dict[str, Any]]:
    """A record for each model kind that diverged, with its clients."""
    summary, config = run.summary(), run.config
    where = {"method": config.method_name, "seed": config.seed, "ended": summary["ended"]}
    return [
        {**where, "kind": kind, "clients": summary["kinds"][kind]["diverged"]} for kind in summary["diverged"]
    ]


def _print_about_metric(summary: dict[str, Any], clients: int) -> None:
    """Why the metric is not the usual one, if it is not; and for how many clients there is none."""
    if summary["metric_reason"]:
        typer.echo(f"{summary['metric_reason']} (evaluation.metric=accuracy judges by accuracy)")
    if without := clients - summary["kinds"][summary["judged_by"]]["clients"]:
        typer.echo(f"{summary['metric_label']} has no value for {without} of {clients} clients")


def _print_notes(run: RunFolder) -> None:
    """What was found and done while the data were read; of very many notes the first."""
    for note in run.notes[:MOST_NOTES]:
        typer.echo(f"note: {note}")
    if (more := len(run.notes) - MOST_NOTES) > 0:
        typer.echo(f"note: and {more} more, in {run.path / 'log.txt'}")


def _comparison_row(row: dict[Any, Any], metric: str) -> list[str]:
    spread = "" if math.isnan(row["std_over_seeds"]) else f" ± {show_value(row['std_over_seeds'], metric)}"
    told = mark(diverged=row["diverged"], untrained=row["untrained"])
    return [
        model_name(row["method"], row["kind"]),
        show_value(row["mean"], metric) + spread + told,
        show_value(row["validation"], metric),
        show_value(row["worst_tenth"], metric),
        show_value(row["worst"], metric),
        f"{row['round']:.0f}",
        amount(row["up_bits"]),
    ]


def _whose(failure: Failure) -> str:
    return f"{failure.method} seed {failure.seed}"


def _print_gains(comparison: Comparison, *, clients: bool) -> None:
    """Who gains by joining, and whether that is more than noise."""
    models, by_client = comparison.gain_summary(), comparison.gains()
    if models.empty:  # nothing to compare with
        return
    counted = unit(models.metric.iloc[0])
    print_table(f"who gains by joining? ({counted}, 95 % intervals)", *gain_table(models, by_client))
    for line in (
        *gain_sentences(models),
        *choice_sentences(models),
        *what_noise_is(models, comparison.runs),
    ):
        typer.echo(line)
    headings, rows = group_table(models)
    if rows:
        print_table(f"mean gain over training alone by thirds of the clients ({counted})", headings, rows)
    headings, rows = client_table(models, by_client)
    if clients and rows:
        print_table(f"each client's gain over training alone ({counted}; * beyond noise)", headings, rows)


def _print_clients(values: pd.DataFrame, part: str, metric: str) -> None:
    rows = [[str(client), *(show_value(v, metric) for v in row)] for client, row in values.iterrows()]
    print_table(f"{part} {metric} of each client", ["client", *map(str, values.columns)], rows)


def _records(values: pd.DataFrame) -> list[dict[Any, Any]]:
    return values.rename_axis("client").reset_index().to_dict(orient="records")
