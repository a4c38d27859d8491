"""What silos agree to about secure sums, and what they know each other by."""

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

    def rule(self, silos: int) -> Rule:
        """How many of so many silos must take part."""
        return Rule(self.threshold, silos)

    def fixed_point(self, silos: int) -> FixedPoint:
        """How numbers are written that so many silos add."""
        return FixedPoint(self.range, silos)


def work_label(run: str, round_number: int, place: int) -> str:
    """What names the sum of the uploads of one exchange: what is signed for one fits no other."""
    return f"{run}/work/{round_number}/{place}"


def evaluation_label(run: str, rounds: int) -> str:
    """What names the sum of the metrics after so many rounds."""
    return f"{run}/evaluate/{rounds}"


class Occasion(NamedTuple):
    """What a sum is for."""

    label: str
    header: dict[str, Any]  # of every request: run, round and place
    phase: Phase
    what: str  # as a reader would say


@dataclass(frozen=True)
class Credentials:
    """A silo's own long-term key, and the public ones of all silos."""

    identity: "Identity"
    known: "KnownKeys"


def silo_sums(folder: Path, agreed: Any, silos: int, credentials: Credentials | None) -> "SiloSums | None":
    """A silo's half of the secure sums of a run; None if none were agreed."""
    secure = SecureSettings.read(agreed, silos)
    if secure is None:
        return None
    if credentials is None:
        raise UserError("secure sums need the silos' keys: join with --keys, not with --insecure")
    from idiolect.silo.secure.silo_side import SiloSums  # it needs an extra

    return SiloSums(folder, credentials, secure.rule(silos), secure.fixed_point(silos))


def _number(options: Mapping[str, Any], name: str, usual: Any, kind: Any) -> Any:
    value = options.get(name, usual)
    if isinstance(value, bool) or not isinstance(value, kind):
        raise UserError(f"secure.{name}={value!r} is not a number")
    return value
