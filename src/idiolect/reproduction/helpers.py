"""From whom the clients of a run learn, where it is known who are alike."""

import numpy as np
import torch

from idiolect.data.federation import Federation
from idiolect.errors import UserError


def own_mass(weights: np.ndarray, federation: Federation) -> np.ndarray:
    """Each client's weight on itself."""
    return _mass_on_alike(weights, np.arange(len(federation)))


def same_class_mass(weights: np.ndarray, federation: Federation) -> np.ndarray:
    """Each client's weight on clients, itself among them, whose most frequent class is its own."""
    classes = [int(torch.mode(federation.targets[federation.train.of(i)])[0]) for i in range(len(federation))]
    return _mass_on_alike(weights, np.array(classes))


def same_group_mass(weights: np.ndarray, federation: Federation) -> np.ndarray:
    """Each client's weight on clients, itself among them, of its true group."""
    if federation.groups is None:
        raise UserError("of these data it is not known which clients are alike")
    return _mass_on_alike(weights, federation.groups.numpy())


def _mass_on_alike(weights: np.ndarray, kinds: np.ndarray) -> np.ndarray:
    square = weights.reshape(len(kinds), len(kinds))
    alike: np.ndarray = (square * (kinds[:, None] == kinds)).sum(axis=1)
    return alike
