"""How clients attend to each other's models: weights by distance or by angle. Spec 8.10.

Each row of `models` is a client's model as a vector; row i of the result sums to one.
"""

from typing import Literal

import torch
from torch import Tensor

_COLUMNS = 8192  # of all models, that are in double precision at a time


def attention_by_distance(models: Tensor, width: float | Literal["median"], share: float) -> Tensor:
    """FedAMP's ξ_ij = (share / N) exp(-|w_i - w_j|² / width); where the median is 0, ξ_ii = 1."""
    clients, squares = len(models), squared_distances(models)
    if width == "median":
        pairs = squares[*torch.triu_indices(clients, clients, 1)]
        width = float(pairs.median()) if clients > 1 else 0.0
    if width == 0:
        return torch.eye(clients).to(squares)
    xi = share / clients * torch.exp(-squares / width)
    xi.fill_diagonal_(0)
    return xi + torch.diag(1 - xi.sum(1))


def attention_by_cosine(models: Tensor, own: float, sharpness: float) -> Tensor:
    """HeurFedAMP's ξ: `own` on the diagonal, the rest by a softmax of sharpness * cos(w_i, w_j)."""
    if len(models) == 1:
        return models.new_ones(1, 1, dtype=torch.float64)
    itself = torch.eye(len(models), dtype=torch.bool, device=models.device)
    others = (sharpness * cosines(models)).masked_fill(itself, -torch.inf).softmax(1)
    return torch.where(itself, own, (1 - own) * others)


def squared_distances(models: Tensor) -> Tensor:
    """|w_i - w_j|² of all pairs of rows, by products: of differences to the mean, which spares digits."""
    products = _products(models - models.mean(0))
    norms = products.diagonal()
    return (norms[:, None] + norms - 2 * products).clamp_min(0).fill_diagonal_(0)


def cosines(models: Tensor) -> Tensor:
    """cos(w_i, w_j) of all pairs of rows."""
    products = _products(models)
    norms = products.diagonal().sqrt()
    return products / (norms[:, None] * norms).clamp_min(torch.finfo(norms.dtype).tiny)


def _products(rows: Tensor) -> Tensor:
    """The Gram matrix in double precision, of some columns at a time."""
    gram = rows.new_zeros(len(rows), len(rows), dtype=torch.float64)
    for part in rows.split(_COLUMNS, dim=1):
        gram.addmm_(part.double(), part.double().T)
    return gram
