"""`idiolect export`."""

from typing import Annotated

import typer

import idiolect
from idiolect.cli.options import KindOption, StateOption


def export(
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="the folder of a finished run or comparison")
    ] = None,
    client: Annotated[
        str | None, typer.Option(help="whose model of the run; everybody's is --kind global")
    ] = None,
    state: StateOption = None,
    out: Annotated[
        str | None, typer.Option(help="a folder for `idiolect predict`, with the model's card")
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(help="a file for other programs: model.pt2 (PyTorch) or model.onnx"),
    ] = None,
    kind: KindOption = None,
) -> None:
    """Write one client's model, in the state that the run reports; a silo writes its own.

    Example: idiolect export runs/mine --client speaker-03 --out speaker-03

    What a client of a comparison keeps, by its own validation rows:
    idiolect export runs/all --client speaker-03 --kind chosen --out speaker-03

    Everybody's: idiolect export runs/mine --kind global --to model.onnx

    At a silo: idiolect export --state silo-state/hospital-3 --to model.onnx
    """
    written = idiolect.export(run, client=client, state=state, out=out, to=to, kind=kind)
    if kind == "chosen" and run is not None and client is not None:
        kept = idiolect.Comparison(run).kept_by(client)
        typer.echo(
            f"{client} keeps {kept.model} of seed {kept.seed}: the best on its own validation rows of "
            f"{kept.method} and the baselines"
        )
    typer.echo(f"model: {written}")
