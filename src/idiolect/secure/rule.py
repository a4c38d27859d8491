"""The rule that all parties of sums agreed on."""

from collections.abc import Sized
from dataclasses import dataclass, replace

from idiolect.errors import UserError


@dataclass(frozen=True)
class Rule:
    """How many must take part, and a hash of whatever else was agreed.

    More than half of all that there are: two lists of survivors that are both signed by so many have a
    signer in common, who signs only one. Keys are signed for one rule: whoever was told another one, by
    somebody who tells everybody something else, has keys that nobody here can use.
    """

    threshold: int
    parties: int
    terms: str = ""

    def __post_init__(self) -> None:
        if not self.parties // 2 < self.threshold <= self.parties or self.threshold < 2:
            raise UserError(
                f"a threshold of {self.threshold} is not possible for {self.parties} silos: secure sums need "
                f"more than half of them, and two at least: from {max(2, self.parties // 2 + 1)} "
                f"to {self.parties}"
            )

    @classmethod
    def usual(cls, parties: int) -> "Rule":
        """More than two thirds, as the paper has it: then up to a third may be dishonest too."""
        return cls(max(2, 2 * parties // 3 + 1), parties)

    @property
    def accomplices(self) -> int:
        """How many silos may be in league with the collector, and single summands are still not seen.

        Two lists of t signers have 2t - n in common. If all of these are dishonest, some of the others sign
        one list and some another one, and give away both secrets of a silo. And of the summands of one list
        all but k are of others.
        """
        return min(2 * self.threshold - self.parties - 1, self.threshold - 2)

    def about(self, question: str) -> "Rule":
        """The same for one sum: also of what everybody in it was asked alike."""
        return replace(self, terms=f"{self.terms} {question}")

    def require(self, who: Sized, what: str) -> None:
        """Refuse to go on with too few, and with more than there are."""
        if not self.threshold <= len(who) <= self.parties:
            raise UserError(
                f"{what} of {len(who)} silos cannot be used: agreed are {self.threshold} to {self.parties}"
            )
