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

    def moved(self, weights: Params, rate: float, batch: core.Batch, objective: core.Objective) -> Params:
        """One step of the weights."""
        slopes = objective.gradient(self.upper(weights), batch, fixed=self.below)

        def step(weight: Tensor, slope: Tensor, own: Tensor, shared: Tensor) -> Tensor:
            return (weight - rate * slope * (shared - own)).clamp(0, 1)

        return tree.map_tree(step, weights, slopes, self.own, self.shared)

    @property
    def differs(self) -> Tensor:
        """Whether there is anything to choose between."""
        pairs = zip(self.own.values(), tree.leaves(self.shared, self.own), strict=True)
        return torch.stack([(own != shared).any() for own, shared in pairs]).any()


def sample(site: Site, share: float, batch_size: int) -> list[core.Batch]:
    """A share of the client's rows by its key, without replacement and at least a batch, in batches.

    As many batches as the largest client here needs: whoever has fewer rows has empty ones at the end.
    """
    rows, size = site.all_rows, site.size.clamp_min(1)
    taken = torch.maximum((share * size).ceil().long(), size.clamp_max(batch_size))
    width = len(rows.weights)
    most = max(math.ceil(share * width), min(batch_size, width))
    key = rng.fold(site.key, rng.key(0, "mixing"))
    batches = []
    for start in range(0, most, batch_size):
        place = torch.arange(start, start + batch_size, device=size.device)
        chosen = rng.permute(place % size, size, key)
        counts = (place < taken).to(rows.weights.dtype)
        batches.append(
            rows._replace(
                inputs=rows.inputs[chosen],
                targets=rows.targets[chosen],
                weights=counts / counts.sum().clamp_min(1),
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

    def one_pass(self, weights: Params) -> list[Params]:
        """The weights before each batch, and after the last."""
        path = [weights]
        for batch in self.batches:
            moved = self.blend.moved(path[-1], self.rate, batch, self.objective)
            path.append(tree.where(batch.weights.sum() > 0, moved, path[-1]))
        return path

    def until_still(self, weights: Params, spread: float, most: int) -> Params:
        """Passes until the last ones' losses have a smaller standard deviation; not more than `most`."""
        losses: list[Tensor] = []
        going = torch.tensor(True, device=self.batches[0].weights.device)
        for _ in range(most):
            path = self.one_pass(weights)
            weights = tree.where(going, path[-1], weights)
            losses = [*losses[1 - LOOKED_AT :], self._mean_loss(path)]
            if len(losses) == LOOKED_AT:
                going = going & (torch.stack(losses).std(correction=0) >= spread)
        return weights

    def _mean_loss(self, path: list[Params]) -> Tensor:
        """Over the batches that have rows, each with the weights before it."""
        filled = torch.stack([batch.weights.sum() > 0 for batch in self.batches])
        pairs = zip(path[:-1], self.batches, strict=True)
        losses = [self.objective.training_loss(self.blend.model(at), batch) for at, batch in pairs]
        return torch.where(filled, torch.stack(losses), 0.0).sum() / filled.sum().clamp_min(1)
