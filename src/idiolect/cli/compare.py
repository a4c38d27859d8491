"""`idiolect compare`."""

import typer

import idiolect
from idiolect.cli.console import ProgressBar
from idiolect.cli.options import (
    ClientsOption,
    DataDirOption,
    JsonOption,
    SettingsArgument,
    data_dir_setting,
)


def compare(
    settings: SettingsArgument,
    clients: ClientsOption = False,
    json: JsonOption = False,
    data_dir: DataDirOption = None,
) -> None:
    """Compare methods on the same clients, rows, batches and initial models.

    Example: idiolect compare methods=local,fedavg,apfl data=vowels seeds=5

    Settings of one method: apfl.mixing=0.5; of all methods that have them: lr=0.1 method.local_steps=5.
    A report page is written where `pip install 'idiolect[report]'` was done.
    """
    from idiolect.cli.results import print_comparison

    with ProgressBar() as bar:
        comparison = idiolect.compare(*settings, *data_dir_setting(data_dir), watch=bar.watch)
    print_comparison(comparison, clients=clients, json=json)
    if not json:
        missing = "no report page: it needs pip install 'idiolect[report]'"
        typer.echo(missing if comparison.page is None else f"report: {comparison.page}")
