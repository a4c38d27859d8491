"""What a coordinator is told (a YAML file), and the folder in which its run is kept.

serve.json                  settings, schema, the run's name, rows of each silo
schema.json                 the schema that the silos found together, if they did; for later runs
checkpoint.safetensors      the server after the last round
metrics.parquet             what silos shared: round, client, kind, part, metric, value
rounds.csv                  round, bits and bytes down and up, seconds of each phase
status.json                 what the silos did last, and warnings
report.html                 the same for people, if the extra `report` is installed
finished                    written last
log.txt                     what happened when
"""

import dataclasses
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from idiolect.core.exchange import ClientState, ServerState
from idiolect.errors import UserError
from idiolect.evaluation.metrics import all_named
from idiolect.runs.config import RunConfig, resolve
from idiolect.runs.settings import read_settings
from idiolect.silo.limits import codec_names, modules_of
from idiolect.silo.requests import Patience
from idiolect.silo.schema import Schema, Search, read_schema, schema_from_plain
from idiolect.silo.status import PHASES, RoundRecord, SiloStatus, Status, Warned
from idiolect.silo.wire import pack, unpack
from idiolect.store.files import read_json, read_parquet, write_bytes, write_json, write_parquet
from idiolect.strict_json import nan_for_null

FORMAT = "idiolect-serve-1"
NOT_SINCE_RESTART = "not heard since the restart"
_ROUND_NUMBERS = ("round", "down_bits", "up_bits", "down_bytes", "up_bytes")
_OWN = ("silos", "schema", "minimum_replies", "answer_seconds", "patience_seconds", "most_megabytes")
# What decides the numbers at a silo; everything else stays with the coordinator.
_SHARED = ("method", "codec", "model", "rounds", "seed", "batch_size", "weight_decay", "dtype")


@dataclass(frozen=True)
class ServeSettings:
    """A configuration of `idiolect run`, with silos and a schema in place of data."""

    config: RunConfig
    silos: tuple[str, ...]
    schema: Schema | Search  # a search until the silos have found a schema together
    minimum_replies: int | None = None  # None: all who are asked
    patience: Patience = field(default_factory=Patience)

    @property
    def agreed_schema(self) -> Schema:
        """The schema, when it has been given or found."""
        assert isinstance(self.schema, Schema), "found before silos are greeted"
        return self.schema

    @property
    def modules(self) -> frozenset[str]:
        """The modules of a method and codecs of one's own, whose classes messages may name."""
        codec = self.config.codec
        return modules_of([self.config.method["name"]], codec_names({"up": codec.up, "down": codec.down}))

    @property
    def main_metric(self) -> str:
        """The metric that models are shown by."""
        return self.config.evaluation.measures(self.agreed_schema.task).main.name

    def minimum(self, asked: int) -> int:
        """How many usable replies an exchange needs."""
        return asked if self.minimum_replies is None else min(asked, self.minimum_replies)

    def shared_config(self) -> dict[str, Any]:
        """The part of the configuration that silos agree to."""
        plain = self.config.plain()
        metrics = all_named(self.config.evaluation.metrics, self.config.evaluation.metric)
        return {key: plain[key] for key in _SHARED} | {"metrics": list(metrics)}


def read_serve_settings(arguments: Sequence[str], folder: Path) -> ServeSettings:
    """From a YAML file and overrides; paths in it are relative to `folder`."""
    return serve_settings(read_settings(list(arguments)), folder)


def serve_settings(settings: Mapping[str, Any], folder: Path) -> ServeSettings:
    """Check settings and fill in every default."""
    own = {key: settings[key] for key in _OWN if key in settings}
    rest = {key: value for key, value in settings.items() if key not in _OWN}
    if "data" in rest:
        raise UserError("data is not a setting of `idiolect serve`: each silo gives its own with --data")
    silos = own.get("silos")
    if (
        not isinstance(silos, list | tuple)
        or len({str(name) for name in silos}) < 2
        or len(set(silos)) < len(silos)
    ):
        raise UserError(f"silos={silos} is not possible: give two or more different names, as [a, b]")
    if "schema" not in own:
        raise UserError(
            "schema is missing: columns, target and classes, or the target only, or the path of a JSON file"
        )
    config = resolve({**rest, "data": {"name": "silos"}})
    minimum = own.get("minimum_replies")
    if minimum is not None and not (isinstance(minimum, int) and 1 <= minimum <= len(silos)):
        raise UserError(f"minimum_replies={minimum} is not possible: it must be from 1 to {len(silos)}")
    patience = Patience(
        answer_seconds=float(own.get("answer_seconds", Patience.answer_seconds)),
        total_seconds=float(own.get("patience_seconds", Patience.total_seconds)),
        megabytes=float(own.get("most_megabytes", Patience.megabytes)),
    )
    schema = read_schema(own["schema"], folder, config.seed)
    return ServeSettings(config, tuple(str(name) for name in silos), schema, minimum, patience)


class ServeFolder:
    """A coordinator's run on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not (path / "serve.json").is_file():
            raise UserError(
                f"{str(path)!r} is not the folder of an `idiolect serve` run: it has no serve.json"
            )
        content = read_json(path / "serve.json")
        if content.get("format") != FORMAT:
            raise UserError(f"{str(path)!r} is not of the format {FORMAT}")
        self.run_name: str = content["run"]
        self._content = content
        settings = {**content["settings"]}
        schema = schema_from_plain(content["schema"])
        self.settings = ServeSettings(
            resolve({**settings["config"], "data": {"name": "silos"}}),
            tuple(settings["silos"]),
            schema,
            settings["minimum_replies"],
            Patience(**settings["patience"]),
        )

    @classmethod
    def create(cls, path: Path, settings: ServeSettings) -> "ServeFolder":
        """A new run with a name of its own, under which silos keep their state."""
        if path.exists() and any(path.iterdir()):
            raise UserError(
                f"{str(path)!r} exists; go on with `idiolect serve --resume {path}` or choose another --out"
            )
        path.mkdir(parents=True, exist_ok=True)
        config = settings.config.plain()
        del config["data"]
        content = {
            "format": FORMAT,
            "run": f"{settings.config.method_name}-{secrets.token_hex(4)}",
            "settings": {
                "config": config,
                "silos": list(settings.silos),
                "minimum_replies": settings.minimum_replies,
                "patience": vars(settings.patience),
            },
            "schema": settings.schema.plain(),
            "rows": None,
        }
        write_json(path / "serve.json", content)
        return cls(path)

    @property
    def finished(self) -> bool:
        """Whether all rounds were played."""
        return (self.path / "finished").is_file()

    def agree(self, schema: Schema) -> None:
        """Keep the schema that the silos found together."""
        self.settings = dataclasses.replace(self.settings, schema=schema)
        self._content["schema"] = schema.plain()
        write_bytes(self.path / "schema.json", schema.preprocessing.to_json().encode())
        write_json(self.path / "serve.json", self._content)

    def remember_rows(self, rows: Mapping[str, int]) -> None:
        """Keep the silos' sizes: weights and batches depend on them, so they must stay."""
        before = self._content["rows"]
        if before is not None and before != dict(rows):
            changed = [
                f"{name} ({before[name]} before, {rows[name]} now)"
                for name in rows
                if rows[name] != before[name]
            ]
            raise UserError(
                f"training rows changed since the run began: {', '.join(changed)}; start a new run"
            )
        self._content["rows"] = dict(rows)
        write_json(self.path / "serve.json", self._content)

    def save(self, round_number: int, server: ServerState, pending: Mapping[int, ClientState]) -> None:
        """Save the server after a round."""
        trees = {"server": server, "pending": {str(number): state for number, state in pending.items()}}
        write_bytes(self.path / "checkpoint.safetensors", pack({"round": round_number}, trees))

    def checkpoint(self) -> tuple[int, ServerState, dict[int, ClientState]] | None:
        """What was saved last."""
        path = self.path / "checkpoint.safetensors"
        if not path.is_file():
            return None
        packet = unpack(path.read_bytes(), modules=self.settings.modules)
        pending = {int(number): state for number, state in packet.trees["pending"].items()}
        return int(packet.header["round"]), packet.trees["server"], pending

    def metrics(self, up_to: int) -> list[pd.DataFrame]:
        """What was evaluated up to a round."""
        path = self.path / "metrics.parquet"
        if not path.is_file():
            return []
        table = read_parquet(path)
        return [table[table["round"] <= up_to]]

    def write_metrics(self, metrics: Sequence[pd.DataFrame]) -> None:
        """Keep all metrics."""
        write_parquet(self.path / "metrics.parquet", pd.concat(list(metrics), ignore_index=True))

    def rounds(self) -> list[RoundRecord]:
        """What each round took."""
        path = self.path / "rounds.csv"
        if not path.is_file():
            return []
        return [
            RoundRecord(
                **{name: int(row[name]) for name in _ROUND_NUMBERS},
                seconds={phase: float(row[f"{phase}_seconds"]) for phase in PHASES},
            )
            for row in pd.read_csv(path).to_dict(orient="records")
        ]

    def write_rounds(self, records: Sequence[RoundRecord]) -> None:
        """Keep what all rounds took."""
        rows = [
            {name: getattr(record, name) for name in _ROUND_NUMBERS}
            | {f"{phase}_seconds": round(record.seconds[phase], 4) for phase in PHASES}
            for record in records
        ]
        write_bytes(self.path / "rounds.csv", pd.DataFrame(rows).to_csv(index=False).encode())

    def last_known(self) -> tuple[dict[str, SiloStatus], list[Warned], str]:
        """The silos, the last warnings and the metric, as of when the status was last written."""
        path = self.path / "status.json"
        if not path.is_file():
            return {}, [], ""
        content = read_json(path)
        silos = [
            SiloStatus(**silo | {"metrics": nan_for_null(silo["metrics"]), "trouble": NOT_SINCE_RESTART})
            for silo in content["silos"]
        ]
        warnings = [Warned(*warned) for warned in content["warnings"]]
        return {silo.name: silo for silo in silos}, warnings, content["metric"]

    def write_status(self, status: Status) -> None:
        """Keep what is known of the silos."""
        plain = dataclasses.asdict(status)
        del plain["history"]  # rounds.csv has it
        write_json(self.path / "status.json", {"done": status.done, **plain})

    def finish(self) -> None:
        """Mark the run as finished."""
        write_bytes(self.path / "finished", b"")
