"""From whom clients learn, on weights that were written by hand."""

import numpy as np
import pytest
import torch

from idiolect.core.task import Task
from idiolect.data.federation import Federation, Rows
from idiolect.errors import UserError
from idiolect.reproduction.helpers import own_mass, same_class_mass, same_group_mass

# client 0 mostly has class 2, client 1 only class 0, client 2 mostly class 2
_CLASSES = ([2, 2, 1], [0, 0], [1, 2, 2, 0])
_WEIGHTS = np.array([[0.5, 0.2, 0.3], [0.1, 0.9, 0.0], [0.25, 0.35, 0.4]])


def federation(groups: list[int] | None) -> Federation:
    targets = torch.tensor([c for own in _CLASSES for c in own])
    rows = Rows.of_clients(torch.split(torch.arange(9), [3, 2, 4]))
    nothing = Rows.of_clients([torch.arange(0)] * 3)
    return Federation(
        inputs=torch.zeros(9, 1),
        targets=targets,
        task=Task("multiclass", 3),
        names=("a", "b", "c"),
        train=rows,
        validation=nothing,
        test=nothing,
        groups=None if groups is None else torch.tensor(groups),
    )


def test_mass_on_oneself() -> None:
    np.testing.assert_allclose(own_mass(_WEIGHTS.ravel(), federation(None)), [0.5, 0.9, 0.4])


def test_mass_on_clients_with_the_same_class() -> None:
    mass = same_class_mass(_WEIGHTS.ravel(), federation(None))
    np.testing.assert_allclose(mass, [0.8, 0.9, 0.65])


def test_mass_on_clients_of_the_same_group() -> None:
    mass = same_group_mass(_WEIGHTS.ravel(), federation([7, 7, 1]))
    np.testing.assert_allclose(mass, [0.7, 1.0, 0.4])


def test_unknown_groups_are_refused() -> None:
    with pytest.raises(UserError, match="not known"):
        same_group_mass(_WEIGHTS.ravel(), federation(None))
