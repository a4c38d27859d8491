"""Averages over steps, and the spread of clients, against what NumPy says of the same numbers."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from idiolect.core import tree
from idiolect.core.averages import Average, Path
from idiolect.core.schedule import Clock, InverseTime, round_total
from idiolect.core.tree import Params

numbers = st.floats(-100, 100)


def params(values: np.ndarray) -> Params:
    """Three numbers as a model with two tensors."""
    vector = torch.tensor(values)
    return {"a": vector[:2], "b": vector[2:]}


@given(arrays(float, (4, 3), elements=numbers), arrays(float, 4, elements=st.floats(0.1, 5)))
def test_average_is_the_weighted_mean(models: np.ndarray, weights: np.ndarray) -> None:
    average = Average.empty(params(models[0]))
    for model, weight in zip(models, weights, strict=True):
        average = average.plus(params(model), float(weight))
    expected = np.average(models, axis=0, weights=weights)
    assert np.allclose(tree.flatten(average.mean(params(models[0]))), expected, rtol=1e-12, atol=1e-11)


def test_an_average_catches_up_with_a_model_that_stood_still_and_is_another_while_empty() -> None:
    model, still = params(np.array([2.0, -1.0, 4.0])), params(np.zeros(3))
    average = Average.empty(model).plus(model, 1).caught_up(still, torch.tensor(4))
    assert tree.flatten(average.mean(still)).tolist() == [0.5, -0.25, 1.0]
    assert tree.flatten(Average.empty(model).mean(still)).tolist() == [0, 0, 0]


@given(
    arrays(float, (3, 4, 3), elements=numbers),
    arrays(float, 3, elements=st.floats(0.1, 1)),
    st.lists(st.integers(0, 4), min_size=3, max_size=3),
)
def test_spread_of_a_mean_path_is_the_variance_of_the_clients(
    moves: np.ndarray, weights: np.ndarray, completed: list[int]
) -> None:
    weights = weights / weights.sum()
    paths, seen = [], []
    for client, steps in enumerate(completed):
        path = Path.empty(params(moves[client, 0]), 4)
        for step in range(steps):
            path = path.at(torch.tensor(step), params(moves[client, step]))
        last = moves[client, -1]
        paths.append(path.stopped(torch.tensor(steps), params(last)))
        seen.append([moves[client, k] if k < steps else last for k in range(4)])
    mean_path = tree.weighted_sum(tree.stack(paths), torch.tensor(weights))
    mean = np.einsum("c,ckd->kd", weights, np.array(seen))
    expected = np.einsum("c,ckd->k", weights, (np.array(seen) - mean) ** 2)
    assert np.allclose(mean_path.spread(), expected, rtol=1e-9, atol=1e-9)


def test_the_rates_of_a_round_sum_over_its_steps() -> None:
    schedule = InverseTime(0.5, 0.1)
    clock = Clock(torch.tensor(3), torch.tensor(1), 4)
    assert float(round_total(schedule, clock)) == sum(0.5 / (1 + 0.1 * t) for t in range(12, 16))
