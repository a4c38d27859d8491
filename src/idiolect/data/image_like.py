"""Class-conditional Gaussians that stand in for images where there are none."""

from typing import Literal

import numpy as np
import torch

from idiolect.core.task import Task
from idiolect.data.draws import generator
from idiolect.data.federation import Federation
from idiolect.data.partition import Scheme, deal
from idiolect.data.splits import DEFAULT_FRACTIONS, Fractions, split_clients
from idiolect.errors import UserError

CLASSES = 10
MEAN_LENGTH = 3.0
WITHIN_RANK = 10
ISOTROPIC_VARIANCE = 0.1


def image_like(
    *,
    seed: int,
    clients: int = 100,
    partition: Scheme = "slices",
    per_client: int = 2,
    concentration: float = 1.0,
    pixels: Literal[64, 784] = 64,
    samples_per_class: int = 600,
    style: float = 0.0,
    fractions: Fractions = DEFAULT_FRACTIONS,
) -> Federation:
    """Ten Gaussian classes, dealt to clients by any partition, with a style of its own for each client.

    Class c: mean 3 times a random unit vector; covariance U_c U_cᵀ + 0.1 I where U_c is pixels x 10 with
    entries Normal(0, 1/pixels), that is about unit variance in ten directions. Client i sees A_i x with
    A_i = I + style·E_i, entries of E_i ~ Normal(0, 1/pixels), so that `style` is about the relative change
    of a row (0.1 for the heterogeneity of writers, with partition="iid"; 0: none).

    Caveat: ranks and scales are a choice of this package, not of any paper. Easier than MNIST.
    """
    if samples_per_class < 1:
        raise UserError(f"samples_per_class={samples_per_class} must be at least 1")
    if style < 0:
        raise UserError(f"style={style} must not be negative")
    inputs, labels = _classes(seed, pixels, samples_per_class)
    rows = deal(
        torch.as_tensor(labels),
        clients,
        seed=seed,
        partition=partition,
        per_client=per_client,
        concentration=concentration,
    )
    if style > 0:
        for client, own in enumerate(rows):
            shift = generator(seed, "image-style", client).normal(0.0, pixels**-0.5, (pixels, pixels))
            inputs[own.numpy()] += style * inputs[own.numpy()] @ shift.T
    names = [f"client-{i}" for i in range(clients)]
    split = split_clients(rows, names, seed=seed, fractions=fractions)
    side = int(pixels**0.5)
    return Federation(
        inputs=torch.as_tensor(inputs, dtype=torch.float32).reshape(-1, 1, side, side),
        targets=torch.as_tensor(labels),
        task=Task("multiclass", CLASSES),
        names=tuple(names),
        train=split.train,
        validation=split.validation,
        test=split.test,
    )


def _classes(seed: int, pixels: int, samples: int) -> tuple[np.ndarray, np.ndarray]:
    """All rows, class after class."""
    inputs = []
    for c in range(CLASSES):
        draw = generator(seed, "image-class", c)
        mean = draw.normal(size=pixels)
        mean *= MEAN_LENGTH / np.linalg.norm(mean)
        directions = draw.normal(0.0, pixels**-0.5, (pixels, WITHIN_RANK))
        within = draw.normal(size=(samples, WITHIN_RANK)) @ directions.T
        inputs.append(mean + within + ISOTROPIC_VARIANCE**0.5 * draw.normal(size=(samples, pixels)))
    return np.concatenate(inputs), np.repeat(np.arange(CLASSES), samples)
