"""pFedMe against a transcription of spec 6.9, and its reduction to FedAvg."""

from typing import Any

import numpy as np
import pytest

from idiolect.methods.fedavg import FedAvg
from idiolect.methods.pfedme import PFedMe
from idiolect.participation import Participation
from idiolect.simulation import EngineName
from paper.problems import ENGINES, Softmax, close, vector

ROUNDS, STEPS = 5, 3
LAMBDA, ETA, INNER_RATE, INNER_STEPS = 2.5, 0.15, 0.2, 3


def pfedme(**options: Any) -> PFedMe:
    settings = {
        "moreau_weight": LAMBDA,
        "learning_rate": ETA,
        "inner_rate": INNER_RATE,
        "inner_steps": INNER_STEPS,
    }
    return PFedMe(local_steps=STEPS, **(settings | options))


def transcription(
    problem: Softmax, *, beta: float, everybody: bool, cold: bool = False, by_samples: bool = False
) -> dict[str, np.ndarray]:
    """Spec 6.9 with the client half of 4.5, written from the text alone."""
    n, w = problem.clients, problem.start()
    thetas, copies = np.tile(w, (n, 1)), np.tile(w, (n, 1))
    for r in range(ROUNDS):
        asked = problem.asked(r)
        for i in range(n) if everybody else asked:
            local, theta = w.copy(), w.copy()
            for s in range(STEPS):
                rows = problem.batch(i, r, s)
                theta = local.copy() if cold else theta
                for _ in range(INNER_STEPS):
                    theta = theta - INNER_RATE * (problem.gradient(theta, rows) + LAMBDA * (theta - local))
                local = local - ETA * LAMBDA * (local - theta)
            thetas[i], copies[i] = theta, local
        shares = problem.sizes[asked] if by_samples else np.ones(len(asked))
        w = (1 - beta) * w + beta * (shares / shares.sum()) @ copies[asked]
    return {"w": w, "theta": thetas, "copies": copies}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("options", "transcribed"),
    [
        ({"server_mixing": 1.4}, {"beta": 1.4, "everybody": True}),
        ({"trains": "asked"}, {"beta": 1.0, "everybody": False}),
        (
            {"inner_start": "cold", "weighting": "samples"},
            {"beta": 1.0, "everybody": True, "cold": True, "by_samples": True},
        ),
    ],
    ids=["everybody trains", "asked train", "cold, by samples"],
)
def test_transcription(engine: EngineName, options: dict[str, Any], transcribed: dict[str, Any]) -> None:
    problem = Softmax()
    run = problem.simulate(pfedme(**options), engine).play(ROUNDS)
    expected = transcription(problem, **transcribed)
    predictors = run.predictors()
    assert close(vector(run.server.w), expected["w"])
    assert close(vector(predictors["global"])[1], expected["w"])
    assert close(vector(predictors["localized"]), expected["copies"])
    assert close(vector(predictors["personal"]), expected["theta"])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("trains", ["everybody", "asked"])
def test_one_inner_step_of_rate_1_over_lambda_is_fedavg(engine: EngineName, trains: str) -> None:
    problem = Softmax()
    one_step = {"inner_steps": 1, "inner_rate": 1 / LAMBDA, "inner_start": "cold"}
    ours = problem.simulate(pfedme(trains=trains, **one_step), engine).play(ROUNDS)
    theirs = problem.simulate(FedAvg(learning_rate=ETA, local_steps=STEPS), engine).play(ROUNDS)
    assert close(vector(ours.server.w), vector(theirs.server.w), 1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_personal_model_is_theta_and_not_the_local_copy(engine: EngineName) -> None:
    """The well-known code evaluates w_i under the name of θ_i; here they are told apart."""
    run = Softmax().simulate(pfedme(), engine).play(2)
    predictors = run.predictors()
    assert not close(vector(predictors["personal"]), vector(predictors["localized"]), 1e-3)


@pytest.mark.parametrize("engine", ENGINES)
def test_only_asked_clients_upload(engine: EngineName) -> None:
    problem = Softmax()
    result = problem.simulate(pfedme(), engine).advance()
    asked = problem.asked(0)
    assert (result.up_bits > 0).nonzero()[:, 0].tolist() == asked
    assert (result.down_bits > 0).all()


@pytest.mark.parametrize("engine", ENGINES)
def test_who_else_trains_does_not_change_how_often_a_draw_counts(engine: EngineName) -> None:
    problem = Softmax()
    plan = Participation(sampling="proportional").bind(problem.federation.names)
    ends = [
        vector(problem.simulate(pfedme(trains=trains), engine, plan=plan).play(ROUNDS).server.w)
        for trains in ("everybody", "asked")
    ]
    assert close(*ends, 1e-12)
