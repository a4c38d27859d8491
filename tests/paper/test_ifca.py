"""IFCA against a transcription of spec 6.10, and its reduction to FedAvg."""

from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from idiolect.core import tree
from idiolect.methods.fedavg import FedAvg
from idiolect.methods.ifca import IFCA
from idiolect.simulation import EngineName
from paper.problems import ENGINES, Softmax, close, identical, vector

ROUNDS, STEPS, RATE = 5, 3, 0.3


def transcription(
    problem: Softmax, models: np.ndarray, *, gradients: bool = False, by_samples: bool = False
) -> dict[str, Any]:
    """Spec 6.10, written from the text alone; the initial models are given."""
    models = models.copy()
    n = problem.clients
    labels, copies, empty = np.zeros(n, dtype=int), np.tile(models[0], (n, 1)), 0
    for r in range(ROUNDS):
        asked = problem.asked(r)
        slopes = {}
        for i in asked:
            labels[i] = np.argmin([problem.loss(model, problem.rows(i)) for model in models])
            w = models[labels[i]].copy()
            slopes[i] = problem.gradient(w, problem.batch(i, r, 0))
            for t in range(1 if gradients else STEPS):
                w = w - RATE * problem.gradient(w, problem.batch(i, r, t))
            copies[i] = w
        shares = {i: problem.sizes[i] if by_samples else 1 for i in asked}
        for j in range(len(models)):
            members = [i for i in asked if labels[i] == j]
            empty += not members
            if gradients:
                models[j] = models[j] - RATE / len(asked) * sum(slopes[i] for i in members)
            elif members:
                total = sum(shares[i] for i in members)
                models[j] = sum(shares[i] / total * copies[i] for i in members)
    return {"models": models, "labels": labels, "copies": copies, "empty": empty}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("options", "transcribed"),
    [
        ({"groups": 3, "local_steps": STEPS}, {}),
        ({"groups": 3, "local_steps": STEPS, "weighting": "samples"}, {"by_samples": True}),
        ({"groups": 3, "local_steps": 1, "averaging": "gradients"}, {"gradients": True}),
    ],
    ids=["models", "samples", "gradients"],
)
def test_transcription(engine: EngineName, options: dict[str, Any], transcribed: dict[str, Any]) -> None:
    problem = Softmax()
    run = problem.simulate(IFCA(learning_rate=RATE, **options), engine)
    expected = transcription(problem, vector(run.server.models), **transcribed)
    run.play(ROUNDS)
    predictors = run.predictors()
    assert expected["empty"] > 0, "the problem must have groups that nobody chooses in some round"
    assert len(set(expected["labels"])) > 1, "and groups to choose between"
    assert run.server.labels.tolist() == expected["labels"].tolist()
    assert close(vector(run.server.models), expected["models"])
    assert close(vector(predictors["localized"]), expected["copies"])
    assert close(vector(predictors["group"]), expected["models"][expected["labels"]])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_one_group_is_fedavg(engine: EngineName, weighting: str) -> None:
    problem = Softmax()
    settings = {"learning_rate": RATE, "local_steps": STEPS, "weighting": weighting}
    ours = problem.simulate(IFCA(groups=1, **settings), engine).play(ROUNDS)
    theirs = problem.simulate(FedAvg(**settings), engine).play(ROUNDS)
    assert identical(tree.row(ours.server.models, 0), theirs.server.w, engine)
    assert identical(ours.clients().w, theirs.clients().w, engine)


def test_initial_models_differ_and_follow_from_the_seed() -> None:
    problem = Softmax()
    start, again = (problem.simulate(IFCA(groups=4), "sequential").server.models for _ in range(2))
    other = problem.simulate(IFCA(groups=4), "sequential", seed=6).server.models
    assert close(vector(start)[0], problem.start())
    assert torch.pdist(tree.flatten_rows(start)).min() > 0.1
    assert np.array_equal(vector(start), vector(again))
    assert not close(vector(start)[1:], vector(other)[1:], 0.01)


def test_gradient_averaging_needs_single_steps() -> None:
    with pytest.raises(ValidationError, match="averaging=gradients needs local_steps=1, not 10"):
        IFCA(averaging="gradients")
