"""A silo's half: it answers what the coordinator asks, from its own table and its own state.

| asked     | answered                                                                              |
|-----------|---------------------------------------------------------------------------------------|
| name      | its name, for trials without keys                                                     |
| summary   | sums over its table, if it shares them and the schema is to be found together         |
| hello     | how many rows it has, and whether it has a state of this run already                  |
| work      | the upload of one exchange; the new state stays here                                  |
| evaluate  | its metrics, if it shares them; its models stay here                                  |
| sum       | its part in a secure sum of what was uploaded, if that was agreed                     |

Whatever is outside of its limits is refused in one sentence, which the coordinator logs.
"""

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from idiolect.core.fixed import fingerprint
from idiolect.core.tree import Params
from idiolect.errors import UserError
from idiolect.runs.lock import LOCK
from idiolect.silo.audit import AuditLog
from idiolect.silo.budgets import MisfitBudget, SummaryBudget
from idiolect.silo.checks import named_tensors
from idiolect.silo.engagement import Engagement, echo
from idiolect.silo.limits import Limits
from idiolect.silo.plain_text import one_line
from idiolect.silo.privacy.account import Account
from idiolect.silo.privacy.demands import Demands
from idiolect.silo.privacy.ledger import Ledger
from idiolect.silo.schema import Search
from idiolect.silo.secure.agreement import SECURE, Credentials
from idiolect.silo.table_problems import TableProblemsError
from idiolect.silo.table_summary import summarise
from idiolect.silo.vault import RunVault
from idiolect.silo.versions import VERSION, require_same_version
from idiolect.silo.wire import Packet, pack, unpack

OWN_NAMES = ("flower", LOCK)  # in a silo's state folder, beside those of runs

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
        keep_rounds: int = 2,
        shares_metrics: bool = True,
        shares_summaries: bool = True,
        credentials: Credentials | None = None,
        requires_secure: bool = False,
        demands: Demands = Demands(),  # noqa: B008  (frozen)
    ) -> None:
        self.name = name
        self.table = table.drop(columns=list(ignore))
        self.folder = folder
        self.limits = limits
        self.keep_rounds = keep_rounds
        self.shares_metrics = shares_metrics
        self.shares_summaries = shares_summaries
        self.credentials = credentials
        self.requires_secure = requires_secure
        self.demands = demands
        self.ledger = Ledger(folder)
        self.audit = AuditLog(folder)
        self.misfits = MisfitBudget(folder, limits.misfits)
        self._engagements: dict[str, Engagement] = {}

    def answer(self, message: bytes) -> bytes:
        """The reply to a request; a refusal is a reply too."""
        answer = self._answer_or_refusal(message)
        self.audit.add(message, answer)  # before it leaves
        return answer

    def _answer_or_refusal(self, message: bytes) -> bytes:
        try:
            return self._answer(unpack(message, self.limits.most_bytes, self.limits.modules))
        except TableProblemsError as error:
            # What its own people need to know may have values of rows; they stay here.
            self.misfits.spend()
            return self._refused(error, error.told)
        except UserError as error:
            return self._refused(error, str(error))
        except Exception as error:
            # Whatever a message makes go wrong, the silo stays.
            log.debug("what a message made", exc_info=True)
            return self._refused(error, f"the message made {type(error).__name__}")

    def _refused(self, error: Exception, told: str) -> bytes:
        log.warning("refused: %s", one_line(error if isinstance(error, UserError) else f"{told}: {error}"))
        return pack({"refused": one_line(told)})

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
                return self._engagement(header.get("run")).work(packet)
            case "evaluate":
                return self._engagement(header.get("run")).evaluate(packet)
            case "sum":
                return self._engagement(header.get("run")).add_up(packet)
            case other:
                raise UserError(
                    f"a message asks for {other!r}; name, summary, hello, work, evaluate and sum are known"
                )

    def _summary(self, header: dict[str, Any]) -> bytes:
        """Tell what a schema is found from, or say why not."""
        self._require_own_name(header)
        vault = self._vault(header.get("run"))
        if not self.shares_summaries:
            raise UserError(
                "this silo shares no summaries of its table (--no-share-summaries); write the schema's "
                "columns into the coordinator's configuration"
            )
        self.misfits.require_left()
        budget = SummaryBudget(self.folder)
        search = budget.admit(Search.from_plain(header), self.table)
        summary = summarise(self.table, self.name, search, self.limits.values)
        budget.spend(search, self.table)
        log.info("told a summary of %d columns for run %s", len(summary.columns), vault.folder.name)
        return pack({**echo(header), "summary": summary.plain()})

    def _hello(self, packet: Packet) -> bytes:
        """Agree on a run, or say why not."""
        header, weights = packet.header, named_tensors(packet.trees.get("weights", {}))
        self._require_own_name(header)
        require_same_version(header, "this silo", "the coordinator")
        agreement = {key: header.get(key) for key in ("name", "number", "clients", "config", "schema")}
        if weights:
            agreement["weights"] = fingerprint(weights)
        vault = self._vault(header.get("run"))
        if self.requires_secure and not dict(agreement["config"] or {}).get(SECURE):
            raise UserError(
                "this silo takes part in runs with secure sums only (--require-secure); set secure: true"
            )
        vault.require_same_agreement(agreement)
        if vault.agreement is not None:
            agreement = vault.agreement  # to Python 1 is the same as true, and 2 as 2.0
        else:
            self.limits.admit_another_run(len(list(self.folder.glob("*/run.json"))))
            self.misfits.require_left()
        # What is wrong with it is said before anything is kept.
        engagement = self._engage(agreement, vault, weights)
        vault.agree(agreement, weights, engagement.fingerprint)
        self._engagements[vault.folder.name] = engagement
        rows = engagement.rows
        log.info(
            "joined run %s: %s; %s; %s",
            vault.folder.name,
            ", ".join(f"{count} {part} rows" for part, count in rows.items()),
            "uploads are seen one by one" if engagement.sums is None else engagement.sums.sentence,
            engagement.protection.sentence,
        )
        known = vault.latest() is not None
        told = {"rows": rows} if engagement.sums is None else {}
        return pack({**echo(header), "version": VERSION, **told, "known": known})

    def _require_own_name(self, header: dict[str, Any]) -> None:
        if header.get("name") != self.name:
            raise UserError(
                f"this silo is {self.name!r}, but its key is registered for {header.get('name')!r}"
            )

    def _engagement(self, run: Any) -> Engagement:
        vault = self._vault(run)
        if run not in self._engagements:
            agreement = vault.agreement
            if agreement is None:
                raise UserError(f"the run {run!r} was never agreed with this silo")
            self._engagements[run] = self._engage(agreement, vault, vault.weights)
        return self._engagements[run]

    def _engage(self, agreement: dict[str, Any], vault: RunVault, weights: Params) -> Engagement:
        return Engagement(
            agreement,
            self.table,
            vault,
            self.limits,
            weights,
            shares_metrics=self.shares_metrics,
            credentials=self.credentials,
            account=Account(self.ledger, self.demands, vault.folder.name),
        )

    def _vault(self, run: Any) -> RunVault:
        if not isinstance(run, str) or not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", run) or run in OWN_NAMES:
            raise UserError(f"{run!r} is not the name of a run")
        return RunVault(self.folder / run, self.limits.modules, self.keep_rounds)
