"""Commands that only look: methods, datasets, data, show."""

import inspect
from typing import TYPE_CHECKING, Annotated, Any

import typer

from idiolect.cli.app import app
from idiolect.cli.console import print_json, print_table
from idiolect.cli.running import DataDirOption, JsonOption

if TYPE_CHECKING:
    import pandas as pd

MOST_CLASSES_LISTED = 12


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="one method, with its hyper-parameters")] = None,
    json: JsonOption = False,
) -> None:
    """List the methods, or the hyper-parameters of one.

    Example: idiolect methods apfl
    """
    from idiolect.methods.catalogue import METHODS, find_method

    cards = [_card(kind) for kind in (METHODS if name is None else [find_method(name)])]
    if json:
        print_json(cards)
    elif name is None:
        rows = [
            [
                c["name"],
                c["paper"],
                ", ".join(c["kinds"]),
                "yes" if c["stateful"] else "no",
                str(c["gradients_per_step"]),
                c["summary"],
            ]
            for c in cards
        ]
        columns = ["name", "paper", "models", "stateful", "gradients per step", "what it does"]
        print_table("methods", columns, rows)
    else:
        (card,) = cards
        typer.echo(f"{card['name']}: {card['summary']} {card['paper']}")
        typer.echo(f"models: {', '.join(card['kinds'])}; judged by {card['judged_by']}")
        rows = [
            [p["name"], p["symbol"], str(p["default"]), p["paper"], p["description"]]
            for p in card["hyper_parameters"]
        ]
        print_table("hyper-parameters", ["name", "symbol", "default", "in papers", "what it does"], rows)


@app.command()
def datasets(json: JsonOption = False) -> None:
    """List the data sets that are known by name.

    Example: idiolect datasets
    """
    from idiolect.data.catalogue import LOADERS, names

    known = names()
    if json:
        options = {name: list(inspect.signature(loader).parameters) for name, loader in LOADERS.items()}
        print_json([{"name": n, "summary": text, "options": options[n]} for n, text in known.items()])
    else:
        print_table("data sets", ["name", "what it is"], [[name, text] for name, text in known.items()])


@app.command()
def data(
    settings: Annotated[
        list[str], typer.Argument(metavar="NAME-OR-PATH [KEY=VALUE...]", help="the data and its options")
    ],
    picture: Annotated[str | None, typer.Option(help="also draw it: a .png, .svg or .pdf file")] = None,
    json: JsonOption = False,
    data_dir: DataDirOption = None,
) -> None:
    """Show who has how many rows of what.

    Example: idiolect data vowels --picture vowels.png

    Your own table: idiolect data patients.csv client=hospital target=outcome
    """
    from idiolect.data.catalogue import describe, load
    from idiolect.runs.settings import read_settings

    name, *given = settings
    options = read_settings([f"data.{setting}" for setting in given]).get("data", {})
    federation = load(name, **{"seed": 0, "data_dir": data_dir, **options})
    table = describe(federation)
    if picture is not None:
        from idiolect.data.picture import draw

        draw(federation, picture)
    if json:
        clients = table.reset_index().to_dict(orient="records")
        print_json(
            {
                "name": name,
                "task": federation.task.kind,
                "outputs": federation.task.outputs,
                "inputs": list(federation.inputs.shape[1:]),
                "notes": list(federation.notes),
                "clients": clients,
            }
        )
        return
    shape = " x ".join(map(str, federation.inputs.shape[1:]))
    title = f"{name}: {len(federation)} clients, {federation.task.kind}, inputs {shape}"
    table = _fitted(table)
    rows = [[str(client), *(f"{value:.6g}" for value in row)] for client, row in table.iterrows()]
    print_table(title, ["client", *map(str, table.columns)], rows)
    for note in federation.notes:
        typer.echo(f"note: {note}")


@app.command()
def show(
    folder: Annotated[str, typer.Argument(metavar="RUN", help="the folder of a run or a comparison")],
    json: JsonOption = False,
) -> None:
    """Show the results of a finished run or comparison.

    Example: idiolect show runs/demo
    """
    from idiolect.cli.tables import print_comparison, print_run
    from idiolect.runs.compare import open_runs, tabulate

    runs = open_runs(folder)
    if len(runs) > 1:
        table = tabulate(runs)
        if json:
            print_json({"folder": folder, "rows": table.to_dict(orient="records")})
        else:
            print_comparison(table, runs[0].config.data["name"])
    elif json:
        print_json({"folder": folder, "config": runs[0].config.plain(), **runs[0].summary()})
    else:
        print_run(runs[0])


def _fitted(table: "pd.DataFrame") -> "pd.DataFrame":
    """A description of clients that fits a terminal: many classes are counted instead of listed."""
    sizes, counts = table.iloc[:, :3], table.iloc[:, 3:]
    if counts.shape[1] <= MOST_CLASSES_LISTED:
        return table
    return sizes.assign(**{"classes": (counts > 0).sum(axis=1), "rows of the largest": counts.max(axis=1)})


def _card(kind: Any) -> dict[str, Any]:
    """What there is to know about a method without running it."""
    from idiolect.runs.checks import alias_of, dump, fields_of

    defaults = dump(kind())
    return {
        "name": kind.name,
        "aliases": list(kind.aliases),
        "paper": kind.paper,
        "summary": (inspect.getdoc(kind) or "").splitlines()[0],
        "kinds": list(kind.kinds),
        "judged_by": kind.judged_by,
        "personal": kind.judged_by in ("personal", "group"),
        "stateful": kind.stateful,
        "gradients_per_step": kind.gradients_per_step,
        "hyper_parameters": [
            {
                "name": name,
                "alias": alias_of(field),
                "default": defaults[name],
                "description": field.description,
                "symbol": (field.json_schema_extra or {}).get("symbol", ""),  # type: ignore[union-attr]
                "paper": (field.json_schema_extra or {}).get("paper", ""),  # type: ignore[union-attr]
            }
            for name, field in fields_of(kind).items()
        ],
    }
