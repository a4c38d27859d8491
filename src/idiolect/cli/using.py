"""Commands that take a client's model out of a run: export, predict, personalize."""

from pathlib import Path
from typing import Annotated

import typer

from idiolect.cli.app import app
from idiolect.cli.console import print_json, print_table
from idiolect.cli.running import JsonOption, SettingsArgument


@app.command()
def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="the folder of a finished run")],
    client: Annotated[str, typer.Option(help="whose model")],
    out: Annotated[str, typer.Option(help="the folder to write: model.safetensors and model.json")],
    kind: Annotated[str | None, typer.Option(help="global, localized, personal or group")] = None,
) -> None:
    """Write one client's model to a folder of its own, in the state that the run reports.

    Example: idiolect export runs/mine --client speaker-03 --out speaker-03
    """
    from idiolect.runs.folder import RunFolder
    from idiolect.runs.personal import export_model

    typer.echo(f"model: {export_model(RunFolder(run), client, Path(out), kind)}")


@app.command()
def predict(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="a folder that `idiolect export` wrote")],
    table: Annotated[str, typer.Argument(metavar="TABLE", help="a CSV or Parquet file with the features")],
    out: Annotated[str | None, typer.Option(help="a CSV file; otherwise the screen")] = None,
) -> None:
    """Predict the rows of a table with an exported model, one line for each row.

    Example: idiolect predict speaker-03 new_rows.csv --out predictions.csv
    """
    from idiolect.data.tables import read_table
    from idiolect.runs.personal import load_model
    from idiolect.store.files import write_bytes

    text = load_model(model).predict(read_table(table)).to_csv(index=False)
    if out is None:
        typer.echo(text, nl=False)
    else:
        write_bytes(Path(out), text.encode())


@app.command()
def personalize(
    run: Annotated[str, typer.Argument(metavar="RUN", help="the folder of a finished run")],
    settings: SettingsArgument,
    json: JsonOption = False,
) -> None:
    """Give clients that were not there in training a model, from the final state of a run.

    Example: idiolect personalize runs/patients-apfl data=new_hospitals.csv steps=50 out=models
    """
    from idiolect.runs.folder import RunFolder
    from idiolect.runs.personalize import personalize as give_models

    metrics = give_models(RunFolder(run), settings)
    if json:
        print_json(metrics.to_dict(orient="records"))
        return
    tested = metrics[metrics.part == metrics.part.iloc[-1]]
    table = tested.pivot_table(index="client", columns=["kind", "metric"], values="value", sort=False)
    rows = [[str(client), *(f"{value:.4g}" for value in values)] for client, values in table.iterrows()]
    columns = ["client", *(f"{kind} {metric}" for kind, metric in table.columns)]
    print_table(f"newcomers: {tested.part.iloc[0]} rows", columns, rows)
