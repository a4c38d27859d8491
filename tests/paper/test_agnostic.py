"""AFL, DRFA and agnostic APFL against transcriptions of spec 6.12, and their reductions."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from idiolect.core import rng
from idiolect.core.cohort import Cohort
from idiolect.methods._shares import drawn_by_share, drawn_uniformly
from idiolect.methods.afl import AFL
from idiolect.methods.agnostic_apfl import AgnosticAPFL
from idiolect.methods.apfl import APFL
from idiolect.methods.drfa import DRFA
from idiolect.methods.fedavg import FedAvg
from idiolect.participation import Participation
from idiolect.participation.sampling import Uniform
from idiolect.simulation import EngineName
from paper.problems import ENGINES, Softmax, close, identical, vector

ROUNDS, STEPS, RATE = 4, 3, 0.3
SHARES_RATE = {"name": "per_round", "initial": 0.05, "factor": 0.9}


def simplex(v: np.ndarray) -> np.ndarray:
    """The projection by bisection on the threshold t in Σ max(v - t, 0) = 1."""
    low, high = v.min() - 1, v.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(v - middle, 0).sum() > 1 else (low, middle)
    return np.maximum(v - (low + high) / 2, 0)


def afl_transcription(problem: Softmax) -> dict[str, np.ndarray]:
    """One step of descent and one of ascent in a round."""
    n, w = problem.clients, problem.start()
    q = problem.sizes / problem.sizes.sum()
    copies = np.tile(w, (n, 1))
    for r in range(ROUNDS):
        asked = problem.asked(r)
        chance = len(asked) / n
        step, losses = np.zeros_like(w), np.zeros(n)
        for i in asked:
            rows = problem.batch(i, r, 0)
            slope = problem.gradient(w, rows)
            losses[i] = problem.loss(w, rows) / chance
            copies[i] = w - RATE * slope
            step += q[i] / chance * slope
        w = w - RATE * step
        q = simplex(q + 0.05 * 0.9**r * losses)
    return {"w": w, "q": q, "copies": copies}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("participation", [1.0, 0.6])
def test_afl_transcription(engine: EngineName, participation: float) -> None:
    problem = Softmax(participation=participation)
    run = problem.simulate(AFL(learning_rate=RATE, shares_rate=SHARES_RATE), engine).play(ROUNDS)
    expected = afl_transcription(problem)
    assert close(vector(run.server.w), expected["w"])
    assert close(run.server.shares, expected["q"])
    assert close(vector(run.predictors()["localized"]), expected["copies"])


@pytest.mark.parametrize("engine", ENGINES)
def test_afl_with_fixed_shares_is_weighted_minibatch_sgd(engine: EngineName) -> None:
    """FedAvg with one local step and weights n_i / n is that mini-batch SGD."""
    problem = Softmax(participation=1.0)
    ours = problem.simulate(AFL(learning_rate=RATE, shares_rate=0.0), engine).play(ROUNDS)
    sgd = FedAvg(learning_rate=RATE, local_steps=1, weighting="samples")
    theirs = problem.simulate(sgd, engine).play(ROUNDS)
    assert close(vector(ours.server.w), vector(theirs.server.w), 1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_afl_counts_a_client_as_often_as_it_was_drawn(engine: EngineName) -> None:
    """Shares n_i / n over the m n_i / n draws that are expected: every draw weighs 1/m, as in FedAvg."""
    problem = Softmax()
    plan = Participation(sampling="proportional").bind(problem.federation.names)
    ours = problem.simulate(AFL(learning_rate=RATE, shares_rate=0.0), engine, plan=plan).play(ROUNDS)
    theirs = problem.simulate(FedAvg(learning_rate=RATE, local_steps=1), engine, plan=plan).play(ROUNDS)
    assert close(vector(ours.server.w), vector(theirs.server.w), 1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_afl_raises_the_share_of_the_client_with_the_largest_loss(engine: EngineName) -> None:
    problem = Softmax(participation=1.0)
    run = problem.simulate(AFL(shares_rate=0.05), engine)
    before = run.server.shares
    losses = np.array([problem.loss(problem.start(), problem.batch(i, 0, 0)) for i in range(5)])
    gained = (run.advance().server.shares - before).numpy()
    assert gained.argmax() == losses.argmax()
    assert gained.argmin() == losses.argmin()


def drfa_transcription(problem: Softmax, alpha: float | None = None) -> dict[str, np.ndarray]:
    """Two exchanges in a round; the random draws are given. With `alpha`, APFL's v beside w."""
    n, w = problem.clients, problem.start()
    q = problem.sizes / problem.sizes.sum()
    copies, v = np.tile(w, (n, 1)), np.tile(w, (n, 1))
    m = max(1, int(problem.participation * n))
    for r in range(ROUNDS):
        key = rng.key(problem.seed, "ask", r)
        chances = rng.uniform(rng.fold(key, 1), m).numpy()
        drawn = [int((np.cumsum(q) <= u).sum()) for u in chances]
        reporting = rng.permutation(rng.fold(key, 2), n)[:m].tolist()
        common_step = 1 + int(rng.below(rng.fold(rng.key(problem.seed, "server"), r), STEPS))
        snapshots = {}
        for i in sorted(set(drawn)):
            x = w.copy()
            for t in range(1, STEPS + 1):
                rows = problem.batch(i, r, t - 1)
                if alpha is not None:
                    mixed = alpha * v[i] + (1 - alpha) * x
                    v[i] = v[i] - RATE * alpha * problem.gradient(mixed, rows)
                x = x - RATE * problem.gradient(x, rows)
                if t == common_step:
                    snapshots[i] = x.copy()
            copies[i] = x
        w = np.mean([copies[i] for i in drawn], axis=0)
        u = np.mean([snapshots[i] for i in drawn], axis=0)
        slope = np.zeros(n)
        for i in reporting:
            slope[i] = n / m * problem.loss(u, problem.rows(i))
        q = simplex(q + STEPS * 0.05 * 0.9**r * slope)
    return {"w": w, "q": q, "copies": copies, "v": v}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("participation", [1.0, 0.6])
def test_drfa_transcription(engine: EngineName, participation: float) -> None:
    problem = Softmax(participation=participation)
    method = DRFA(learning_rate=RATE, local_steps=STEPS, shares_rate=SHARES_RATE)
    run = problem.simulate(method, engine).play(ROUNDS)
    expected = drfa_transcription(problem)
    assert close(vector(run.server.w), expected["w"])
    assert close(run.server.shares, expected["q"])
    assert close(vector(run.predictors()["localized"]), expected["copies"])


@dataclass(frozen=True)
class SharesPlan:
    """The participants whom DRFA draws with shares that stay n_i / n."""

    count: int

    def cohort(self, seed: int, round_number: int, sizes: Tensor) -> Cohort:
        plan = Uniform(count=self.count).cohort(seed, round_number, sizes)
        key = rng.fold(rng.key(seed, "ask", round_number), 1)
        return drawn_by_share(sizes / sizes.sum(), plan, key)

    def present(self, round_number: int, clients: int) -> Tensor:
        return torch.ones(clients, dtype=torch.bool)


@pytest.mark.parametrize("engine", ENGINES)
def test_drfa_with_fixed_shares_is_fedavg_on_clients_drawn_by_share(engine: EngineName) -> None:
    problem = Softmax()
    settings = {"learning_rate": RATE, "local_steps": STEPS}
    ours = problem.simulate(DRFA(shares_rate=0.0, **settings), engine).play(ROUNDS)
    theirs = problem.simulate(FedAvg(**settings), engine, plan=SharesPlan(3)).play(ROUNDS)
    assert identical(ours.server.w, theirs.server.w, engine)
    assert identical(ours.clients().w, theirs.clients().w, engine)


def test_draws_are_in_proportion_to_the_shares() -> None:
    shares = torch.tensor([0.5, 0.0, 0.2, 0.3]).double()
    counts, cohort = torch.zeros(4).double(), Uniform().cohort(0, 0, torch.tensor([5, 6, 7, 8]))
    draws = 500
    for number in range(draws):
        drawn = drawn_by_share(shares, cohort, rng.key(1, "draws", number))
        assert drawn.multiplicity is not None
        assert drawn.multiplicity.sum() == 4
        counts[drawn.ids] += drawn.multiplicity
    deviation = (shares * (1 - shares) / (4 * draws)).sqrt()
    assert ((counts / (4 * draws) - shares).abs() <= 4 * deviation).all()
    assert counts[1] == 0


def test_the_second_sample_is_uniform_without_replacement() -> None:
    counts, cohort = torch.zeros(4).double(), Uniform(count=2).cohort(0, 0, torch.tensor([5, 6, 7, 8]))
    for number in range(500):
        drawn = drawn_uniformly(cohort, rng.key(1, "draws", number))
        assert len(drawn.ids.unique()) == 2
        counts[drawn.ids] += 1
    assert ((counts / 500 - 0.5).abs() <= 4 * (0.25 / 500) ** 0.5).all()


def test_drawn_clients_keep_the_fate_that_the_plan_gave_them() -> None:
    plan = Uniform(count=3).cohort(0, 0, torch.tensor([5, 6, 7, 8]))
    plan = Cohort(
        plan.ids, torch.tensor([0.2, 0.5, 0.8]).double(), plan.replied, plan.inclusion, plan.population
    )
    drawn = drawn_by_share(torch.full((4,), 0.25).double(), plan, rng.key(3, "fate"))
    fates = dict(zip(plan.ids.tolist(), plan.work.tolist(), strict=True))
    for client, work in zip(drawn.ids.tolist(), drawn.work.tolist(), strict=True):
        assert work == fates.get(client, work)
        assert work in fates.values()


def agnostic(**options: Any) -> AgnosticAPFL:
    return AgnosticAPFL(learning_rate=RATE, local_steps=STEPS, shares_rate=SHARES_RATE, **options)


@pytest.mark.parametrize("engine", ENGINES)
def test_agnostic_apfl_transcription(engine: EngineName) -> None:
    problem = Softmax()
    run = problem.simulate(agnostic(mixing=0.4), engine).play(ROUNDS)
    expected = drfa_transcription(problem, alpha=0.4)
    assert close(vector(run.clients().v), expected["v"])
    assert close(vector(run.predictors()["personal"]), 0.4 * expected["v"] + 0.6 * expected["w"])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("mixing", [0.0, 0.7, "adaptive"])
def test_agnostic_apfl_has_the_shared_model_of_drfa(engine: EngineName, mixing: float | str) -> None:
    problem = Softmax()
    ours = problem.simulate(agnostic(mixing=mixing), engine).play(ROUNDS)
    method = DRFA(learning_rate=RATE, local_steps=STEPS, shares_rate=SHARES_RATE)
    theirs = problem.simulate(method, engine).play(ROUNDS)
    assert identical(ours.server.w, theirs.server.w, engine)
    assert close(ours.server.shares, theirs.server.shares, 1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_agnostic_apfl_with_fixed_shares_is_apfl_on_the_same_draws(engine: EngineName) -> None:
    problem = Softmax()
    settings = {"learning_rate": RATE, "local_steps": STEPS, "initial_mixing": 0.3}
    ours = problem.simulate(AgnosticAPFL(shares_rate=0.0, **settings), engine).play(ROUNDS)
    theirs = problem.simulate(APFL(**settings), engine, plan=SharesPlan(3)).play(ROUNDS)
    assert close(vector(ours.predictors()["personal"]), vector(theirs.predictors()["personal"]), 1e-12)
    assert close(ours.clients().alpha, theirs.clients().alpha, 1e-12)
