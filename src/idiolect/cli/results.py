"""Runs and comparisons as tables for people, and as JSON for programs."""

import math
from typing import Any

import pandas as pd
import typer

from idiolect.cli.console import print_json, print_table
from idiolect.quantities import amount, show_value
from idiolect.runs.comparison import Comparison
from idiolect.runs.folder import RunFolder

MOST_NOTES = 12


def print_run(run: RunFolder, *, clients: bool, json: bool) -> None:
    """The reported numbers of a run."""
    summary, config = run.summary(), run.config
    if json:
        content = {"folder": str(run.path), "config": config.plain(), **summary, "notes": run.notes}
        print_json({**content, "clients": _records(run.client_values())})
        return
    metric = summary["metric"]
    columns = ("mean", "weighted", "std", "worst_tenth", "worst")
    print_table(
        f"{config.method_name} on {config.data_name}: {summary['part']} {metric} "
        f"over {next(iter(summary['kinds'].values()))['clients']} clients",
        ["model", "mean", "weighted", "std", "worst 10 %", "worst", "round"],
        [
            [kind, *(show_value(numbers[column], metric) for column in columns), str(numbers["round"])]
            for kind, numbers in summary["kinds"].items()
        ],
    )
    if clients:
        _print_clients(run.client_values(), summary["part"], metric)
    if summary["diverged"]:
        diverged = ", ".join(summary["diverged"])
        typer.echo(f"diverged: {diverged}; try a smaller learning rate, such as lr=0.01")
    typer.echo(f"traffic: {amount(summary['up_bits'])} up, {amount(summary['down_bits'])} down")
    _print_notes(run)
    typer.echo(f"run: {run.path}")


def print_comparison(comparison: Comparison, *, clients: bool, json: bool) -> None:
    """A row for each method and model kind."""
    table = comparison.table
    if json:
        content = {"folder": str(comparison.path), "rows": table.to_dict(orient="records")}
        content["notes"] = comparison.runs[0].notes
        print_json({**content, "clients": _records(comparison.client_values())})
        return
    metric, part = table.metric[0], table.part[0]
    data = comparison.runs[0].config.data_name
    print_table(
        f"{data}: {part} {metric} over {table.clients[0]:.0f} clients, {table.seeds[0]} seed(s)",
        ["model", "mean", "worst 10 %", "worst", "gain over alone", "over shared", "round", "sent up"],
        [_comparison_row(row, metric) for row in table.to_dict(orient="records")],
    )
    if clients:
        _print_clients(comparison.client_values(), part, metric)
    _print_notes(comparison.runs[0])
    typer.echo(f"runs: {comparison.path}")


def _print_notes(run: RunFolder) -> None:
    """What was found and done while the data were read; of very many notes the first."""
    for note in run.notes[:MOST_NOTES]:
        typer.echo(f"note: {note}")
    if (more := len(run.notes) - MOST_NOTES) > 0:
        typer.echo(f"note: and {more} more, in {run.path / 'log.txt'}")


def _comparison_row(row: dict[Any, Any], metric: str) -> list[str]:
    spread = "" if math.isnan(row["std_over_seeds"]) else f" ± {show_value(row['std_over_seeds'], metric)}"
    return [
        f"{row['method']} {row['kind']}",
        show_value(row["mean"], metric) + spread,
        show_value(row["worst_tenth"], metric),
        show_value(row["worst"], metric),
        _gain(row, "alone"),
        _gain(row, "shared"),
        f"{row['round']:.0f}",
        amount(row["up_bits"]),
    ]


def _gain(row: dict[Any, Any], baseline: str) -> str:
    """How many clients gain, and of how many."""
    if math.isnan(row[f"gain_over_{baseline}"]):
        return "–"
    return f"{row[f'gain_over_{baseline}']:.3g} of {row['clients']:.0f}"


def _print_clients(values: pd.DataFrame, part: str, metric: str) -> None:
    rows = [[str(client), *(show_value(v, metric) for v in row)] for client, row in values.iterrows()]
    print_table(f"{part} {metric} of each client", ["client", *map(str, values.columns)], rows)


def _records(values: pd.DataFrame) -> list[dict[Any, Any]]:
    return values.rename_axis("client").reset_index().to_dict(orient="records")
