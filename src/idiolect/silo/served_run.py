"""What a coordinator keeps in its run's folder besides what every run has (see `runs/folder.py`).

silos.json          the run's name at silos, who they are, for how long to wait, what is known of the schema
schema.json         how a table's rows become inputs, once it is agreed; for later runs and for newcomers
progress.parquet    round, bits of messages, bytes on the wire, seconds of each phase
status.json         what the silos did last, and warnings
report.html         the same for people, if the extra `report` is installed
flower/             what Flower's own programs keep
"""

import dataclasses
import json
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from idiolect.data.federation import Federation
from idiolect.engines.local_view import stand_in
from idiolect.errors import UserError
from idiolect.runs.decisions import Decision
from idiolect.runs.folder import SCHEMA, RunFolder
from idiolect.silo.requests import Patience
from idiolect.silo.schema import Schema, schema_from_plain
from idiolect.silo.secure.agreement import SecureSettings
from idiolect.silo.serve_settings import ServeSettings
from idiolect.silo.status import PHASES, RoundRecord, SiloStatus, Status, Warned
from idiolect.store.files import read_json, read_parquet, write_bytes, write_json, write_parquet
from idiolect.strict_json import nan_for_null

FORMAT = "idiolect-silos-1"
NOT_SINCE_RESTART = "not heard since the restart"
_SILOS, _STATUS, _PROGRESS = "silos.json", "status.json", "progress.parquet"
_NUMBERS = ("round", "down_bits", "up_bits", "down_bytes", "up_bytes")


class ServedRun:
    """A run between silos, as its coordinator keeps it."""

    def __init__(self, path: Path) -> None:
        if not (path / _SILOS).is_file():
            raise UserError(f"{str(path)!r} is not the folder of an `idiolect serve` run: it has no {_SILOS}")
        self.folder = RunFolder(path)
        content = read_json(path / _SILOS)
        if content.get("format") != FORMAT:
            raise UserError(f"{str(path)!r} is not of the format {FORMAT}")
        self._content = content
        self.name: str = content["name"]
        self.settings = ServeSettings(
            self.folder.config,
            tuple(content["silos"]),
            schema_from_plain(content["schema"]),
            content["minimum_replies"],
            Patience(**content["patience"]),
            SecureSettings.read(content.get("secure"), len(content["silos"])),
        )

    @classmethod
    def create(cls, path: Path, settings: ServeSettings) -> "ServedRun":
        """A new run with a name of its own, under which silos keep their state."""
        if path.exists() and any(path.iterdir()):
            raise UserError(
                f"{str(path)!r} exists; go on with `idiolect serve --resume {path}` or choose another --out"
            )
        content = {
            "format": FORMAT,
            "name": f"{settings.config.method_name}-{secrets.token_hex(4)}",
            "silos": list(settings.silos),
            "minimum_replies": settings.minimum_replies,
            "patience": vars(settings.patience),
            "schema": settings.schema.plain(),
            "secure": None if settings.secure is None else settings.secure.plain(),
        }
        further: dict[str, Any] = {_SILOS: content}
        if isinstance(settings.schema, Schema):
            further[SCHEMA] = json.loads(settings.schema.preprocessing.to_json())
        RunFolder.create(path, settings.config, further=further)
        return cls(path)

    @property
    def path(self) -> Path:
        """Where it is kept."""
        return self.folder.path

    def agree(self, schema: Schema) -> None:
        """Keep the schema that the silos found together."""
        self.settings = dataclasses.replace(self.settings, schema=schema)
        self._content["schema"] = schema.plain()
        write_bytes(self.path / SCHEMA, schema.preprocessing.to_json().encode())
        write_json(self.path / _SILOS, self._content)

    def decide(self, decision: Decision) -> None:
        """Keep a configuration in which nothing is open any more, and why."""
        self.settings = dataclasses.replace(self.settings, config=decision.config)
        write_bytes(self.path / "config.yaml", decision.config.to_yaml().encode())
        for note in decision.notes:
            self.folder.log(note)

    def known_rows(self) -> dict[str, int]:
        """The training rows of each silo, where the run has begun."""
        return {name: rows["train"] for name, rows in self._known_clients().items()}

    def federation_of(self, rows: dict[str, dict[str, int]]) -> Federation:
        """What is known of the silos' tables: the rows in each part, of silos that are away as they were."""
        everybody = {**self._known_clients(), **rows}
        clients = pd.DataFrame.from_dict(everybody, orient="index").loc[list(self.settings.silos)]
        federation = stand_in(self.settings.agreed_schema.preprocessing, clients)
        self.folder.keep_clients(federation)
        return federation

    def _known_clients(self) -> dict[str, dict[str, int]]:
        if not self.folder.knows_clients:
            return {}
        table = self.folder.clients()
        parts = ("train", "validation", "test")
        return {str(name): {part: int(table[part][name]) for part in parts} for name in table.index}

    def progress(self) -> list[RoundRecord]:
        """What each round took."""
        if not (self.path / _PROGRESS).is_file():
            return []
        return [
            RoundRecord(
                **{name: int(row[name]) for name in _NUMBERS},
                seconds={phase: float(row[f"{phase}_seconds"]) for phase in PHASES},
            )
            for row in read_parquet(self.path / _PROGRESS).to_dict(orient="records")
        ]

    def write_progress(self, records: Sequence[RoundRecord]) -> None:
        """Keep what all rounds took."""
        rows = [
            {name: getattr(record, name) for name in _NUMBERS}
            | {f"{phase}_seconds": round(record.seconds[phase], 4) for phase in PHASES}
            for record in records
        ]
        write_parquet(self.path / _PROGRESS, pd.DataFrame(rows))

    def last_known(self) -> tuple[dict[str, SiloStatus], list[Warned], str]:
        """The silos, the last warnings and the metric, as of when the status was last written."""
        if not (self.path / _STATUS).is_file():
            return {}, [], ""
        content = read_json(self.path / _STATUS)
        silos = [
            SiloStatus(**silo | {"metrics": nan_for_null(silo["metrics"]), "trouble": NOT_SINCE_RESTART})
            for silo in content["silos"]
        ]
        warnings = [Warned(*warned) for warned in content["warnings"]]
        return {silo.name: silo for silo in silos}, warnings, content["metric"]

    def write_status(self, status: Status) -> None:
        """Keep what is known of the silos."""
        plain = dataclasses.asdict(status)
        del plain["history"]  # it is the progress
        write_json(self.path / _STATUS, {"done": status.done, **plain})
