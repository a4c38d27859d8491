"""Projections: onto a ball of parameters, and onto the probability simplex."""

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.tree import Params


def onto_ball(params: Params, radius: float | None) -> Params:
    """The nearest point whose norm, over all parameters together, is at most `radius` (None: no bound)."""
    if radius is None:
        return params
    norm = tree.squared_norm(params).sqrt()
    # The floor keeps 0 / 0 out; where it acts the factor is 1 anyway.
    return tree.scale(params, torch.clamp(radius / norm.clamp_min(1e-30), max=1.0))


def onto_simplex(vector: Tensor) -> Tensor:
    """The nearest probability vector, along the last axis.

    Sort descending, find the largest k with u_k > (u_1 + .. + u_k - 1) / k, subtract that mean excess.
    """
    # The same point, from where the largest entry is 0: beside large ones a sum of 1 would be lost.
    vector = vector - vector.amax(-1, keepdim=True)
    ordered = vector.sort(dim=-1, descending=True).values
    counts = torch.arange(1, vector.shape[-1] + 1, dtype=vector.dtype, device=vector.device)
    excess = (ordered.cumsum(-1) - 1) / counts
    support = (ordered > excess).sum(-1, keepdim=True).clamp_min(1)  # NaN has none, and stays NaN
    return (vector - excess.gather(-1, support - 1)).clamp_min(0)
