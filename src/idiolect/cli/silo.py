"""`idiolect silo init`, `audit`, `back` and `choose`."""

from typing import Annotated

import typer

import idiolect
from idiolect.cli.console import print_json, print_table
from idiolect.cli.options import JsonOption
from idiolect.quantities import show_value

silo = typer.Typer(help="Keys, and a silo's own choice.", no_args_is_help=True, rich_markup_mode=None)


@silo.command("init")
def init(
    silos: Annotated[list[str], typer.Argument(metavar="NAME...", help="the silos' names")],
    host: Annotated[str, typer.Option(help="how silos reach the coordinator: a host name or an address")],
    out: Annotated[str, typer.Option(help="the folder to write")] = "keys",
    port: Annotated[int, typer.Option(help="the coordinator's port")] = 9092,
) -> None:
    """Make a certificate authority, the server's certificate and a key for each silo.

    Example: idiolect silo init hospital-1 hospital-2 hospital-3 --host fl.example.org
    """
    keys = idiolect.silo_init(silos, host=host, out=out)
    typer.echo(f"coordinator, with the folder {keys}/coordinator:")
    typer.echo(f"  idiolect serve my.yaml --keys {keys}/coordinator --listen 0.0.0.0:{port}")
    for name in silos:
        typer.echo(f"{name}, with the folder {keys}/{name} (send it safely, to nobody else):")
        typer.echo(f"  idiolect join --server {host}:{port} --name {name} --keys {name} --data my.csv")
    typer.echo(f"keep {keys}/authority.key off-line: it can make certificates that silos trust")


@silo.command("audit")
def audit(
    folder: Annotated[str, typer.Argument(help="a silo's state folder, or the folder of a served run")],
    refused: Annotated[bool, typer.Option("--refused", help="only what was refused or not answered")] = False,
    json: JsonOption = False,
) -> None:
    """Show who asked what, what was answered or refused, and whether the file is as it was written.

    Example: idiolect silo audit silo-state/hospital-3 --refused
    """
    entries, broken = idiolect.silo_audit(folder, refused=refused)
    if json:
        print_json({"entries": entries, "broken": broken})
    else:
        columns = ["time", "silo", "ask", "run", "round", "place", "outcome"]
        columns = [name for name in columns if any(name in entry for entry in entries)]
        rows = [[str(entry.get(name, "")) for name in columns] for entry in entries]
        print_table(f"{len(entries)} requests", columns, rows)
    if broken is not None:
        typer.echo(f"line {broken} of the file does not follow from the one before: it was changed", err=True)
        raise typer.Exit(1)


@silo.command("back")
def back(
    state: Annotated[str, typer.Option(help="your state folder, or that of one run in it")],
    to: Annotated[int, typer.Option(help="the round after which to go on")],
) -> None:
    """Forget what came after a round, so that the coordinator can play from there once more.

    Your silo refuses to play a round again unless the message is the same; this is your leave to do so, where
    a run was spoilt and all agree to go back. What was told before is not untold.

    Example: idiolect silo back --state silo-state/hospital-3 --to 11
    """
    forgotten = idiolect.silo_back(state=state, to=to)
    typer.echo(f"the state is that after round {to}; exchanges forgotten: {forgotten}")


@silo.command("choose")
def choose(
    state: Annotated[str, typer.Option(help="your state folder")],
    data: Annotated[str, typer.Option(help="the table that you joined with")],
    json: JsonOption = False,
) -> None:
    """Keep, by your own validation rows, the best of training alone and what a run gave you; nothing crosses.

    Example: idiolect silo choose --state silo-state/hospital-3 --data my.csv

    Then: idiolect predict --state silo-state/hospital-3 --kind chosen --data new.csv
    """
    choice = idiolect.silo_choose(state=state, data=data)
    if json:
        print_json(choice._asdict())
        return
    rows = [[kind, show_value(value, choice.metric)] for kind, value in choice.values.items()]
    print_table(f"{choice.metric} on your {choice.rows} validation rows", ["model", choice.metric], rows)
    typer.echo(f"chosen: {choice.kept}; use it with --kind chosen")
