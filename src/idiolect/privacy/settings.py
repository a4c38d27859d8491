"""The section `privacy` of a configuration: whose presence is hidden, how well, and by how much noise.

row     neighbours differ in one training row of one client: it is there, or in its place is a row whose
        gradient is zero ("zero-out"), so that numbers of rows are no secret
silo    neighbours differ in one client of a public list: its uploads are there, or in their place are
        uploads of zero
"""

from typing import Literal

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from idiolect.core.hyper import STRICT

_EPSILON = "the privacy that the planned work may cost: the noise follows from it"
_DELTA = "the probability with which that need not hold"
# Squares of shorter gradients vanish in single precision, and with them what would have to be shortened;
# those of longer ones are infinite.
_SHORTEST_CLIP, _LONGEST_CLIP = 1e-9, 1e18
_NOISE = "the noise's standard deviation by the clip, in place of epsilon; None: what epsilon needs"


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Privacy:
    """What both units have. Of `epsilon` and `noise` one is given; a run that began has both."""

    epsilon: float | None = Field(default=None, gt=0, allow_inf_nan=False, description=_EPSILON)
    delta: float = Field(default=1e-5, gt=0, lt=1, description=_DELTA)
    noise: float | None = Field(default=None, ge=0, allow_inf_nan=False, description=_NOISE)

    @model_validator(mode="after")
    def _says_how_well(self) -> "Privacy":
        if self.epsilon is None and self.noise is None:
            raise ValueError("it needs privacy.epsilon=3, for one, or privacy.noise=1.1")
        return self

    @property
    def multiplier(self) -> float:
        """The noise, once it is decided."""
        assert self.noise is not None, "decided when the run begins"
        return self.noise


@dataclass(frozen=True, kw_only=True, config=STRICT)
class RowPrivacy(Privacy):
    """Gradients of single rows are clipped, and noise is added to their sum in every local step."""

    clip: float = Field(
        default=1.0,
        ge=_SHORTEST_CLIP,
        le=_LONGEST_CLIP,
        allow_inf_nan=False,
        description="the longest gradient of a row: others are shortened",
    )
    unit: Literal["row"] = "row"


@dataclass(frozen=True, kw_only=True, config=STRICT)
class SiloPrivacy(Privacy):
    """Uploads are clipped, and noise is added to their sum in every round."""

    clip: float = Field(
        default=1.0,
        ge=_SHORTEST_CLIP,
        le=_LONGEST_CLIP,
        allow_inf_nan=False,
        description="the longest upload of a client: others are shortened",
    )
    unit: Literal["silo"] = "silo"


PrivacyChoice = RowPrivacy | SiloPrivacy
UNITS: dict[str, type[PrivacyChoice]] = {"row": RowPrivacy, "silo": SiloPrivacy}
