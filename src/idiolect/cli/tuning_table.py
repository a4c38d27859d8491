"""A tuning as a table for people, and as JSON for programs."""

import typer

from idiolect.cli.console import print_json, print_table
from idiolect.quantities import duration, show_value
from idiolect.tuning.tuning import BEST, Tuning
from idiolect.tuning.words import show_default, show_settings, show_trials


def print_tuning(tuning: Tuning, *, json: bool) -> None:
    """A row for each method: validation values without and with tuning, and the choice."""
    table = tuning.table
    if json:
        content = {
            "folder": str(tuning.path),
            "metric": tuning.metric,
            "rows": table.to_dict(orient="records"),
            "settings": tuning.settings,
            "trials": tuning.trials.to_dict(orient="records"),
            "notes": tuning.notes,
        }
        print_json(content)
        return
    rows = [
        [
            str(row.method),
            show_default(row, tuning.metric),
            show_value(row.tuned, tuning.metric),
            show_settings(row.settings),
            show_trials(row),
            duration(row.seconds),
        ]
        for _, row in table.iterrows()
    ]
    title = f"{tuning.data_name}: validation {tuning.metric_label} over {tuning.clients} clients"
    print_table(title, ["method", "not tuned", "tuned", "choice", "trials", "time"], rows)
    for note in tuning.notes:
        typer.echo(note)
    typer.echo("a tuned value is the best of several on the same rows and flatters; test rows were not seen")
    typer.echo(f"compare with: idiolect compare {tuning.path / BEST}")
    if tuning.page is not None:
        typer.echo(f"report: {tuning.page}")
