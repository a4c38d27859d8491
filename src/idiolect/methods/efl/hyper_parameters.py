"""EFL's hyper-parameters (spec 3.8)."""

from typing import Literal, Self

from pydantic import model_validator
from pydantic.dataclasses import dataclass

from idiolect import core
from idiolect.core import STRICT, hyper
from idiolect.methods.efl.fisher import FisherKind
from idiolect.methods.efl.terms import ReplyWeighting


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """What a user chooses; the method is in `efl.py`."""

    learning_rate: core.Schedule = hyper(0.1, "step size of the local steps", symbol="η", alias="lr")
    local_steps: core.LocalWork = hyper(10, "full local work of a round", symbol="E")
    elasticity: float = hyper(
        0.01, "weight of the elastic term; useful values shrink as 1 / clients", symbol="λ", ge=0,
        tune=(1e-4, 1.0),
    )  # fmt: skip
    keep: float | None = hyper(
        0.3, "fraction of the entries that a message keeps; None: no compression", symbol="q",
        paper="0.1, 0.3, 0.6", gt=0, le=1,
    )  # fmt: skip
    scope: core.Scope = hyper("per_tensor", "compress each tensor, or all parameters as one vector")
    weighting: ReplyWeighting = hyper(
        "unbiased", "weights of replies, divided by the chance of being asked, by nothing, by Σ p^k",
        symbol="p_τ^k",
    )  # fmt: skip
    fisher: FisherKind = hyper("empirical", "whose targets the Fisher information is taken over", symbol="I")
    fisher_rows: int | None = hyper(None, "rows that it is estimated on; None: all training rows", ge=1)
    fisher_every: int = hyper(1, "rounds between reports of Fisher terms; U and V follow a report", ge=1)
    fisher_norm: Literal["sum", "mean"] = hyper(
        "sum", "U and V as sums over clients, or means: then λ does not depend on how many there are"
    )
    stale_terms: bool = hyper(False, "keep each client's last terms, not only those of the last round")
    exclude_self: bool = hyper(False, "send each client U and V without its own terms")
    scale_before_compress: bool = hyper(False, "apply E / s before the compression, not after it")
    server_apply: Literal["compressed", "debiased"] = hyper(
        "compressed", "the global model: as clients hold it, or with what they have not been told yet"
    )
    abandon_above: float | None = hyper(
        None, "advise to drop clients that are inactive more often than this", symbol="y^a", ge=0, le=1
    )

    @model_validator(mode="after")
    def _scaling_needs_common_steps(self) -> Self:
        if self.scale_before_compress and isinstance(self.local_steps, core.Epochs):
            raise ValueError("scale_before_compress needs local_steps to be a number, the same for all")
        return self
