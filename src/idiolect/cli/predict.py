"""`idiolect predict`."""

from typing import Annotated

import typer

import idiolect
from idiolect.cli.options import DecimalOption, EncodingOption, KindOption, SeparatorOption, StateOption
from idiolect.errors import UserError


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
    proba: Annotated[
        bool, typer.Option("--proba", help="instead of classes their probabilities, a column for each class")
    ] = False,
    separator: SeparatorOption = "auto",
    decimal: DecimalOption = "auto",
    encoding: EncodingOption = "auto",
) -> None:
    """Predict the rows of a table, one line for each: with an exported model, or at a silo with its own.

    Example: idiolect predict speaker-03 new_rows.csv --out predictions.csv

    At a silo: idiolect predict --state silo-state/hospital-3 --data new.csv
    """
    if table is not None and data is not None:
        raise UserError("give one table, as TABLE or with --data: a CSV or Parquet file with the features")
    predictions = idiolect.predict(
        model,
        table or data,
        state=state,
        kind=kind,
        out=out,
        proba=proba,
        separator=separator,
        decimal=decimal,
        encoding=encoding,
    )
    if out is None:
        typer.echo(predictions.to_csv(index=False), nl=False)
