"""Local work in two phases: the first steps train the head, the last ones the body. Spec 8.0."""

import math
from typing import Annotated

from pydantic import Field
from torch import Tensor

from idiolect import core

BodySteps = Annotated[int, Field(ge=0)] | core.Epochs | None


def require_some_of_all(body_steps: BodySteps, local_steps: core.LocalWork) -> None:
    """Refuse more work on the body than there is, or work counted in another way."""
    if body_steps is None:
        return
    if isinstance(body_steps, core.Epochs) != isinstance(local_steps, core.Epochs):
        raise ValueError("body_steps and local_steps must both be steps, or both passes: {'epochs': 1}")
    if _count(body_steps) > _count(local_steps):
        raise ValueError(f"body_steps={_count(body_steps)} must be at most local_steps={_count(local_steps)}")


def head_steps(site: core.Site, local_steps: core.LocalWork, body_steps: BodySteps, share: float) -> Tensor:
    """The first steps of a client, as many for all or the same share; by `share` where body_steps is None."""
    whole = _count(local_steps)
    head = math.ceil(share * whole) if body_steps is None else whole - _count(body_steps)
    return site.full_steps * head // whole


def _count(work: int | core.Epochs) -> int:
    """Steps or passes."""
    return work.epochs if isinstance(work, core.Epochs) else work
