"""What silos agree to about secure sums, and what they know each other by."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from idiolect.errors import UserError
from idiolect.secure.fixed_point import FixedPoint
from idiolect.secure.rule import Rule
from idiolect.silo.status import Phase

if TYPE_CHECKING:
    from idiolect.secure.signing import Identity, KnownKeys
    from idiolect.silo.secure.silo_side import SiloSums

SECURE = "secure"  # in the part of a configuration that silos agree to
USUAL_RANGE = 2.0**24


@dataclass(frozen=True)
class SecureSettings:
    """`secure: true`, or `secure: {threshold: 4, range: 1000}`: the same for all silos of a run."""

    threshold: int  # silos whose uploads a sum has at least
    range: float = USUAL_RANGE  # of a number that is summed: an upload's times the silo's weight

    @classmethod
    def read(cls, setting: Any, silos: int) -> "SecureSettings | None":
        """The setting of a configuration, with what it leaves open."""
        if setting is None or setting is False:
            return None
        options = {} if setting is True else setting
        if not isinstance(options, Mapping) or options.keys() - {"threshold", "range"}:
            raise UserError(
                f"secure={setting} is not possible: it is true, false, or has a threshold and a range, as "
                "{threshold: 4, range: 1000}"
            )
        chosen = cls(
            threshold=_number(options, "threshold", Rule.usual(silos).threshold, int),
            range=float(_number(options, "range", USUAL_RANGE, int | float)),
        )
        chosen.rule(silos)
        chosen.fixed_point(silos)
        return chosen

    def plain(self) -> dict[str, Any]:
        """As it is kept and agreed."""
        return asdict(self)

    def rule(self, silos: int, terms: str = "") -> Rule:
        """How many of so many silos must take part, and a hash of what else they agree on."""
        return Rule(self.threshold, silos, terms)

    def fixed_point(self, silos: int) -> FixedPoint:
        """How numbers are written that so many silos add."""
        return FixedPoint(self.range, silos)


def terms_of(config: Mapping[str, Any], schema: Mapping[str, Any], weights: str | None) -> str:
    """A hash of what a run was agreed with: a coordinator that tells silos different things gets no sum.

    weights: the fingerprint of those that were sent, if any were.
    """
    content = json.dumps([config, schema, weights], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(content.encode()).hexdigest()


def work_label(run: str, round_number: int, place: int) -> str:
    """What names the sum of the uploads of one exchange: what is signed for one fits no other."""
    return f"{run}/work/{round_number}/{place}"


def evaluation_label(run: str, rounds: int) -> str:
    """What names the sum of the metrics after so many rounds."""
    return f"{run}/evaluate/{rounds}"


class Occasion(NamedTuple):
    """What a sum is for."""

    label: str
    question: str  # what all of its silos were asked alike
    header: dict[str, Any]  # of every request: run, round and place
    phase: Phase
    what: str  # as a reader would say


@dataclass(frozen=True)
class Credentials:
    """A silo's own long-term key, and the public ones of all silos."""

    identity: "Identity"
    known: "KnownKeys"


def silo_sums(
    folder: Path, agreement: Mapping[str, Any], silos: int, credentials: Credentials | None
) -> "SiloSums | None":
    """A silo's half of the secure sums of a run; None if none were agreed."""
    config = agreement["config"]
    secure = SecureSettings.read(config.get(SECURE), silos)
    if secure is None:
        return None
    if credentials is None:
        raise UserError("secure sums need the silos' keys: join with --keys, not with --insecure")
    from idiolect.silo.secure.silo_side import SiloSums  # it needs an extra

    rule = secure.rule(silos, terms_of(config, agreement["schema"], agreement.get("weights")))
    return SiloSums(folder, credentials, rule, secure.fixed_point(silos))


def _number(options: Mapping[str, Any], name: str, usual: Any, kind: Any) -> Any:
    value = options.get(name, usual)
    if isinstance(value, bool) or not isinstance(value, kind):
        raise UserError(f"secure.{name}={value!r} is not a number")
    return value
