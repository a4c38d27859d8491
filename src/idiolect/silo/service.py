"""A silo's half: it answers what the coordinator asks, from its own table and its own state.

| asked     | answered                                                                              |
|-----------|---------------------------------------------------------------------------------------|
| name      | its name, for trials without keys                                                     |
| summary   | sums over its table, if it shares them and the schema is to be found together         |
| hello     | how many rows it has, and whether it has a state of this run already                  |
| work      | the upload of one exchange; the new state stays here                                  |
| evaluate  | its metrics, if it shares them; its models stay here                                  |

Whatever is outside of its limits is refused in one sentence, which the coordinator logs.
"""

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from idiolect.core.fixed import fingerprint
from idiolect.errors import UserError
from idiolect.silo.engagement import Engagement, echo
from idiolect.silo.limits import Limits
from idiolect.silo.schema import Search
from idiolect.silo.table_summary import summarise
from idiolect.silo.vault import RunVault
from idiolect.silo.wire import Packet, pack, unpack

log = logging.getLogger(__name__)


class Silo:
    """Answers requests; a run is taken up when it is first asked for."""

    def __init__(
        self,
        name: str,
        table: pd.DataFrame,
        folder: Path,
        limits: Limits = Limits(),  # noqa: B008  (frozen)
        *,
        ignore: Sequence[str] = (),
        shares_metrics: bool = True,
        shares_summaries: bool = True,
    ) -> None:
        self.name = name
        self.table = table.drop(columns=list(ignore))
        self.folder = folder
        self.limits = limits
        self.shares_metrics = shares_metrics
        self.shares_summaries = shares_summaries
        self._engagements: dict[str, Engagement] = {}

    def answer(self, message: bytes) -> bytes:
        """The reply to a request; a refusal is a reply too."""
        try:
            return self._answer(unpack(message, self.limits.most_bytes, self.limits.modules))
        except UserError as error:
            sentence = " ".join(str(error).split())
            log.warning("refused: %s", sentence)
        except Exception as error:
            # Whatever a message makes go wrong, the silo stays; what it was is in its own log.
            sentence = f"the message made {type(error).__name__}"
            log.exception("refused: %s", sentence)
        return pack({"refused": sentence})

    def _answer(self, packet: Packet) -> bytes:
        header = packet.header
        match header.get("ask"):
            case "name":
                return pack({"name": self.name})
            case "summary":
                return self._summary(header)
            case "hello":
                return self._hello(packet)
            case "work":
                return self._engagement(header["run"]).work(packet)
            case "evaluate":
                return self._engagement(header["run"]).evaluate(packet, self.shares_metrics)
            case other:
                raise UserError(
                    f"a message asks for {other!r}; name, summary, hello, work and evaluate are known"
                )

    def _summary(self, header: dict[str, Any]) -> bytes:
        """Tell what a schema is found from, or say why not."""
        self._require_own_name(header)
        if not self.shares_summaries:
            raise UserError(
                "this silo shares no summaries of its table (--no-share-summaries); write the schema's "
                "columns into the coordinator's configuration"
            )
        summary = summarise(self.table, self.name, Search.from_plain(header))
        log.info("told a summary of %d columns for run %s", len(summary.columns), header["run"])
        return pack({**echo(header), "summary": summary.plain()})

    def _hello(self, packet: Packet) -> bytes:
        """Agree on a run, or say why not."""
        header, weights = packet.header, packet.trees.get("weights", {})
        self._require_own_name(header)
        agreement = {key: header[key] for key in ("name", "number", "clients", "config", "schema")}
        if weights:
            agreement["weights"] = fingerprint(weights)
        vault = self._vault(header["run"])
        # What is wrong with it is said before anything is kept.
        engagement = Engagement(agreement, self.table, vault, self.limits, weights)
        vault.agree(agreement, weights)
        self._engagements[header["run"]] = engagement
        rows = engagement.rows
        log.info(
            "joined run %s: %s",
            header["run"],
            ", ".join(f"{count} {part} rows" for part, count in rows.items()),
        )
        return pack({**echo(header), "rows": rows, "known": vault.latest() is not None})

    def _require_own_name(self, header: dict[str, Any]) -> None:
        if header["name"] != self.name:
            raise UserError(f"this silo is {self.name!r}, but its key is registered for {header['name']!r}")

    def _engagement(self, run: str) -> Engagement:
        if run not in self._engagements:
            vault = self._vault(run)
            agreement = vault.agreement
            if agreement is None:
                raise UserError(f"the run {run!r} was never agreed with this silo")
            self._engagements[run] = Engagement(agreement, self.table, vault, self.limits, vault.weights)
        return self._engagements[run]

    def _vault(self, run: str) -> RunVault:
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", run):
            raise UserError(f"{run!r} is not the name of a run")
        return RunVault(self.folder / run, self.limits.modules)
