"""What a paper claims, as comparisons that can be computed.

    says                a sentence
    of                  a metric (`accuracy`, `loss`), or a quantity of `quantities.py` (`seconds_per_round`,
                        `diagnostic:labels`); left out: what the runs are reported by
    part, at            of which rows, and at which round: `reported` (chosen on validation rows), `last`,
                        `best` (the best test round, the field's habit), or a round's number; `newcomers` are
                        the test rows of clients left out of training, `newcomers-train` those they train on
    higher, than        the first model has the higher value, by more than `margin`; `lower` alike
    times               the second model's value is multiplied by it first: half as much is `times: 0.5`
    rising, falling     models in the order of their values
    equal, within       two or more models differ by no more than `within`
    near                with `model`: its value is a number, or its values are numbers, up to `within`
    panels              where the claim is about; None: everywhere
    between             of functions: the range of x that the claim is about; None: all of it

A model is "LINE KIND", as "APFL 0.25 personal"; "LINE KIND @ PANEL" is of one panel whatever `panels` says.
Quantities of a run as a whole have the model "LINE". In place of the second model may stand a number. In
place of both may stand a function or a constant of the recipe: two functions are compared at every x.
"""

from itertools import combinations, pairwise
from typing import Annotated, Literal, NamedTuple

from pydantic import Field
from pydantic.dataclasses import dataclass

from idiolect.core.hyper import STRICT

Model = str
Moment = Literal["reported", "last", "best"] | Annotated[int, Field(ge=0)]
Part = Literal["train", "validation", "test", "newcomers", "newcomers-train"]


class Relation(NamedTuple):
    """That the first is above the second by more than the margin; or, `within`, that they hardly differ."""

    first: Model
    second: Model | float | tuple[float, ...]
    margin: float = 0.0
    within: float | None = None


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Claim:
    """One sentence of a paper."""

    says: str
    of: str | None = None
    part: Part | None = None
    at: Moment = "reported"
    higher: Model | None = None
    lower: Model | None = None
    than: Model | float | tuple[Model | float, ...] | None = None
    rising: tuple[Model, ...] = ()
    falling: tuple[Model, ...] = ()
    equal: tuple[Model, ...] = ()
    model: Model | None = None
    near: float | tuple[float, ...] | None = None
    margin: float = 0.0
    times: float = 1.0
    within: Annotated[float, Field(ge=0)] | None = None
    panels: tuple[str, ...] | None = None
    between: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        """One relation, and whole."""
        given = [self.higher, self.lower, self.rising, self.falling, self.equal, self.model]
        if sum(bool(relation) for relation in given) != 1:
            raise ValueError(
                f"the claim {self.says!r} must have one of higher, lower, rising, falling, equal, model"
            )
        if (self.higher or self.lower) and self.than is None:
            raise ValueError(f"the claim {self.says!r} needs `than`")
        if (self.equal or self.model) and self.within is None:
            raise ValueError(f"the claim {self.says!r} needs `within`")
        if self.model and self.near is None:
            raise ValueError(f"the claim {self.says!r} needs `near`")

    @property
    def relations(self) -> list[Relation]:
        """What has to hold; of `lower` and `falling` the models change places."""
        if self.equal:
            return [Relation(a, b, within=self.within) for a, b in combinations(self.equal, 2)]
        if self.model:
            assert self.near is not None
            return [Relation(self.model, self.near, within=self.within)]
        if self.rising or self.falling:
            ordered = self.rising[::-1] or self.falling
            return [Relation(high, low, self.margin) for high, low in pairwise(ordered)]
        others = self.than if isinstance(self.than, tuple) else (self.than,)
        if self.higher:
            return [Relation(self.higher, other, self.margin) for other in others if other is not None]
        assert self.lower
        return [Relation(self.lower, other, self.margin) for other in others if other is not None]

    @property
    def sign(self) -> int:
        """-1 where the first of a comparison is to have the lower value."""
        return -1 if self.lower else 1
