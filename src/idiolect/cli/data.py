"""`idiolect data`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import idiolect
from idiolect.cli.console import print_json, print_table
from idiolect.cli.options import DataDirOption, JsonOption
from idiolect.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

MOST_CLASSES_LISTED = 12


def data(
    settings: Annotated[
        list[str],
        typer.Argument(metavar="NAME-OR-PATH [KEY=VALUE...]", help="the data and its options, as for `run`"),
    ],
    picture: Annotated[str | None, typer.Option(help="also draw it: a .png, .svg or .pdf file")] = None,
    json: JsonOption = False,
    data_dir: DataDirOption = None,
) -> None:
    """Show who has how many rows of what.

    Example: idiolect data vowels --picture vowels.png

    Your own table: idiolect data patients.csv client=hospital target=outcome

    The data of a run: idiolect data run.yaml
    """
    from idiolect.core import tree
    from idiolect.core.inputs import row_shapes

    options = _options(settings)
    name = options.pop("name")
    federation = idiolect.load(name, **{"data_dir": data_dir, **options})
    table = idiolect.describe(federation)
    if picture is not None:
        idiolect.draw(federation, picture)
    if json:
        content = {
            "name": name,
            "task": federation.task.kind,
            "outputs": federation.task.outputs,
            "inputs": row_shapes(federation.inputs),
            "notes": list(federation.notes),
        }
        print_json({**content, "clients": table.reset_index().to_dict(orient="records")})
        return
    shapes = tree.to_named(federation.inputs).items()
    shown = ", ".join(f"{label} {' x '.join(map(str, leaf.shape[1:]))}".strip() for label, leaf in shapes)
    title = f"{name}: {len(federation)} clients, {federation.task.kind}, inputs {shown}"
    table = _fitted(table)
    rows = [[str(client), *(f"{value:.6g}" for value in row)] for client, row in table.iterrows()]
    print_table(title, ["client", *map(str, table.columns)], rows)
    for note in federation.notes:
        typer.echo(f"note: {note}")


def _options(given: list[str]) -> dict[str, Any]:
    """Name and options of the data from what `run` takes; also a name alone, and options without `data.`."""
    from idiolect.runs.config import RunConfig
    from idiolect.runs.settings import SHORTCUTS, read_settings
    from idiolect.runs.signatures import fields_of

    known = {*fields_of(RunConfig), *SHORTCUTS} - {"seed"}

    def spelled(setting: str) -> str:
        if "=" not in setting:
            return setting if Path(setting).suffix in (".yaml", ".yml") else f"data={setting}"
        section = setting.partition("=")[0].partition(".")[0]
        return setting if section in known else f"data.{setting}"

    settings = read_settings([spelled(setting) for setting in given])
    options = settings.get("data", {})
    if "name" not in options:
        raise UserError("data is missing; give it as NAME-OR-PATH or data=NAME (see `idiolect datasets`)")
    return {"seed": settings.get("seed", 0), **options}


def _fitted(table: "pd.DataFrame") -> "pd.DataFrame":
    """A description of clients that fits a terminal: many classes are counted instead of listed."""
    sizes, counts = table.iloc[:, :3], table.iloc[:, 3:]
    if counts.shape[1] <= MOST_CLASSES_LISTED:
        return table
    return sizes.assign(**{"classes": (counts > 0).sum(axis=1), "rows of the largest": counts.max(axis=1)})
