"""A deployment's two ends, and the keys that they know each other by: `serve`, `join`, `silo_init`."""

import logging
import re
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
from idiolect.silo.audit import Audit, AuditLog, read_audit
from idiolect.silo.certificates import DAYS
from idiolect.silo.coordinator import coordinate
from idiolect.silo.health import NOT_YET, Pulse
from idiolect.silo.history import go_back
from idiolect.silo.http_proxy import keep_loopback_direct
from idiolect.silo.key_cycle import (
    KeyEntry,
    add_silos,
    listed_keys,
    renew_keys,
    require_good_certificates,
    revoke_keys,
    why_shut_out,
)
from idiolect.silo.keys import (
    check_names,
    init_keys,
    private_files_only,
    read_credentials,
    read_known_keys,
    require_own_folder,
)
from idiolect.silo.limits import Limits
from idiolect.silo.live_page import page_view
from idiolect.silo.monitor import PulseView, View
from idiolect.silo.offline import find_run
from idiolect.silo.plain_text import OneLineFormatter
from idiolect.silo.privacy.demands import USUAL_DELTA, Demands
from idiolect.silo.privacy.ledger import Ledger, Unit
from idiolect.silo.privacy.statement import Statement, statement_of
from idiolect.silo.serve_settings import serve_settings
from idiolect.silo.served_run import ServedRun
from idiolect.silo.service import Silo

if TYPE_CHECKING:
    from idiolect.secure.signing import KnownKeys

log = logging.getLogger(__name__)

LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "[::1]")
NOWHERE: AbstractContextManager[Sequence[View]] = nullcontext(())


def silo_init(silos: Sequence[str], *, host: str, out: str | Path = "keys", days: int = DAYS) -> Path:
    """Make a certificate authority, the server's certificate and a key for each silo.

    host: how silos reach the coordinator: a host name or an address.
    days: for how long they are good; the authority for ten years or more.
    """
    init_keys(Path(out), host, silos, days)
    return Path(out)


def silo_add(silos: Sequence[str], *, keys: str | Path = "keys", days: int = DAYS) -> list[str]:
    """Make folders with keys for further silos of a federation; the silos that were there before.

    keys: the folder that `silo_init` wrote.
    """
    return add_silos(Path(keys), silos, days)


def silo_renew(silos: Sequence[str], *, keys: str | Path = "keys", days: int = DAYS) -> bool:
    """Make new keys for silos, or for `coordinator` a new certificate; whether silos need a new ca.pem.

    keys: the folder that `silo_init` wrote.
    """
    return renew_keys(Path(keys), silos, days)


def silo_revoke(silos: Sequence[str], *, keys: str | Path = "keys") -> None:
    """Take silos' keys back; a coordinator whose folder it is refuses them at once.

    keys: the folder that `silo_init` wrote, or that of one party.
    """
    revoke_keys(Path(keys), silos)


def silo_keys(*, keys: str | Path = "keys") -> list[KeyEntry]:
    """Whose keys and certificates there are, until when, and which are revoked.

    keys: the folder that `silo_init` wrote, or that of one party.
    """
    return listed_keys(Path(keys))


def silo_audit(folder: str | Path, *, refused: bool = False) -> Audit:
    """Who asked what, and what was answered: in a silo's state folder, or in that of a served run.

    refused: only what was refused or not answered.
    """
    entries, broken = read_audit(Path(folder))
    return Audit([entry for entry in entries if not refused or entry["outcome"] != "answered"], broken)


def silo_ledger(state: str | Path, *, delta: float = USUAL_DELTA) -> Statement:
    """What a silo has spent at some δ, by its own count: in each run, and in all of them together."""
    return statement_of(Ledger(Path(state)), delta)


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
    if chosen_keys is not None:
        _require_keys(run, chosen_keys)
    known = _known_keys(run, chosen_keys)
    audit = AuditLog(run.path)
    from idiolect.silo.superlink import flower_link

    with (
        alone_in(run.path),
        _log_in(run.path),
        views as shown,
        _page(run) as page,
        Pulse(run.path) as pulse,
        flower_link(
            run.settings.silos,
            listen,
            chosen_keys,
            run.path / "flower",
            int(run.settings.patience.megabytes * 2**20),
            audit,
        ) as link,
    ):
        return coordinate(run, link, [*page, *shown, PulseView(pulse)], known, audit)


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
    min_sum: int = 2,
    share_metrics: bool | None = None,
    share_summaries: bool | None = None,
    require_secure: bool = False,
    require_private: Unit | None = None,
    max_epsilon: float | None = None,
    delta: float = USUAL_DELTA,
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
    min_batch: fewest rows in a gradient, or in a sum over a class, that you admit.
    min_metric_rows, metric_digits: metrics are told of so many rows or more, with so many significant digits.
    min_sum: fewest silos that a secure sum is over.
    share_metrics: tell the coordinator how good your models are; None: unless you demand privacy.
    share_summaries: tell means, spreads and categories where columns are to be agreed on; None: as above.
    require_secure: take part in runs with secure sums only.
    require_private: take part only in runs that hide each row, or the silo as a whole.
    max_epsilon, delta: the most that all runs with this state may cost your rows, or the silo: then you stop.
    insecure: no TLS, no keys; on loopback only.
    """
    check_names([name])
    demands = Demands(require_private, max_epsilon, delta)
    chosen_keys = _chosen_keys(keys, insecure, server)
    if chosen_keys is not None and (reason := why_shut_out(chosen_keys, name)):
        raise UserError(
            f"silo {name!r} cannot join: {reason}, says --keys {chosen_keys}; have another one made with "
            f"`idiolect silo renew {name}`"
        )
    if chosen_keys is not None:
        require_own_folder(chosen_keys, name)
        listed_keys(chosen_keys)  # says if a file is damaged
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
        summed=min_sum,
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
        shares_metrics=not demands.insists if share_metrics is None else share_metrics,
        shares_summaries=not demands.insists if share_summaries is None else share_summaries,
        credentials=None if chosen_keys is None else read_credentials(chosen_keys, name),
        requires_secure=require_secure,
        demands=demands,
    )
    from idiolect.silo.supernode import run_silo

    # Two would not see what the other one spends.
    alone = alone_in(folder, "end it, or choose another --state")
    with private_files(folder), alone, _log_in(folder), Pulse(folder, NOT_YET) as pulse:
        for note in read.notes:
            log.info("data: %s", note)
        run_silo(silo, server, chosen_keys, folder / "flower", pulse)


def _chosen_keys(keys: str | Path | None, insecure: bool, address: str) -> Path | None:
    """The folder of keys; None only where somebody said so, on loopback."""
    host, _, port = address.rpartition(":")
    if not host or not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) < 2**16:
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


def _require_keys(run: ServedRun, keys: Path) -> None:
    """A run begins with good keys of all its silos; once begun it goes on without those that are not."""
    require_good_certificates(keys)
    if run.folder.knows_clients:
        return
    for name in run.settings.silos:
        if reason := why_shut_out(keys, name):
            raise UserError(
                f"silo {name!r} cannot take part: {reason}; leave it out of silos, or have another key made "
                f"with `idiolect silo renew {name}`"
            )


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
    keep_loopback_direct()  # its programs are here too


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
    with private_files_only():
        folder.mkdir(parents=True, exist_ok=True)
        for path in (folder, *folder.rglob("*")):  # of earlier versions
            if path == folder or not path.is_symlink():  # what a link leads to is somebody else's
                path.chmod(0o700 if path.is_dir() else 0o600)
        yield


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
