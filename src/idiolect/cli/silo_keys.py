"""`idiolect silo init`, `add`, `renew`, `revoke` and `keys`: who is who, and until when."""

from typing import Annotated

import typer

import idiolect
from idiolect.cli.console import print_json, print_table
from idiolect.cli.options import JsonOption
from idiolect.silo.certificates import DAYS

SilosArgument = Annotated[list[str], typer.Argument(metavar="NAME...", help="the silos' names")]
AllKeysOption = Annotated[str, typer.Option(help="the folder that `idiolect silo init` wrote")]
DaysOption = Annotated[int, typer.Option(help="for how many days they are good")]


def init(
    silos: SilosArgument,
    host: Annotated[str, typer.Option(help="how silos reach the coordinator: a host name or an address")],
    out: Annotated[str, typer.Option(help="the folder to write")] = "keys",
    port: Annotated[int, typer.Option(help="the coordinator's port")] = 9092,
    days: DaysOption = DAYS,
) -> None:
    """Make a certificate authority, the server's certificate and a key for each silo.

    Example: idiolect silo init hospital-1 hospital-2 hospital-3 --host fl.example.org
    """
    keys = idiolect.silo_init(silos, host=host, out=out, days=days)
    typer.echo(f"coordinator, with the folder {keys}/coordinator:")
    typer.echo(f"  idiolect serve my.yaml --keys {keys}/coordinator --listen 0.0.0.0:{port}")
    for name in silos:
        typer.echo(f"{name}, with the folder {keys}/{name} (send it safely, to nobody else):")
        typer.echo(f"  idiolect join --server {host}:{port} --name {name} --keys {name} --data my.csv")
    typer.echo(f"keep {keys}/authority.key off-line: it can make certificates that silos trust")


def add(silos: SilosArgument, keys: AllKeysOption = "keys", days: DaysOption = DAYS) -> None:
    """Make folders with keys for further silos; they take part in runs whose list names them.

    Example: idiolect silo add hospital-4 --keys keys
    """
    others = idiolect.silo_add(silos, keys=keys, days=days)
    _tell_silos(silos, keys)
    for name in silos:
        _tell_others(name, keys, "coordinator", *others)


def renew(
    silos: Annotated[
        list[str],
        typer.Argument(metavar="NAME...", help="silos; or `coordinator`, for the server's certificate"),
    ],
    keys: AllKeysOption = "keys",
    days: DaysOption = DAYS,
) -> None:
    """Make new keys for silos, or a new certificate for the server; the keys before are revoked.

    Example: idiolect silo renew hospital-2 --keys keys
    """
    new_authority = idiolect.silo_renew(silos, keys=keys, days=days)
    _tell_silos([name for name in silos if name != "coordinator"], keys)
    for name in silos:
        if name != "coordinator":
            _tell_others(name, keys, "coordinator", "every other silo")
    if "coordinator" in silos:
        typer.echo(f"coordinator: copy {keys}/coordinator/server.pem; it holds from the next `serve` on")
    if new_authority:
        typer.echo(f"everybody: copy {keys}/coordinator/ca.pem too (no secret), before the old one ends")


def revoke(
    silos: SilosArgument,
    keys: Annotated[str, typer.Option(help="the folder of `silo init`, or one party's own")] = "keys",
) -> None:
    """Take silos' keys back: `serve` refuses them at once, also in the middle of a run.

    Example, on the coordinator's machine: idiolect silo revoke hospital-2 --keys keys/coordinator
    """
    idiolect.silo_revoke(silos, keys=keys)
    typer.echo(f"{', '.join(silos)}: revoked in {keys}; each party that has folders elsewhere runs there")
    typer.echo(f"  idiolect silo revoke {' '.join(silos)} --keys FOLDER")
    typer.echo("the coordinator refuses from then on; silos accept no secure sum with it")


def keys(
    keys: Annotated[str, typer.Option(help="the folder of `silo init`, or one party's own")] = "keys",
    json: JsonOption = False,
) -> None:
    """Show whose keys and certificates there are, until when, and which are revoked.

    Example: idiolect silo keys --keys keys/coordinator
    """
    entries = idiolect.silo_keys(keys=keys)
    if json:
        print_json([{**entry._asdict(), "until": entry.until and str(entry.until)} for entry in entries])
        return
    rows = [[e.who, e.what, str(e.until or "no end"), e.state, e.mark] for e in entries]
    print_table(f"keys in {keys}", ["who", "what", "until", "state", "key"], rows)


def _tell_silos(silos: list[str], keys: str) -> None:
    for name in silos:
        typer.echo(f"{name}: gets the folder {keys}/{name} (send it safely, to nobody else)")


def _tell_others(name: str, keys: str, *readers: str) -> None:
    """The public key is no secret, but it must be the right one."""
    typer.echo(
        f"{', '.join(readers)}: copy {keys}/coordinator/silos/{name}.pub to the folder silos of your keys; "
        "where that is in this folder it is done"
    )
