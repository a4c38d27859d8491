"""Commands for silos: `silo init`, `serve`, `join`."""

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from idiolect.errors import UserError

if TYPE_CHECKING:
    from idiolect.silo.monitor import View
    from idiolect.silo.served_run import ServedRun

LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "[::1]")

silo = typer.Typer(help="Keys for silos.", no_args_is_help=True, rich_markup_mode=None)

KeysOption = Annotated[str | None, typer.Option(help="your folder of keys from `idiolect silo init`")]
InsecureOption = Annotated[bool, typer.Option("--insecure", help="no TLS, no keys; on loopback only")]


def register(app: typer.Typer) -> None:
    """Add the commands to an application."""
    app.add_typer(silo, name="silo")
    app.command()(serve)
    app.command()(join)


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
    from idiolect.silo.keys import init_keys

    init_keys(Path(out), host, silos)
    typer.echo(f"coordinator, with the folder {out}/coordinator:")
    typer.echo(f"  idiolect serve my.yaml --keys {out}/coordinator --listen 0.0.0.0:{port}")
    for name in silos:
        typer.echo(f"{name}, with the folder {out}/{name} (send it safely, to nobody else):")
        typer.echo(f"  idiolect join --server {host}:{port} --name {name} --keys {name} --data my.csv")
    typer.echo(f"keep {out}/authority.key off-line: it can make certificates that silos trust")


def serve(
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILE.yaml] KEY=VALUE...", help="what to run; the last wins"),
    ] = None,
    keys: KeysOption = None,
    listen: Annotated[str, typer.Option(help="the address that silos reach")] = "0.0.0.0:9092",
    out: Annotated[str, typer.Option(help="the run's folder")] = "runs/served",
    resume: Annotated[str | None, typer.Option(help="continue the run in this folder")] = None,
    insecure: InsecureOption = False,
) -> None:
    """Coordinate a run between silos; they join with `idiolect join`.

    Example: idiolect serve my.yaml --keys keys/coordinator
    """
    from idiolect.cli.console import INTERRUPTED
    from idiolect.silo.coordinator import coordinate
    from idiolect.silo.processes import end_properly_when_terminated
    from idiolect.silo.serve_settings import read_serve_settings
    from idiolect.silo.served_run import ServedRun

    if resume is not None and settings:
        raise UserError("--resume takes the settings of the run; leave out the file and settings")
    chosen = _chosen_keys(keys, insecure, listen)
    if resume is not None:
        run = ServedRun(Path(resume))
    elif settings:
        files = [Path(entry) for entry in settings if "=" not in entry]
        base = files[-1].parent if files else Path()
        run = ServedRun.create(Path(out), read_serve_settings(settings, base))
    else:
        raise UserError("give a YAML file with silos, schema and method, or --resume RUN")
    if run.folder.finished:
        typer.echo(f"run: {run.path} is finished")
        return
    _require_flower()
    from idiolect.silo.superlink import flower_link

    end_properly_when_terminated()
    try:
        with (
            _views(run) as views,
            flower_link(run.settings.silos, listen, chosen, run.path / "flower") as link,
        ):
            coordinate(run, link, views)
    except KeyboardInterrupt as interrupt:
        typer.echo(f"interrupted; continue with `idiolect serve --resume {run.path}`", err=True)
        raise typer.Exit(INTERRUPTED) from interrupt
    typer.echo(f"run: {run.path}")


def join(
    server: Annotated[str, typer.Option(help="the coordinator, as host:port")],
    data: Annotated[str, typer.Option(help="your table: CSV or Parquet; it stays here")],
    name: Annotated[str, typer.Option(help="your name in the coordinator's list")],
    keys: KeysOption = None,
    state: Annotated[str, typer.Option(help="where your models and state are kept")] = "silo-state",
    ignore: Annotated[str, typer.Option(help="columns to leave out: a,b")] = "",
    methods: Annotated[str, typer.Option(help="methods that you admit: apfl,fedavg; all by default")] = "",
    allow_method: Annotated[
        list[str] | None,
        typer.Option(help="a method of your own installation that may be used: package.module:Class"),
    ] = None,
    allow_model: Annotated[
        list[str] | None,
        typer.Option(help="a model of your own installation that may be used: package.module:factory"),
    ] = None,
    allow_codec: Annotated[
        list[str] | None,
        typer.Option(help="a codec of your own installation that may be used: package.module:Class"),
    ] = None,
    allow_metric: Annotated[
        list[str] | None,
        typer.Option(help="a metric of your own installation that may be used: package.module:function"),
    ] = None,
    max_rounds: Annotated[int, typer.Option(help="most rounds that you admit")] = 1000,
    max_steps: Annotated[int, typer.Option(help="most local steps in an exchange that you admit")] = 10_000,
    max_megabytes: Annotated[float, typer.Option(help="largest message that you admit")] = 512.0,
    share_metrics: Annotated[bool, typer.Option(help="tell the coordinator how good your models are")] = True,
    share_summaries: Annotated[
        bool, typer.Option(help="tell means, spreads and categories where columns are to be agreed on")
    ] = True,
    insecure: InsecureOption = False,
) -> None:
    """Take part in a coordinator's runs with your own table, until interrupted.

    Example: idiolect join --server fl.example.org:9092 --name hospital-3 --keys hospital-3 --data my.csv
    """
    from idiolect.data.preprocessing import require_column
    from idiolect.data.tables import read_table
    from idiolect.silo.keys import check_names
    from idiolect.silo.limits import Limits
    from idiolect.silo.processes import end_properly_when_terminated
    from idiolect.silo.service import Silo

    check_names([name])
    chosen = _chosen_keys(keys, insecure, server)
    table = read_table(data)
    ignored = _listed(ignore)
    for column in ignored:
        require_column(table, column, "column to ignore")
    limits = Limits(
        methods=_listed(methods),
        own_methods=tuple(allow_method or ()),
        own_models=tuple(allow_model or ()),
        own_codecs=tuple(allow_codec or ()),
        own_metrics=tuple(allow_metric or ()),
        rounds=max_rounds,
        steps=max_steps,
        megabytes=max_megabytes,
    )
    limits.check()
    folder = Path(state) / name
    folder.mkdir(parents=True, exist_ok=True)
    silo = Silo(
        name,
        table,
        folder,
        limits,
        ignore=ignored,
        shares_metrics=share_metrics,
        shares_summaries=share_summaries,
    )
    _require_flower()
    _log_to(folder / "log.txt", logging.StreamHandler())
    end_properly_when_terminated()
    from idiolect.silo.supernode import run_silo

    try:
        run_silo(silo, server, chosen, folder / "flower")
    except KeyboardInterrupt:  # the usual end
        typer.echo(f"{name} has left; the same command joins again, where it was")


def _chosen_keys(keys: str | None, insecure: bool, address: str) -> Path | None:
    """The folder of keys; None only where somebody said so, on loopback."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise UserError(f"{address!r} is not an address; give it as host:port, such as fl.example.org:9092")
    if insecure and keys is not None:
        raise UserError("--insecure and --keys exclude each other")
    if insecure and host not in LOOPBACK_HOSTS:
        raise UserError(
            f"--insecure works on loopback only, not on {host}; make keys with `idiolect silo init`"
        )
    if insecure:
        return None
    if keys is None:
        raise UserError("--keys is missing: the folder that `idiolect silo init` made for you")
    return Path(keys)


def _require_flower() -> None:
    if find_spec("flwr") is None:
        raise UserError("silos need Flower 1.33.0: pip install 'idiolect[flower]'")


def _listed(text: str) -> tuple[str, ...]:
    return tuple(entry.strip() for entry in text.split(",") if entry.strip())


@contextmanager
def _views(run: "ServedRun") -> Iterator["list[View]"]:
    """Where the run shows itself: a page, and a picture in place of plain lines where there is a terminal."""
    from rich.console import Console

    from idiolect.silo.live_page import page_view
    from idiolect.silo.terminal import ConsoleHandler, TerminalView

    console, in_place = Console(), sys.stdout.isatty()
    log_file = run.path / "log.txt"
    _log_to(log_file, ConsoleHandler(console) if in_place else logging.StreamHandler())
    page = page_view(run)
    with ExitStack() as stack:
        views: list[View] = []
        if page is not None:
            views.append(page)
            stack.enter_context(page.kept_up_to_date())
        if in_place:
            terminal = TerminalView(console)
            views.append(terminal)
            stack.enter_context(terminal.on_screen())
        yield views


def _log_to(path: Path, screen: logging.Handler) -> None:
    """Our lines to the screen and to a file; Flower's own stay in its files."""
    form = logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S")
    form.converter = time.gmtime  # as in every run's log
    logger = logging.getLogger("idiolect")
    logger.setLevel(logging.INFO)
    for handler in (screen, logging.FileHandler(path, encoding="utf-8")):
        handler.setFormatter(form)
        logger.addHandler(handler)
    logging.getLogger("flwr").setLevel(logging.ERROR)
