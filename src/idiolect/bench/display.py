"""The benchmark's result as tables."""

from collections.abc import Callable
from functools import partial
from typing import Any

from rich.console import Group
from rich.table import Table

TARGETS = {
    "fedavg_linear": "at least 12",
    "fedavg_mlp": "at least 4.5",
    "fedavg_cnn": "at least 1",
    "fedavg_resnet": "at least 1",
    "fedavg_resnet18": "at least 1",
    "fedavg_char_lstm": "at least 1",
    "fedavg_transformer": "at least 1",
    "apfl_mlp_over_fedavg": "at most 2.3",
}


def render(result: dict[str, Any]) -> Group:
    """What was measured as tables, to be printed with rich."""
    return Group(
        *_targets_tables(result), *(show(result[key]) for key, show in TABLES.items() if key in result)
    )


def _targets_tables(result: dict[str, Any]) -> list[Table]:
    table = Table("measured", "ratio", "target", title="Speed-up over a plain loop; cost of APFL over FedAvg")
    for name, target in TARGETS.items():
        if name in result:
            table.add_row(name, f"{result[name]:.2f}", target)
    return [table] if table.row_count else []


def _seconds_table(
    seconds: dict[str, dict[str, Any]], title: str = "Seconds per round of FedAvg (median)"
) -> Table:
    table = Table("model", "plain loop [s]", "ours [s]", "ratio", "least to most", "computed", title=title)
    for name, row in seconds.items():
        spread = f"{row['least']:.2f} to {row['most']:.2f}"
        times = f"{row['plain_loop']:.3f}", f"{row['vectorised']:.3f}"
        table.add_row(name, *times, f"{row['speed_up']:.2f}", spread, row["way"])
    return table


def _compiler_table(prices: dict[str, dict[str, float]]) -> Table:
    table = Table(
        "model", "recording [rounds]", "checking [share of 50 rounds]",
        title="What recorded steps cost once: in ordinary rounds; what comparing them with plain steps costs",
    )  # fmt: skip
    for name, row in prices.items():
        table.add_row(name, f"{row['recording_in_rounds']:.1f}", f"{100 * row['checking_share']:.2f} %")
    return table


def _scaling_table(rows: list[dict[str, Any]]) -> Table:
    table = Table("clients", "s per round", "ms per client", "peak of a chunk [MB]", title="Scaling, MLP")
    for row in rows:
        peak = row["peak_megabytes_of_a_chunk"]
        table.add_row(
            str(row["clients"]),
            f"{row['seconds']:.3f}",
            f"{1000 * row['seconds_per_client']:.2f}",
            "unknown" if peak is None else f"{peak:.0f}",
        )
    return table


def _little_work_table(costs: dict[str, float]) -> Table:
    table = Table("round of FedAvg", "time", title="FedAvg with little work over itself, MLP")
    for name, cost in costs.items():
        table.add_row(name.replace("_", " "), f"{cost:.2f}")
    return table


def _costs_table(costs: dict[str, dict[str, float]], model: str) -> Table:
    table = Table(
        "method", "time", "arithmetic", "gradients per client", "within 125 % of the arithmetic",
        title=f"One round of each over FedAvg's, {model}",
    )  # fmt: skip
    for name, row in costs.items():
        within = "yes" if row["over_fedavg"] <= 1.25 * row["arithmetic"] else "no"
        table.add_row(
            name, f"{row['over_fedavg']:.2f}", f"{row['arithmetic']:.2f}", f"{row['gradients']:g}", within
        )
    return table


TABLES: dict[str, Callable[[Any], Table]] = {
    "seconds": _seconds_table,
    "compiler": _compiler_table,
    "uneven_clients": partial(_seconds_table, title="The same with clients of different sizes"),
    "scaling": _scaling_table,
    "method_costs": partial(_costs_table, model="MLP"),
    "method_costs_cnn": partial(_costs_table, model="CNN"),
    "costs_of_little_work": _little_work_table,
}
