"""How fast the gradient of each client's loss can change, which says how long a step may be.

For linear and logistic regression it is known. Client i's loss has a gradient of Lipschitz constant

    L_i = c λ_max(X_iᵀ X_i / n_i),   X_i: its training rows, with a one for the bias

with c = 1 for the squared error and c = 1/4 for classes: σ(1 - σ) ≤ 1/4, and for more than two classes half
of the bound 1/2, so that 1/L is the limit 2/(2L) below which steps still descend. With batches of b of its n
rows the mean squared gradient follows the expected smoothness (Gower et al. 2019, Prop. 3.8),

    L_i(b) = n (b - 1) / (b (n - 1)) L_i + (n - b) / (b (n - 1)) max over rows c |x|²

The l2 term adds its factor. One rate serves all clients, so the largest L_i(b) decides.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from idiolect.core.objective import Objective
from idiolect.data.federation import Federation
from idiolect.models import Linear

_MOST_ITERATIONS = 200
_TOLERANCE = 1e-4  # relative growth of the eigenvalue at which the iteration ends


class Smoothness(NamedTuple):
    """The smoothness that decides, whose it is, and that of a usual client."""

    largest: float
    client: str
    median: float


def smoothness_of(objective: Objective, federation: Federation, batch_size: int | None) -> Smoothness:
    """The smoothness of the clients' losses of a linear model; without a batch size, of all rows."""
    layer = linear_layer(objective.module)
    assert layer is not None, "the smoothness of other models is not known"
    by_client = torch.tensor(
        [
            _client_smoothness(_rows(federation, client, layer), batch_size)
            for client in range(len(federation))
        ],
        dtype=torch.float64,
    )
    by_client = by_client * curvature(objective) + objective.weight_decay
    place = int(by_client.argmax())
    return Smoothness(float(by_client[place]), federation.names[place], float(by_client.median()))


def linear_layer(module: nn.Module) -> nn.Linear | None:
    """The one linear map that a model consists of, if it does."""
    layer = module.linear if isinstance(module, Linear) else module
    return layer if isinstance(layer, nn.Linear) else None


def largest_eigenvalue(rows: Tensor) -> float:
    """λ_max(XᵀX) by power iteration, from below.

    >>> round(largest_eigenvalue(torch.tensor([[3.0, 0.0], [0.0, 1.0], [0.0, 1.0]])), 3)
    9.0
    """
    # From the row means of |X|, which no leading direction of real rows is orthogonal to, and some noise.
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(rows.shape[1], generator=generator, dtype=rows.dtype)
    direction = rows.T @ (rows @ (rows.abs().mean(0) * (0.9 + 0.2 * noise)))
    value = 0.0
    for _ in range(_MOST_ITERATIONS):
        length = float(direction.norm())
        if length == 0:
            return 0.0
        images = rows @ (direction / length)
        previous, value = value, float(images.square().sum())
        if value - previous <= _TOLERANCE * value:
            break
        direction = rows.T @ images
    return value


def _client_smoothness(rows: Tensor, batch_size: int | None) -> float:
    """L_i(b) without its constant c."""
    n = len(rows)
    b = n if batch_size is None else min(batch_size, n)
    mean = largest_eigenvalue(rows) / n
    if b == n:
        return mean
    longest = float(rows.square().sum(1).max())
    return (n * (b - 1) * mean + (n - b) * longest) / (b * (n - 1))


def _rows(federation: Federation, client: int, layer: nn.Linear) -> Tensor:
    """A client's training rows as the layer sees them, with a one for the bias; as long as they weigh."""
    index = federation.train.of(client)
    rows = federation.inputs[index].flatten(1).to(torch.float64)
    if layer.bias is not None:
        rows = torch.nn.functional.pad(rows, (0, 1), value=1.0)
    if not federation.task.class_weights:
        return rows
    weights = torch.tensor(federation.task.class_weights, dtype=torch.float64)
    return rows * weights[federation.targets[index]].sqrt()[:, None]


def curvature(objective: Objective) -> float:
    """c: the largest second derivative of a row's loss in the model's output."""
    return 0.25 if objective.task.is_classification else 1.0
