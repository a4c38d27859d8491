"""Metrics and curves on quadratics, beside what numpy says."""

import numpy as np
import pytest
import torch

import idiolect
from idiolect.core.objective import Batch
from idiolect.core.task import Task
from idiolect.data.quadratics import quadratics
from idiolect.reproduction.coordinates import squared_distance
from idiolect.reproduction.quadratic_curves import expected_error


def test_the_distance_is_to_the_mean_of_what_rows_ask_for():
    roots = torch.tensor([[1.0, 2.0]] * 3)
    centres = torch.tensor([[1.0, 5.0], [3.0, 6.0], [100.0, 100.0]])  # the last row only pads
    model = torch.tensor([5.0, 2.5])
    batch = Batch(roots, roots * centres, torch.tensor([1.0, 1.0, 0.0]))
    found = squared_distance(Task("regression", 2), roots * model, batch)
    assert float(found) == pytest.approx((5 - 2) ** 2 + (2.5 - 5.5) ** 2)


def test_the_expected_error_is_the_mean_over_many_trainings():
    """Local SGD simulated with numpy on the federation's own rows."""
    data = {"seed": 3, "clients": 4, "dimensions": 3, "rows": 12}
    data |= {"smallest": 1.0, "largest": 1.0, "noise": 1.0}
    federation = quadratics(**data, heterogeneity=0.5)
    asked = (
        federation.targets.double().numpy().reshape(4, 12, 3)
    )  # curvature 1: rows are the centres asked for
    optima, draw, errors = asked.mean(1), np.random.default_rng(0), []
    for _ in range(4000):
        shared = np.zeros(3)
        for _ in range(3):
            ends = []
            for own in asked:
                model = shared.copy()
                for row in draw.permutation(12)[:2]:
                    model -= 0.2 * (model - own[row])
                ends.append(model)
            shared = np.mean(ends, axis=0)
        errors.append(((shared - optima) ** 2).sum(1).mean())
    training = {"local_steps": 2, "rounds": 3, "batch_size": 1, "data": data}
    expected = expected_error(0.5, shared_rate=0.2, personal_rate=0.0, **training)
    assert expected == pytest.approx(np.mean(errors), abs=4 * np.std(errors) / len(errors) ** 0.5)


def test_the_distance_can_be_what_a_run_is_judged_by():
    run = idiolect.train(
        "local",
        quadratics(seed=0, clients=3, dimensions=2),
        model="quadratic",
        rounds=60,
        lr=0.9,
        batch_size="all",
        metrics="idiolect.reproduction.coordinates:squared_distance",
        metric="squared_distance",
    )
    assert run.summary.loc["personal", "mean"] < 1e-6
