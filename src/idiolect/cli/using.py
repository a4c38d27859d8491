"""Commands that use a client's model, from a run or at a silo: export, predict, personalize."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from idiolect.cli.app import app
from idiolect.cli.console import print_json, print_table
from idiolect.cli.running import JsonOption, SettingsArgument
from idiolect.errors import UserError

if TYPE_CHECKING:
    from idiolect.runs.client_model import PersonalModel

StateOption = Annotated[str | None, typer.Option(help="at a silo: its state folder")]
KindOption = Annotated[str | None, typer.Option(help="global, localized, personal or group")]


@app.command()
def export(
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="the folder of a finished run")] = None,
    client: Annotated[str | None, typer.Option(help="whose model of the run")] = None,
    state: StateOption = None,
    out: Annotated[
        str | None, typer.Option(help="a folder for `idiolect predict`: model.safetensors and model.json")
    ] = None,
    to: Annotated[
        str | None, typer.Option(help="a file for other programs: model.pt2 (PyTorch) or model.onnx")
    ] = None,
    kind: KindOption = None,
) -> None:
    """Write one client's model, in the state that the run reports; a silo writes its own.

    Example: idiolect export runs/mine --client speaker-03 --out speaker-03

    At a silo: idiolect export --state silo-state/hospital-3 --to model.onnx
    """
    if (run is None) == (state is None):
        raise UserError("give either RUN, the folder of a run, or --state, the state folder of a silo")
    if state is not None:
        if client is not None or out is not None or to is None:
            raise UserError("--state goes with --to model.pt2 or --to model.onnx, not with --client or --out")
        from idiolect.silo.offline import export_program as export_state_program

        typer.echo(f"model: {export_state_program(Path(state), Path(to), kind)}")
        return
    assert run is not None
    if client is None:
        raise UserError("--client is missing: whose model of the run")
    if (out is None) == (to is None):
        raise UserError("give either --out, a folder, or --to, a file that ends in .pt2 or .onnx")
    from idiolect.runs.folder import RunFolder

    if out is not None:
        from idiolect.runs.client_model import export_model

        written = export_model(RunFolder(run), client, Path(out), kind)
    else:
        from idiolect.runs.programs import export_program

        written = export_program(RunFolder(run), client, Path(str(to)), kind)
    typer.echo(f"model: {written}")


@app.command()
def predict(
    model: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", help="a folder that `idiolect export` wrote")
    ] = None,
    table: Annotated[
        str | None, typer.Argument(metavar="[TABLE]", help="a CSV or Parquet file with the features")
    ] = None,
    state: StateOption = None,
    data: Annotated[str | None, typer.Option(help="the same as TABLE")] = None,
    kind: KindOption = None,
    out: Annotated[str | None, typer.Option(help="a CSV file; otherwise the screen")] = None,
) -> None:
    """Predict the rows of a table, one line for each: with an exported model, or at a silo with its own.

    Example: idiolect predict speaker-03 new_rows.csv --out predictions.csv

    At a silo: idiolect predict --state silo-state/hospital-3 --data new.csv
    """
    if (model is None) == (state is None):
        raise UserError(
            "give either MODEL, an exported folder, or --state, the state folder of a silo (with --data)"
        )
    if (table is None) == (data is None):
        raise UserError("give one table, as TABLE or with --data: a CSV or Parquet file with the features")
    if model is not None and kind is not None:
        raise UserError(f"--kind {kind} goes with --state: an exported model is of one kind already")
    from idiolect.data.tables import read_table
    from idiolect.store.files import write_bytes

    text = _model(model, state, kind).predict(read_table(str(table or data))).to_csv(index=False)
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
    """Give clients that were not there in training a model, from the state that a run reports.

    Example: idiolect personalize runs/patients-apfl data=new_hospitals.csv steps=50 out=models
    """
    from idiolect.runs.folder import RunFolder
    from idiolect.runs.personalization import personalize as give_models

    metrics = give_models(RunFolder(run), settings)
    if json:
        print_json(metrics.to_dict(orient="records"))
        return
    tested = metrics[metrics.part == metrics.part.iloc[-1]]
    table = tested.pivot_table(index="client", columns=["kind", "metric"], values="value", sort=False)
    rows = [[str(client), *(f"{value:.4g}" for value in values)] for client, values in table.iterrows()]
    columns = ["client", *(f"{kind} {metric}" for kind, metric in table.columns)]
    print_table(f"newcomers: {tested.part.iloc[0]} rows", columns, rows)


def _model(folder: str | None, state: str | None, kind: str | None) -> "PersonalModel":
    """An exported model, or the one in a silo's state."""
    if state is not None:
        from idiolect.silo.offline import personal_model

        return personal_model(Path(state), kind)
    from idiolect.runs.client_model import load_model

    return load_model(str(folder))
