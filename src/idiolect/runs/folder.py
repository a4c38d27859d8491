"""A run on disk.

    run.json            what was asked for, versions, notes, fingerprints of the data (null: at silos) and of
                        the file that the model's first weights are from, if any
    config.yaml         the whole configuration; `idiolect run config.yaml` repeats the run
    clients.parquet     client, train, validation, test: rows of each client
    metrics.parquet     round, client, kind, part, metric, value
    rounds.parquet      round, down_bits, up_bits, brief_bits
    traffic.parquet     round, client, direction (down, up, brief), part, bits: by the messages' named parts
    diagnostics.parquet round, name, index, value: what the method tells about itself
    timing.parquet      round, seconds: of training since the run began; measured, so never twice the same
    privacy.parquet     round, client, gradients, releases, epsilon: what a private run spent (`privacy.py`)
    newcomers.parquet   what the run gives to clients that were left out of it, if any (see `newcomers.py`)
    predictions.parquet what the reported models say of each test row (see `predictions.py`)
    summary.json        the reported numbers; its presence says that the run is finished
    checkpoints/        the last saved state (see `checkpoint.py`)
    chosen/             the states of the rounds that are reported: a model kind may have its own round
    states/             the clients' states where the configuration says store: disk
    doubts/             rewritten steps that were found to be wrong (see `engines/compiler/doubt.py`)
    log.txt             what happened when

A run between silos has more files: see `silo/served_run.py`. Until a run is finished its tables are in parts,
`parts/metrics-000005.parquet` and so on, each written at once; `RunFolder.metrics()` reads either.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd

from idiolect.core.device import find_device
from idiolect.data.federation import Federation, fingerprint
from idiolect.data.preprocessing import Preprocessing
from idiolect.engines.compiler.doubt import Doubt
from idiolect.engines.local_view import stand_in
from idiolect.engines.ways import Way
from idiolect.errors import UserError
from idiolect.evaluation.summary import client_values
from idiolect.models.weights import weights_fingerprint
from idiolect.runs.checkpoint import (
    all_checkpoints,
    checkpoint_of,
    load_checkpoint,
    newest_checkpoint,
    save_checkpoint,
)
from idiolect.runs.config import RunConfig, resolve
from idiolect.runs.newcomers import COLUMNS as NEWCOMER_COLUMNS
from idiolect.runs.provenance import versions
from idiolect.runs.records import TABLES, TableName, join
from idiolect.runs.rounds import Training
from idiolect.runs.run_summary import as_computed
from idiolect.runs.settings import read_settings
from idiolect.runs.setup import load_federation, preparation_of
from idiolect.store.files import (
    clear_write_errors,
    new_folder,
    read_json,
    read_parquet,
    remove_folder,
    remove_leftovers,
    write_bytes,
    write_json,
    write_parquet,
)

FORMAT = "idiolect-run-1"
NEWCOMERS = "newcomers.parquet"
SUMMED_METRICS = "summed_metrics.parquet"
SCHEMA = "schema.json"  # of a run whose data are at silos: how rows become inputs


class RunFolder:
    """Reads and writes one run's folder."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.is_dir():
            raise UserError(f"there is no run folder {str(path)!r}")
        marker = self.path / "run.json"
        if not marker.is_file() or read_json(marker).get("format") != FORMAT:
            raise UserError(f"{str(path)!r} is not a run folder: it has no run.json of the format {FORMAT}")
        self._unsaved: dict[TableName, dict[int, pd.DataFrame]] = {}

    @classmethod
    def create(
        cls,
        path: Path,
        config: RunConfig,
        federation: Federation | None = None,
        *,
        asked: Mapping[str, Any] | None = None,
        notes: Sequence[str] = (),
        further: Mapping[str, Any] | None = None,
        way: Way | None = None,
    ) -> "RunFolder":
        """A new run; the folder must not exist or be empty.

        federation: the data; None, for now, where they are at silos.
        asked: the configuration before anything in it was decided.
        notes: what was decided, besides those on the data.
        further: files of plain data by name.
        way: how clients are computed, where that was to choose.
        """
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise UserError(f"out={str(path)!r} exists and is not empty; choose another folder or remove it")
        with clear_write_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        with new_folder(path) as folder:
            write_bytes(folder / "config.yaml", config.decided().to_yaml().encode())
            (folder / "parts").mkdir()
            if federation is not None:
                write_parquet(folder / "clients.parquet", client_table(federation))
            for name, content in (further or {}).items():
                write_json(folder / name, content)
            digest = None if federation is None else fingerprint(federation)
            told = [*(() if federation is None else federation.notes), *notes]
            facts = {"format": FORMAT, "data_sha256": digest, "versions": versions(), "notes": told}
            if weights := preparation_of(config).weights:
                facts["weights_sha256"] = weights_fingerprint(weights)
            chosen = None if way is None else way.plain()
            write_json(folder / "run.json", {**facts, "asked": asked, "way": chosen})
        created = cls(path)
        for note in told:
            created.log(f"note: {note}")
        return created

    @property
    def way(self) -> Way | None:
        """How clients are computed; None where there was nothing to choose, or it was not kept."""
        kept = self.facts().get("way")
        return None if kept is None else Way(**kept)

    @property
    def config(self) -> RunConfig:
        """What was run."""
        path = self.path / "config.yaml"
        if not path.is_file():
            return _read_config(str(path), ())  # says that it is not there
        # It is asked for again and again, and written anew at most once.
        stamp = path.stat()
        return _read_config(str(path), (stamp.st_ino, stamp.st_mtime_ns, stamp.st_size))

    @property
    def finished(self) -> bool:
        """Whether all rounds were played and everything is written."""
        return (self.path / "summary.json").is_file()

    @property
    def continuation(self) -> str:
        """The command that goes on with the run."""
        return f"idiolect {'serve --resume' if self.config.at_silos else 'resume'} {self.path}"

    def facts(self) -> dict[str, Any]:
        """Versions and the data's fingerprint."""
        facts: dict[str, Any] = read_json(self.path / "run.json")
        return facts

    def require_same_weights(self) -> None:
        """Refuse to go on, or to give models, if the file of the model's first weights is another one now."""
        path = preparation_of(self.config).weights
        if path is not None and weights_fingerprint(path) != self.facts().get("weights_sha256"):
            raise UserError(
                f"model.weights={path!r} changed since the run {str(self.path)!r} began; "
                "put the file back, or start a new run in another folder"
            )

    @property
    def notes(self) -> list[str]:
        """What was found and done while the data were read."""
        return list(self.facts().get("notes", ()))

    def federation(self) -> Federation:
        """The data; of those that are at silos, names and sizes, and how a table's rows are read."""
        if not self.config.at_silos:
            return load_federation(self.config)
        return stand_in(
            Preprocessing.from_json((self.path / SCHEMA).read_text(encoding="utf-8")), self.clients()
        )

    def clients(self) -> pd.DataFrame:
        """Rows of each client in each part, indexed by client."""
        return read_parquet(self.path / "clients.parquet").set_index("client")

    @property
    def knows_clients(self) -> bool:
        """Whether it is known already who takes part."""
        return (self.path / "clients.parquet").is_file()

    def keep_clients(self, federation: Federation) -> None:
        """Keep who takes part and with how many rows, once that is known."""
        write_parquet(self.path / "clients.parquet", client_table(federation))

    def metrics(self) -> pd.DataFrame:
        """Every client's metrics in long form."""
        return self._table("metrics")

    def rounds(self) -> pd.DataFrame:
        """Bits of every round."""
        return self._table("rounds")

    def traffic(self) -> pd.DataFrame:
        """Bits of every round, client, direction and named part of the messages."""
        return self._table("traffic")

    def diagnostics(self) -> pd.DataFrame:
        """What the method tells about itself."""
        return self._table("diagnostics")

    def timing(self) -> pd.DataFrame:
        """Seconds of training since the run began, without evaluation and checkpoints; measured."""
        if self.finished and not (self.path / "timing.parquet").is_file():
            return join("timing", [])  # older runs have none
        return self._table("timing")

    def summed_metrics(self) -> pd.DataFrame:
        """Metrics over all rows of all silos, where these told them in secure sums only; else empty."""
        path = self.path / SUMMED_METRICS
        return read_parquet(path) if path.is_file() else pd.DataFrame()

    def privacy(self) -> pd.DataFrame:
        """What a private run has spent, round by round; of others nothing."""
        if self.finished and not (self.path / "privacy.parquet").is_file():
            return join("privacy", [])
        return self._table("privacy")

    def spent_by(self, round_number: int) -> dict[str, float]:
        """ε of each client that took part in a round, after it; while the run is played."""
        path = self.path / "parts" / f"privacy-{round_number:06d}.parquet"
        table = read_parquet(path) if path.is_file() else join("privacy", [])
        return {str(entry.client): float(entry.epsilon) for entry in table.itertuples()}  # type: ignore[arg-type]

    def newcomers(self) -> pd.DataFrame:
        """Metrics of the clients that were left out of training, before and after they got their models."""
        path = self.path / NEWCOMERS
        return read_parquet(path) if path.is_file() else pd.DataFrame(columns=list(NEWCOMER_COLUMNS))

    def keep_newcomers(self, table: pd.DataFrame) -> None:
        """Keep these metrics."""
        write_parquet(self.path / NEWCOMERS, table)

    def summary(self) -> dict[str, Any]:
        """The reported numbers of a finished run."""
        if not self.finished:
            raise UserError(
                f"the run {str(self.path)!r} is not finished: continue it with `{self.continuation}`"
            )
        summary: dict[str, Any] = read_json(self.path / "summary.json")
        told = {"metric_label": summary["metric"], "metric_reason": ""}  # older runs do not say
        return as_computed(told | summary)

    def client_values(self) -> pd.DataFrame:
        """The reported values: a row for each client, a column for each model kind."""
        return client_values(self.metrics(), self.summary())

    def add(self, name: TableName, round_number: int, table: pd.DataFrame) -> None:
        """Keep a part of a table; a part that is there already is replaced.

        A run without states, which starts anew if it is stopped, needs no parts on the disk.
        """
        if not self.config.checkpoint.states:
            self._unsaved.setdefault(name, {})[round_number] = table
            return
        write_parquet(self.path / "parts" / f"{name}-{round_number:06d}.parquet", table)

    def save(self, training: Training) -> None:
        """Save the state."""
        if self.config.checkpoint.states:
            save_checkpoint(training, self.path / "checkpoints")

    def save_chosen(self, training: Training, needed: Collection[int]) -> None:
        """Save the state with the best validation score so far of some kind; only the needed rounds' stay."""
        if self.config.checkpoint.states:
            save_checkpoint(training, self.path / "chosen", needed)

    def keep_doubt(self, doubt: Doubt, round_number: int) -> None:
        """Keep a step that was found to be wrong; the run, also when it is continued, rewrites no others."""
        write_bytes(self.path / "config.yaml", self.config.without_rewriting().to_yaml().encode())
        place = len(list((self.path / "doubts").glob("*")))
        doubt.save(self.path / "doubts" / f"round-{round_number:06d}-{place}")
        self.log(f"round {round_number}: {doubt.sentence}; the run goes on with plain steps")

    def move_to(self, device: str) -> None:
        """Let the run go on on another device, where clients are computed as suits that."""
        config = replace(self.config, device=str(find_device(device)))
        write_bytes(self.path / "config.yaml", config.to_yaml().encode())
        self.keep_way(None)
        self.log(f"goes on on {config.device}")

    def keep_way(self, way: Way | None) -> None:
        """Keep how clients are computed from now on."""
        if way != self.way:
            plain = None if way is None else way.plain()
            write_json(self.path / "run.json", {**self.facts(), "way": plain})

    def restore(self, training: Training) -> None:
        """Put a fresh training into the last saved state, if there is one."""
        remove_leftovers(self.path)
        if (checkpoint := newest_checkpoint(self.path / "checkpoints")) is not None:
            # The chosen states first: a store on disk then knows that it must not overwrite them.
            for chosen in all_checkpoints(self.path / "chosen"):
                load_checkpoint(training, chosen)
            load_checkpoint(training, checkpoint)

    def restore_reported(self, training: Training, kind: str | None = None) -> None:
        """Put a fresh training into the state whose numbers are reported for a kind, or the one judged by."""
        summary = self.summary()
        self.restore_round(training, summary["kinds"][kind or summary["judged_by"]]["round"])

    def restore_round(self, training: Training, number: int) -> None:
        """Put a training into the state of a round that is reported."""
        kept = (checkpoint_of(self.path / place, number) for place in ("chosen", "checkpoints"))
        checkpoint = next((found for found in kept if found is not None), None)
        if checkpoint is None and not self.config.checkpoint.states:
            raise UserError(f"the run {str(self.path)!r} kept no states (checkpoint.states=false)")
        if checkpoint is None:
            raise UserError(
                f"the run {str(self.path)!r} has no checkpoint of round {number}, which is reported: "
                "its folder is damaged, or of a version that kept one state only"
            )
        load_checkpoint(training, checkpoint)

    def finish(self, summary: dict[str, Any]) -> None:
        """Join the parts; the summary, written last, marks the run as finished."""
        for name in TABLES if self.config.privacy is not None else TABLES.keys() - {"privacy"}:
            write_parquet(self.path / f"{name}.parquet", self._table(name))
        write_json(self.path / "summary.json", summary)
        remove_folder(self.path / "parts")

    def log(self, message: str) -> None:
        """Add a line to the log."""
        path = self.path / "log.txt"
        with clear_write_errors(path), path.open("a", encoding="utf-8") as file:
            file.write(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} {message}\n")

    def _table(self, name: TableName) -> pd.DataFrame:
        if self.finished:
            return read_parquet(self.path / f"{name}.parquet")
        if name in self._unsaved:
            return join(name, list(self._unsaved[name].values()))
        files = sorted((self.path / "parts").glob(f"{name}-*.parquet"))
        return join(name, [read_parquet(file) for file in files])


@lru_cache(maxsize=4096)
def _read_config(path: str, version: tuple[int, ...]) -> RunConfig:
    """The configuration in a file, which is read again when there is another version of it."""
    return resolve(read_settings([path]))


def client_table(federation: Federation) -> pd.DataFrame:
    """Rows of each client in each part."""
    return pd.DataFrame(
        {
            "client": list(federation.names),
            "train": federation.train.sizes.numpy(),
            "validation": federation.validation.sizes.numpy(),
            "test": federation.test.sizes.numpy(),
        }
    )
