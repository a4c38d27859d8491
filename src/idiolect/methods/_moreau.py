"""The Moreau envelope of a client's loss, which pFedMe and pFedKM minimise. Spec 4.1.

F(ω) = min_θ h(θ),   h(θ) = f(θ; batch) + (λ/2) |θ - ω|²,   ∇F(ω) = λ (ω - θ̂),   θ̂ = argmin h
"""

from torch import Tensor

from idiolect.core import Batch, Objective, Params, tree


def approach(
    objective: Objective,
    batch: Batch,
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
