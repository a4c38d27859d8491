"""Commands that compute: run, compare, resume."""

from typing import Annotated

import typer

from idiolect.cli.app import app
from idiolect.cli.console import ProgressBar, print_json

SettingsArgument = Annotated[
    list[str],
    typer.Argument(metavar="[FILE.yaml] KEY=VALUE...", help="a YAML file and settings; the last one wins"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="print JSON for programs")]
DataDirOption = Annotated[
    str | None, typer.Option("--data-dir", help="where data sets are; otherwise IDIOLECT_DATA or a cache")
]


@app.command()
def run(settings: SettingsArgument, json: JsonOption = False, data_dir: DataDirOption = None) -> None:
    """Train one method and keep the run in a folder.

    Example: idiolect run method=apfl data=vowels rounds=50 method.mixing=adaptive

    Your own table: idiolect run data=patients.csv data.client=hospital data.target=outcome method=apfl
    """
    from idiolect.cli.tables import print_run
    from idiolect.runs.config import resolve
    from idiolect.runs.settings import read_settings
    from idiolect.runs.train import start_or_continue

    config = resolve(read_settings([*settings, *_data_dir(data_dir)]))
    with ProgressBar() as bar:
        folder = start_or_continue(config, [bar.watch(config.method_name, config.rounds)])
    print_json({"folder": str(folder.path), **folder.summary()}) if json else print_run(folder)


@app.command()
def resume(
    folder: Annotated[str, typer.Argument(metavar="RUN", help="the folder of a run")],
    json: JsonOption = False,
) -> None:
    """Continue a run that was stopped, bitwise as if it had not been.

    Example: idiolect resume runs/vowels-apfl
    """
    from idiolect.cli.tables import print_run
    from idiolect.runs.folder import RunFolder
    from idiolect.runs.train import continue_run

    found = RunFolder(folder)
    config = found.config
    with ProgressBar() as bar:
        continue_run(found, [bar.watch(config.method_name, config.rounds)])
    print_json({"folder": str(found.path), **found.summary()}) if json else print_run(found)


@app.command()
def compare(settings: SettingsArgument, json: JsonOption = False, data_dir: DataDirOption = None) -> None:
    """Compare methods on the same clients, rows, batches and initial models.

    Example: idiolect compare methods=local,fedavg,apfl data=vowels seeds=5

    Settings of one method: apfl.mixing=0.5; of all methods that have them: lr=0.1 method.local_steps=5.
    A report page is written where `pip install 'idiolect[report]'` was done.
    """
    from idiolect.cli.reporting import write_report_page
    from idiolect.cli.tables import print_comparison
    from idiolect.runs.compare import plan_comparison, run_comparison
    from idiolect.runs.settings import read_settings

    comparison = plan_comparison(read_settings([*settings, *_data_dir(data_dir)]))
    with ProgressBar() as bar:
        table = run_comparison(
            comparison,
            lambda config: [bar.watch(f"{config.method_name} seed {config.seed}", config.rounds)],
        )
    page = write_report_page([comparison.folder], comparison.folder / "report.html")
    if json:
        print_json({"folder": str(comparison.folder), "rows": table.to_dict(orient="records")})
        return
    print_comparison(table, comparison.configs[0].data_name)
    typer.echo(f"runs: {comparison.folder}")
    typer.echo(page)


def _data_dir(folder: str | None) -> list[str]:
    return [] if folder is None else [f"data.data_dir={folder}"]
