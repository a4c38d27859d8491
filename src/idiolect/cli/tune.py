"""`idiolect tune`."""

import sys
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

import idiolect
from idiolect.cli.options import DataDirOption, JsonOption, SettingsArgument, data_dir_setting

if TYPE_CHECKING:
    from idiolect.tuning.trials import Trial


def tune(settings: SettingsArgument, json: JsonOption = False, data_dir: DataDirOption = None) -> None:
    """Choose settings of methods by validation rows, with the same budget for each.

    Example: idiolect tune methods=local,fedavg,apfl,ditto data=vowels budget=20m

    The budget is a time for all methods together, or trials=30 for each of them. What is given is not tuned.
    Needs `pip install 'idiolect[tune]'`. The choice: idiolect compare OUT/best.yaml
    """
    from idiolect.cli.tuning_table import print_tuning

    with _Bars() as bars:
        tuning = idiolect.tune(*settings, *data_dir_setting(data_dir), told=bars.told)
    print_tuning(tuning, json=json)
    if not json and tuning.page is None:
        typer.echo("no report page: it needs pip install 'idiolect[report]'")


class _Bars:
    """A bar for each method: how much of its budget is spent; silent where nobody looks."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        self.progress = Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty())
        self.tasks: dict[str, TaskID] = {}

    def __enter__(self) -> "_Bars":
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def told(self, trial: "Trial", share: float) -> None:
        """Move the bar of a method."""
        if trial.method not in self.tasks:
            self.tasks[trial.method] = self.progress.add_task(trial.method, total=1.0)
        description = f"{trial.method} trial {trial.number}: {trial.state}"
        self.progress.update(self.tasks[trial.method], completed=share, description=description)
