"""`idiolect personalize`."""

from typing import Annotated

import typer

import idiolect
from idiolect.cli.console import print_json, print_table
from idiolect.cli.options import JsonOption, SettingsArgument


def personalize(
    run: Annotated[str, typer.Argument(metavar="RUN", help="the folder of a finished run")],
    settings: SettingsArgument,
    json: JsonOption = False,
) -> None:
    """Give clients that were not there in training a model, from the state that a run reports.

    Example: idiolect personalize runs/patients-apfl data=new_hospitals.csv steps=50 out=models
    """
    newcomers = idiolect.personalize(run, *settings)
    metrics = newcomers.metrics
    if json:
        print_json(metrics.to_dict(orient="records"))
        return
    tested = metrics[metrics.part == metrics.part.iloc[-1]]
    table = tested.pivot_table(index="client", columns=["kind", "metric"], values="value", sort=False)
    rows = [[str(client), *(f"{value:.4g}" for value in values)] for client, values in table.iterrows()]
    columns = ["client", *(f"{kind} {metric}" for kind, metric in table.columns)]
    print_table(f"newcomers: {tested.part.iloc[0]} rows", columns, rows)
    unsaved = "nothing was saved; out=FOLDER keeps the models"
    typer.echo(unsaved if newcomers.folder is None else f"models: {newcomers.folder}")
