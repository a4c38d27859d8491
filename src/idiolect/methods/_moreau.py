"""The Moreau envelope of a client's loss, which pFedMe and pFedKM minimise. Spec 4.1.

F(ω) = min_θ h(θ),   h(θ) = f(θ; batch) + (λ/2) |θ - ω|²,   ∇F(ω) = λ (ω - θ̂),   θ̂ = argmin h
"""

from typing import Literal, Protocol

from torch import Tensor

from idiolect import core
from idiolect.core import Params, Site, tree


def approach(
    objective: core.Objective,
    batch: core.Batch,
    theta: Params,
    omega: Params,
    *,
    attraction: float,
    steps: int,
    rate: Tensor | float,
    tolerance: float | None,
) -> Params:
    """θ after some steps θ <- θ - rate ∇h(θ) towards θ̂; it stands still once |∇h(θ)| <= tolerance.

    Computed as a move to ω and a step on f, (1 - rate λ) θ + rate λ ω - rate ∇f(θ): the fewest passes over
    the parameters, which for small batches cost more than the gradient itself.
    """
    for _ in range(steps):
        slope = objective.gradient(theta, batch)
        pulled = tree.pull(theta, omega, rate * attraction)
        moved = tree.step(pulled, rate, slope)
        if tolerance is not None:
            slope = tree.map_tree(lambda g, x, o: g + attraction * (x - o), slope, theta, omega)
            moved = tree.where(tree.squared_norm(slope) <= tolerance**2, theta, moved)
        theta = moved
    return theta


def descend(omega: Params, theta: Params, *, attraction: float, rate: Tensor | float) -> Params:
    """ω <- ω - rate λ (ω - θ): a step on F, with θ for θ̂."""
    return tree.pull(omega, theta, rate * attraction)


def envelope_rates(smoothness: float, attraction: float) -> dict[str, float]:
    """One over the smoothness of what is minimised: L + λ of h, in θ; λ L / (λ + L) of F, in ω."""
    outer = 1 / smoothness + (1 / attraction if attraction else 0.0)  # with λ = 0, ω rests at any rate
    return {"learning_rate": outer, "inner_rate": 1 / (smoothness + attraction)}


class EnvelopeSettings(Protocol):
    """The hyper-parameters of a method that minimises envelopes."""

    @property
    def moreau_weight(self) -> float: ...
    @property
    def learning_rate(self) -> core.Schedule: ...
    @property
    def inner_rate(self) -> core.Schedule: ...
    @property
    def inner_steps(self) -> int: ...
    @property
    def inner_tolerance(self) -> float | None: ...
    @property
    def inner_start(self) -> Literal["warm", "cold"]: ...


def local_round(
    settings: EnvelopeSettings, theta: Params, omega: Params, batch: core.Batch, site: Site
) -> tuple[Params, Params]:
    """θ approaches the minimum of h on one batch, from itself or from ω; then ω takes a step to it."""
    weight, rate = settings.moreau_weight, site.rate(settings.learning_rate)
    theta = approach(
        site.objective,
        batch,
        theta if settings.inner_start == "warm" else omega,
        omega,
        attraction=weight,
        steps=settings.inner_steps,
        rate=site.rate(settings.inner_rate),
        tolerance=settings.inner_tolerance,
    )
    return theta, descend(omega, theta, attraction=weight, rate=rate)
