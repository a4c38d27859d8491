"""Quadratics as ordinary regression rows, for exact checks of theory.

The model is the elementwise product of a row with one parameter (`quadratic` in `idiolect.models`). A row
with inputs x = √h and targets y = √h·c has half squared error ½ Σ h (w - c)², so that client i minimises
f_i(w) = ½ Σ_j h_ij (w_j - c_ij)². Gradients are those of the paper, function values lack its constants.
There is nothing to generalise to: validation and test rows are the training rows.
"""

import numpy as np
import torch

from idiolect.core.task import Task
from idiolect.data.draws import generator
from idiolect.data.federation import Federation, Rows
from idiolect.errors import UserError


def quadratic_pair(*, double: bool = False) -> Federation:
    """Two quadratics in the plane, of figure 1b of the Additive paper.

    F_1(v) = (v1 - 7)² + 2 (v2 - 18)² - 1 and F_2(v) = 2 (v1 - 18)² + (v2 - 13)² - 1, with optima (7, 18)
    and (18, 13); the mean has its optimum at (43/3, 49/3). The constant -1 is left out. Nothing is random.
    """
    curvatures = np.array([[2.0, 4.0], [4.0, 2.0]])
    centres = np.array([[7.0, 18.0], [18.0, 13.0]])
    return _federation(curvatures[:, None], centres[:, None], double=double)


def quadratic_line(*, optimum: float = 0.0, distance: float = 1.0, double: bool = False) -> Federation:
    """Two quadratics on the line, of proposition 1 of the Additive paper.

    F_{1,2}(v) = ½ (v - (v* ∓ ζ))², v* being `optimum` and ζ `distance`. Nothing is random.
    """
    centres = np.array([[optimum - distance], [optimum + distance]])
    return _federation(np.ones((2, 1, 1)), centres[:, None], double=double)


def quadratics(
    *,
    seed: int,
    clients: int = 10,
    dimensions: int = 10,
    smallest: float = 0.1,
    largest: float = 1.0,
    heterogeneity: float = 1.0,
    noise: float = 0.0,
    rows: int = 1,
    double: bool = False,
) -> Federation:
    """Random diagonal quadratics for tests of convergence theory.

    Each client's curvatures are log-uniform on [μ, L] = [smallest, largest] and attain both ends (L alone
    in one dimension); its centre is c_i = c + heterogeneity·Normal(0, I), with one c ~ Normal(0, I).
    noise: standard deviation σ, in each coordinate, of the gradient of one row around the client's own.
        The rows' deviations are centred, so the client's optimum is exactly c_i; needs rows > 1.
    """
    if clients < 1 or dimensions < 1 or rows < 1:
        raise UserError(f"clients={clients}, dimensions={dimensions} and rows={rows} must be at least 1")
    if not 0 < smallest <= largest:
        raise UserError(f"smallest={smallest} must be above 0 and not above largest={largest}")
    if noise < 0 or heterogeneity < 0:
        raise UserError(f"noise={noise} and heterogeneity={heterogeneity} must not be negative")
    if noise > 0 and rows == 1:
        raise UserError(f"noise={noise} needs rows of at least 2: one row is its own mean")
    common = generator(seed, "quadratics-centre").normal(size=dimensions)
    curvatures = np.empty((clients, 1, dimensions))
    centres = np.empty((clients, 1, dimensions))
    deviations = np.empty((clients, rows, dimensions))
    for client in range(clients):
        draw = generator(seed, "quadratics", client)
        exponents = draw.random(dimensions)
        ends = draw.permutation(dimensions)[:2]
        exponents[ends] = [1.0, 0.0][: len(ends)]
        curvatures[client] = smallest * (largest / smallest) ** exponents
        centres[client] = common + heterogeneity * draw.normal(size=dimensions)
        deviations[client] = draw.normal(size=(rows, dimensions))
    deviations = noise * (deviations - deviations.mean(1, keepdims=True))
    if rows > 1:
        deviations *= np.sqrt(rows / (rows - 1))  # centring took 1/rows of the variance
    return _federation(curvatures, centres, deviations, double=double)


def _federation(
    curvatures: np.ndarray,
    centres: np.ndarray,
    deviations: np.ndarray | float = 0.0,
    *,
    double: bool,
) -> Federation:
    """From [clients, 1, d] curvatures and centres and [clients, rows, d] deviations of the gradients."""
    roots = np.sqrt(curvatures)
    targets = roots * centres + deviations / roots  # a row's gradient is h (w - c) - deviation
    clients, rows, dimensions = targets.shape
    dtype = torch.float64 if double else torch.float32
    index = Rows.of_clients(list(torch.split(torch.arange(clients * rows), rows)))
    return Federation(
        inputs=_flat(np.broadcast_to(roots, targets.shape), dtype),
        targets=_flat(targets, dtype),
        task=Task("regression", dimensions),
        names=tuple(f"client-{i}" for i in range(clients)),
        train=index,
        validation=index,
        test=index,
    )


def _flat(values: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor(values.reshape(-1, values.shape[-1]), dtype=dtype)
