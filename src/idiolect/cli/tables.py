"""Results as tables for people."""

import math
from typing import Any

import pandas as pd

from idiolect.cli.console import print_table
from idiolect.runs.folder import RunFolder
from idiolect.text import amount


def print_run(folder: RunFolder) -> None:
    """The reported numbers of a run."""
    summary, config = folder.summary(), folder.config
    metric = summary["metric"]
    rows = [
        [
            kind,
            _value(numbers["mean"], metric),
            _value(numbers["weighted"], metric),
            _value(numbers["std"], metric),
            _value(numbers["worst_tenth"], metric),
            _value(numbers["worst"], metric),
            str(numbers["round"]),
        ]
        for kind, numbers in summary["kinds"].items()
    ]
    print_table(
        f"{config.method_name} on {config.data_name}: {summary['part']} {metric} "
        f"over {next(iter(summary['kinds'].values()))['clients']} clients",
        ["model", "mean", "weighted", "std", "worst 10 %", "worst", "round"],
        rows,
    )
    if summary["diverged"]:
        print(f"diverged: {', '.join(summary['diverged'])}; try a smaller learning rate, such as lr=0.01")
    print(f"traffic: {amount(summary['up_bits'])} up, {amount(summary['down_bits'])} down")
    print(f"run: {folder.path}")


def print_comparison(table: pd.DataFrame, data: str) -> None:
    """A row for each method and model kind."""
    metric, part = table.metric[0], table.part[0]
    rows = []
    for row in table.to_dict(orient="records"):
        spread = "" if math.isnan(row["std_over_seeds"]) else f" ± {_value(row['std_over_seeds'], metric)}"
        rows.append(
            [
                f"{row['method']} {row['kind']}",
                _value(row["mean"], metric) + spread,
                _value(row["worst_tenth"], metric),
                _value(row["worst"], metric),
                _gain(row, "alone"),
                _gain(row, "shared"),
                f"{row['round']:.0f}",
                amount(row["up_bits"]),
            ]
        )
    title = f"{data}: {part} {metric} over {table.clients[0]:.0f} clients, {table.seeds[0]} seed(s)"
    columns = ["model", "mean", "worst 10 %", "worst", "gain over alone", "over shared", "round", "sent up"]
    print_table(title, columns, rows)


def _value(value: float, metric: str) -> str:
    if math.isnan(value):
        return "-"
    return f"{100 * value:.1f} %" if "accuracy" in metric else f"{value:.4g}"


def _gain(row: dict[Any, Any], baseline: str) -> str:
    """How many clients gain, and of how many."""
    if math.isnan(row[f"gain_over_{baseline}"]):
        return "-"
    return f"{row[f'gain_over_{baseline}']:.3g} of {row['clients']:.0f}"
