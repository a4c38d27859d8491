"""A picture of who has how many rows of what."""

from pathlib import Path

import numpy as np

from idiolect.data.catalogue import describe
from idiolect.data.federation import Federation
from idiolect.errors import UserError

_MOST_LABELLED = 40


def draw(federation: Federation, path: str | Path) -> None:
    """Write a figure (png, svg or pdf by the ending): rows of each client by label, or by part."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError("a picture needs matplotlib: pip install 'idiolect[report]'") from error
    table = describe(federation)
    parts = ["train", "validation", "test"]
    stacked = table[parts] if not federation.task.is_classification else table.drop(columns=parts)
    figure = Figure(figsize=(min(14.0, 4.0 + 0.15 * len(table)), 4.5), layout="constrained")
    axes = figure.add_subplot()
    bottom = np.zeros(len(table))
    for position, (label, counts) in enumerate(stacked.items()):
        colour = _colour(position, stacked.shape[1])
        axes.bar(range(len(table)), counts, bottom=bottom, label=str(label), color=colour, width=0.9)
        bottom += counts.to_numpy()
    axes.set_ylabel("rows")
    axes.set_xlabel(f"{len(table)} clients")
    if len(table) <= _MOST_LABELLED:
        axes.set_xticks(range(len(table)), table.index, rotation=90, fontsize=7)
    if stacked.shape[1] <= 20:
        title = "class" if federation.task.is_classification else "part"
        figure.legend(loc="outside right upper", fontsize=8, title=title)
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise UserError(f"the picture {str(path)!r} cannot be written: {error}") from error


def _colour(position: int, count: int) -> tuple[float, ...]:
    from matplotlib import colormaps

    if count <= 10:
        return tuple(colormaps["tab10"](position))
    return tuple(colormaps["turbo"](position / (count - 1)))
