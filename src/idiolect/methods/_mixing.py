"""How much of the shared model each entry of a client's model takes: weights A that are learned. Spec 8.7.

ŵ = w_i + A (w - w_i) in the upper part of the model, and w below it
A <- clip(A - η_A ∇_ŵ f_i(ŵ; batch) (w - w_i), 0, 1)          entry by entry, on some of the client's rows
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from idiolect import core
from idiolect.core import Params, Site, rng, tree
from idiolect.core.inputs import take_rows

LOOKED_AT = 10  # passes whose losses tell whether the learning is over


class Blend(NamedTuple):
    """A client's own upper part, the shared model's upper part, and what the shared model has below."""

    own: Params
    shared: Params
    below: Params

    @classmethod
    def of(cls, own: Params, shared: Params, upper: core.Patterns) -> "Blend":
        """Of two whole models."""
        parts = core.Parts.of(shared, {"upper": upper}, rest="below")
        return cls(parts.take(own, "upper"), parts.take(shared, "upper"), parts.take(shared, "below"))

    def upper(self, weights: Params) -> Params:
        """w_i + A (w - w_i), from the nearer end: exactly w_i where A is 0 and exactly w where it is 1."""

        def between(weight: Tensor, own: Tensor, shared: Tensor) -> Tensor:
            way = shared - own
            return torch.where(weight < 0.5, own + weight * way, shared - (1 - weight) * way)

        return tree.map_tree(between, weights, self.own, self.shared)

    def model(self, weights: Params) -> Params:
        """ŵ."""
        return {**self.below, **self.upper(weights)}

    def moved(
        self, weights: Params, rate: float, batch: core.Batch, objective: core.Objective
    ) -> tuple[Params, Tensor]:
        """One step of the weights, and the loss before it."""
        slopes, loss = objective.gradient_and_loss(self.upper(weights), batch, fixed=self.below)

        def step(weight: Tensor, slope: Tensor, own: Tensor, shared: Tensor) -> Tensor:
            return (weight - rate * slope * (shared - own)).clamp(0, 1)

        return tree.map_tree(step, weights, slopes, self.own, self.shared), loss

    @property
    def differs(self) -> Tensor:
        """Whether there is anything to choose between."""
        pairs = zip(self.own.values(), tree.leaves(self.shared, self.own), strict=True)
        return torch.stack([(own != shared).any() for own, shared in pairs]).any()


def sample(site: Site, share: float, batch_size: int) -> list[core.Batch]:
    """A share of the client's rows by its key, without replacement and at least a batch, in batches.

    As many batches as the largest client here needs: whoever has fewer rows has empty places at the end.
    """
    rows, size = site.all_rows, site.size.clamp_min(1)
    taken = torch.maximum((share * size).ceil().long(), size.clamp_max(batch_size))
    width = len(rows.weights)
    most = max(math.ceil(share * width), min(batch_size, width))
    place = torch.arange(most, device=size.device)
    chosen = rng.permute(place % size, size, rng.fold(site.key, rng.key(0, "mixing")))
    inputs, targets = take_rows(rows.inputs, chosen), rows.targets[chosen]
    counts = (place < taken).to(rows.weights.dtype)
    batches = []
    for start in range(0, most, batch_size):
        some = slice(start, start + batch_size)
        batches.append(
            core.Batch(
                inputs=take_rows(inputs, some),
                targets=targets[some],
                weights=counts[some] / counts[some].sum().clamp_min(1),
                key=tree.map_tree(lambda noise, start=start: rng.fold(noise, start), rows.key),
            )
        )
    return batches


class Learning(NamedTuple):
    """What the weights of a blend are learned on, and how fast."""

    blend: Blend
    batches: list[core.Batch]
    objective: core.Objective
    rate: float

    def one_pass(self, weights: Params) -> tuple[Params, Tensor]:
        """The weights after all batches, and the mean loss of those that have rows, each before its step."""
        losses: list[Tensor] = []
        filled = [batch.weights.sum() > 0 for batch in self.batches]
        for batch, has_rows in zip(self.batches, filled, strict=True):
            moved, loss = self.blend.moved(weights, self.rate, batch, self.objective)
            weights = tree.where(has_rows, moved, weights)
            losses.append(torch.where(has_rows, loss, 0.0))
        return weights, torch.stack(losses).sum() / torch.stack(filled).sum().clamp_min(1)

    def until_still(self, weights: Params, spread: float, most: int) -> Params:
        """Passes until the last ones' losses have a smaller standard deviation; not more than `most`."""
        losses: list[Tensor] = []
        going = torch.tensor(True, device=self.batches[0].weights.device)
        for _ in range(most):
            learned, loss = self.one_pass(weights)
            weights = tree.where(going, learned, weights)
            losses = [*losses[1 - LOOKED_AT :], loss]
            if len(losses) == LOOKED_AT:
                going = going & (torch.stack(losses).std(correction=0) >= spread)
        return weights
