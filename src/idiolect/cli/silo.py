"""`idiolect silo`: a silo's own choice, a look back, what it spent, how it is; keys are in `silo_keys.py`."""

from typing import Annotated

import typer

import idiolect
from idiolect.cli import silo_keys
from idiolect.cli.console import print_json, print_table
from idiolect.cli.options import JsonOption
from idiolect.quantities import show_value

silo = typer.Typer(help="Keys, and a silo's own choice.", no_args_is_help=True, rich_markup_mode=None)
for command in (silo_keys.init, silo_keys.add, silo_keys.renew, silo_keys.revoke, silo_keys.keys):
    silo.command(command.__name__)(command)


@silo.command("health")
def health(
    folder: Annotated[str, typer.Argument(help="a silo's state folder, or the folder of a served run")],
    json: JsonOption = False,
) -> None:
    """Say whether `join` or `serve` is well: exit code 0 if it is, 1 if it is not.

    Example: idiolect silo health silo-state/hospital-3
    """
    found = idiolect.silo_health(folder)
    if json:
        print_json(found._asdict())
    else:
        typer.echo(f"{'well' if found.healthy else 'not well'}: {found.sentence}")
    if not found.healthy:
        raise typer.Exit(1)


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


@silo.command("ledger")
def ledger(
    state: Annotated[str, typer.Argument(help="your state folder")],
    delta: Annotated[float, typer.Option(help="the δ at which ε is shown")] = 1e-5,
    json: JsonOption = False,
) -> None:
    """Show what your runs have cost in privacy, each and together, by your silo's own count.

    Example: idiolect silo ledger silo-state/hospital-3
    """
    statement = idiolect.silo_ledger(state, delta=delta)
    if json:
        print_json(statement.plain())
        return
    rows = [
        [line.run, line.hides, str(line.answers)]
        + [show_value(epsilon, "epsilon") for epsilon in (line.row, line.silo)]
        for line in (*statement.runs, statement.in_all)
    ]
    columns = ["run", "hides each", "answers", "ε of a row", "ε of the silo"]
    print_table(f"spent at δ = {delta:g}", columns, rows)


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
