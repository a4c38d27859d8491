"""`idiolect silo init`."""

from typing import Annotated

import typer

import idiolect

silo = typer.Typer(help="Keys for silos.", no_args_is_help=True, rich_markup_mode=None)


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
