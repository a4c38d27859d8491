"""A deployment's two ends, and the keys that they know each other by: `serve`, `join`, `silo_init`."""

import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idiolect.data.preprocessing import require_column
from idiolect.data.reading import Reading, read_file
from idiolect.errors import UserError
from idiolect.runs.folder import RunFolder
from idiolect.runs.lock import alone_in, creating_in
from idiolect.runs.settings import Source, read_settings
from idiolect.silo.audit import Audit, read_audit
from idiolect.silo.coordinator import coordinate
from idiolect.silo.history import go_back
from idiolect.silo.keys import check_names, init_keys, read_credentials, read_known_keys
from idiolect.silo.limits import Limits
from idiolect.silo.live_page import page_view
from idiolect.silo.monitor import View
from idiolect.silo.offline import find_run
from idiolect.silo.plain_text import OneLineFormatter
from idiolect.silo.serve_settings import serve_settings
from idiolect.silo.served_run import ServedRun
from idiolect.silo.service import Silo

if TYPE_CHECKING:
    from idiolect.secure.signing import KnownKeys

log = logging.getLogger(__name__)

LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "[::1]")
NOWHERE: AbstractContextManager[Sequence[View]] = nullcontext(())


def silo_init(silos: Sequence[str], *, host: str, out: str | Path = "keys") -> Path:
    """Make a certificate authority, the server's certificate and a key for each silo.

    host: how silos reach the coordinator: a host name or an address.
    """
    init_keys(Path(out), host, silos)
    return Path(out)


def silo_audit(folder: str | Path, *, refused: bool = False) -> Audit:
    """Who asked what, and what was answered: in a silo's state folder, or in that of a served run.

    refused: only what was refused or not answered.
    """
    entries, broken = read_audit(Path(folder))
    return Audit([entry for entry in entries if not refused or entry["outcome"] != "answered"], broken)


def silo_back(*, state: str | Path, to: int) -> int:
    """Let a silo's run go back to the state after round `to`; how many exchanges are forgotten by it."""
    return find_run(Path(state)).go_back(to)


def serve(
    *sources: Source,
    keys: str | Path | None = None,
    listen: str = "0.0.0.0:9092",
    out: str | Path = "runs/served",
    resume: str | Path | None = None,
    from_round: int | None = None,
    insecure: bool = False,
    views: AbstractContextManager[Sequence[View]] = NOWHERE,
    **settings: Any,
) -> RunFolder:
    """Coordinate a run between silos, who `join`, until it is finished; settings are given as to `run`.

    keys: the coordinator's folder from `silo_init`.
    listen: the address that silos reach.
    resume: continue the run in this folder, in place of settings.
    from_round: with `resume`, go back to this earlier round first; silos have to agree (`silo_back`).
    insecure: no TLS, no keys; on loopback only.
    views: where the run shows itself, beside its page; entered when it begins.
    """
    if resume is not None and (sources or settings):
        raise UserError("--resume takes the settings of the run; leave out the file and settings")
    if from_round is not None and resume is None:
        raise UserError("--from needs --resume: the run that is to go back")
    chosen_keys = _chosen_keys(keys, insecure, listen)
    if resume is not None:
        run = ServedRun(Path(resume))
        if from_round is not None:
            with alone_in(run.path):
                go_back(run, from_round)
    elif sources or settings:
        files = [Path(s) for s in sources if not isinstance(s, Mapping) and "=" not in str(s)]
        base = files[-1].parent if files else Path()
        chosen = serve_settings(read_settings([*sources, settings]), base)
        with creating_in(Path(out).parent):
            run = ServedRun.create(Path(out), chosen)
    else:
        raise UserError("give a YAML file with silos, schema and method, or --resume RUN")
    if run.folder.finished:
        return run.folder
    _require_flower()
    known = _known_keys(run, chosen_keys)
    from idiolect.silo.superlink import flower_link

    with (
        alone_in(run.path),
        _log_in(run.path),
        views as shown,
        _page(run) as page,
        flower_link(
            run.settings.silos,
            listen,
            chosen_keys,
            run.path / "flower",
            int(run.settings.patience.megabytes * 2**20),
        ) as link,
    ):
        return coordinate(run, link, [*page, *shown], known)


def join(
    *,
    server: str,
    data: str | Path,
    name: str,
    keys: str | Path | None = None,
    state: str | Path = "silo-state",
    ignore: Sequence[str] = (),
    separator: str = "auto",
    decimal: str = "auto",
    encoding: str = "auto",
    missing_values: Sequence[str] = ("?",),
    methods: Sequence[str] = (),
    allow_method: Sequence[str] = (),
    allow_model: Sequence[str] = (),
    allow_codec: Sequence[str] = (),
    allow_metric: Sequence[str] = (),
    keep_rounds: int = 2,
    max_rounds: int = 1000,
    max_steps: int = 10_000,
    max_megabytes: float = 512.0,
    max_runs: int = 100,
    min_batch: int = 4,
    min_metric_rows: int = 10,
    metric_digits: int = 3,
    share_metrics: bool = True,
    share_summaries: bool = True,
    require_secure: bool = False,
    insecure: bool = False,
) -> None:
    """Take part in a coordinator's runs with your own table, until interrupted.

    server: the coordinator, as host:port.
    data: your table, CSV or Parquet; it stays here.
    name: yours in the coordinator's list.
    keys: your folder from `silo_init`.
    state: where your models and state are kept.
    ignore: columns to leave out.
    keep_rounds: of how many rounds your state is kept: as far as you can go back.
    separator, decimal, encoding, missing_values: how the file is written, where that is not to be recognised.
    methods: those that you admit; all by default.
    allow_method, allow_model, allow_codec, allow_metric: what of your own installation may be used, as
        package.module:Name.
    max_rounds, max_steps, max_megabytes, max_runs: most rounds, local steps in an exchange, largest message,
        and most runs that you admit.
    min_batch: fewest rows in a gradient that you admit.
    min_metric_rows, metric_digits: metrics are told of so many rows or more, with so many significant digits.
    share_metrics: tell the coordinator how good your models are.
    share_summaries: tell means, spreads and categories where columns are to be agreed on.
    require_secure: take part in runs with secure sums only.
    insecure: no TLS, no keys; on loopback only.
    """
    check_names([name])
    chosen_keys = _chosen_keys(keys, insecure, server)
    if require_secure and chosen_keys is None:
        raise UserError("--require-secure needs --keys: silos know each other by them")
    read = read_file(data, Reading(separator, decimal, encoding, tuple(missing_values), asked_as="--"))
    table = read.frame
    for column in ignore:
        require_column(table, column, "column to ignore")
    read.require_clear([name for name in table.columns if name not in ignore])
    limits = Limits(
        methods=tuple(methods),
        own_methods=tuple(allow_method),
        own_models=tuple(allow_model),
        own_codecs=tuple(allow_codec),
        own_metrics=tuple(allow_metric),
        rounds=max_rounds,
        steps=max_steps,
        megabytes=max_megabytes,
        runs=max_runs,
        batch=min_batch,
        metric_rows=min_metric_rows,
        metric_digits=metric_digits,
    )
    limits.check()
    folder = Path(state) / name
    _require_flower()
    silo = Silo(
        name,
        table,
        folder,
        limits,
        ignore=tuple(ignore),
        keep_rounds=keep_rounds,
        shares_metrics=share_metrics,
        shares_summaries=share_summaries,
        credentials=None if chosen_keys is None else read_credentials(chosen_keys, name),
        requires_secure=require_secure,
    )
    from idiolect.silo.supernode import run_silo

    with private_files(folder), _log_in(folder):
        for note in read.notes:
            log.info("data: %s", note)
        run_silo(silo, server, chosen_keys, folder / "flower")


def _chosen_keys(keys: str | Path | None, insecure: bool, address: str) -> Path | None:
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


def _known_keys(run: ServedRun, keys: Path | None) -> "KnownKeys | None":
    """The silos' public keys, where sums are secure."""
    if run.settings.secure is None:
        return None
    if keys is None:
        raise UserError("secure=true needs the silos' keys: serve with --keys, not with --insecure")
    return read_known_keys(keys)


def _require_flower() -> None:
    if find_spec("flwr") is None:
        raise UserError("silos need Flower 1.33.0: pip install 'idiolect[flower]'")


@contextmanager
def _page(run: ServedRun) -> Iterator[list[View]]:
    """The run's own page, where it can be written."""
    page = page_view(run)
    with ExitStack() as stack:
        if page is not None:
            stack.enter_context(page.kept_up_to_date())
        yield [] if page is None else [page]


@contextmanager
def private_files(folder: Path) -> Iterator[None]:
    """A folder for its owner only; what is written in the block, by children too, nobody else can read."""
    before = os.umask(0o077)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in (folder, *folder.rglob("*")):  # of earlier versions
            path.chmod(0o700 if path.is_dir() else 0o600)
        yield
    finally:
        os.umask(before)


@contextmanager
def _log_in(folder: Path) -> Iterator[None]:
    """Our lines in a file of the folder; Flower's own stay in its files."""
    handler = logging.FileHandler(folder / "log.txt", encoding="utf-8")
    form = OneLineFormatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S")
    form.converter = time.gmtime  # as in every run's log
    handler.setFormatter(form)
    logger = logging.getLogger("idiolect")
    logger.setLevel(logging.INFO)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()
