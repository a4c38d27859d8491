"""`idiolect personalize`."""

from typing import Annotated

import typer

import idiolect
from idiolect.cli.console import print_json, print_table
from idiolect.cli.options import JsonOption, SettingsArgument
from idiolect.quantities import show_value


def personalize(
    run: Annotated[str, typer.Argument(metavar="RUN", help="the folder of a finished run")],
    settings: SettingsArgument,
    json: JsonOption = False,
) -> None:
    """Give clients that were not there in training a model, from the state that a run reports.

    Example: idiolect personalize runs/patients-apfl data=new_hospitals.csv steps=50 out=models
    """
    from idiolect.evaluation.metrics import label_of
    from idiolect.evaluation.summary import reported_part

    newcomers = idiolect.personalize(run, *settings)
    metrics = newcomers.metrics
    if json:
        print_json(metrics.to_dict(orient="records"))
        return
    tested = metrics[metrics.part == reported_part(metrics)]
    table = tested.pivot_table(index="client", columns=["kind", "metric"], values="value", sort=False)
    task = newcomers.simulation.federation.task
    kinds, names = (table.columns.get_level_values(level) for level in ("kind", "metric"))
    rows = [[str(client), *map(show_value, row, names)] for client, row in table.iterrows()]
    columns = [
        "client",
        *(f"{kind} {label_of(metric, task)}" for kind, metric in zip(kinds, names, strict=True)),
    ]
    print_table(f"newcomers: {tested.part.iloc[0]} rows", columns, rows)
    if newcomers.epsilons:
        most = max(newcomers.epsilons.values())
        typer.echo(f"privacy of each row: ε = {most:.3g} spent at most, by this training alone")
    unsaved = "nothing was saved; out=FOLDER keeps the models"
    typer.echo(unsaved if newcomers.folder is None else f"models: {newcomers.folder}")
