"""FedFomo against a plain float64 transcription, and its identities P39 to P41."""

from dataclasses import replace
from functools import cached_property

import numpy as np
import pytest
import torch

from idiolect.core import rng, tree
from idiolect.core.objective import Objective
from idiolect.data.federation import Federation, Rows
from idiolect.methods.fedfomo import FedFomo, gains_of
from idiolect.methods.local import Local
from idiolect.simulation import Simulation
from paper.problems import ENGINES, Softmax, close, identical, vector

each_engine = pytest.mark.parametrize("engine", ENGINES)


class Validated(Softmax):
    """Of each client the last rows are for validation: 2, 3, 4, .. of them, of client 3 none."""

    @cached_property
    def federation(self) -> Federation:
        whole = super().federation
        rows = [whole.train.of(client) for client in range(len(whole))]
        kept = [0 if client == 3 else 2 + client for client in range(len(whole))]
        train = Rows.of_clients([own[: len(own) - k] for own, k in zip(rows, kept, strict=True)])
        held = Rows.of_clients([own[len(own) - k :] for own, k in zip(rows, kept, strict=True)])
        return replace(whole, train=train, validation=held)

    def validation_loss(self, w: np.ndarray, client: int) -> float:
        rows = self.federation.validation.of(client).numpy()
        return self.loss(w, rows) - 0.5 * self.weight_decay * w @ w if len(rows) else 0.0


def candidates(i, heard, affinity, places, exploration, key):
    """The places of client i, one after the other."""
    left, chosen = [j for j in sorted(heard) if j != i], []
    for place in range(places):
        if not left:
            break
        own = rng.fold(key, i, place)
        if float(rng.uniform(own)) < exploration:
            lots = rng.uniform(rng.fold(own, 1), len(affinity)).numpy()
        else:
            lots = affinity[i]
        best = max(left, key=lambda j: (lots[j], -j))
        chosen.append(best)
        left.remove(best)
    return chosen


def transcribed(problem, rounds, steps, eta, places, exploration, decay, baseline):
    w = np.tile(problem.start(), (problem.clients, 1))
    before, last = w.copy(), w.copy()
    affinity, heard = np.zeros((problem.clients,) * 2), set()
    server_key = rng.key(problem.seed, "server")
    for r in range(rounds):
        key, new_last, new_affinity = rng.fold(server_key, r), last.copy(), affinity.copy()
        for i in problem.asked(r):
            chosen = candidates(i, heard, affinity, places, max(0, exploration - r * decay), key)
            base = (w[i] if baseline == "own" else before[i]).copy()
            others = [last[j] for j in chosen] + ([] if baseline == "own" else [w[i].copy()])
            gains = np.array(
                [
                    (problem.validation_loss(base, i) - problem.validation_loss(other, i))
                    / max(np.linalg.norm(other - base), 1e-12)
                    for other in others
                ]
            )
            positive = np.maximum(gains, 0)
            w[i] = base
            if positive.sum() > 0:
                for weight, other in zip(positive / positive.sum(), others, strict=True):
                    w[i] = w[i] + weight * (other - base)
            before[i] = w[i]
            for k in range(steps):
                w[i] = w[i] - eta * problem.gradient(w[i], problem.batch(i, r, k))
            new_last[i] = w[i]
            for j, gain in zip(chosen, gains, strict=False):
                new_affinity[i, j] += gain
        last, affinity = new_last, new_affinity
        heard |= set(problem.asked(r))
    return w, affinity


@each_engine
@pytest.mark.parametrize("baseline", ["own", "before"])
def test_fedfomo_matches_its_transcription(engine, baseline):
    problem = Validated(participation=0.8)
    method = FedFomo(
        lr=0.2, local_steps=3, candidates=2, exploration=0.6, exploration_decay=0.1, baseline=baseline
    )
    simulation = problem.simulate(method, engine).play(8)
    w, affinity = transcribed(problem, 8, 3, 0.2, 2, 0.6, 0.1, baseline)
    assert close(vector(simulation.predictors()["personal"]), w)
    assert close(simulation.server.affinity, affinity)
    assert (affinity > 0).any()
    assert not affinity[3].any()  # who has no validation rows learns nothing about others


@each_engine
def test_p39_one_client_trains_alone_and_before_can_roll_back(engine):
    problem = Validated(participation=1.0)
    one = problem.federation.subset([2])

    def play(method, rounds):
        return Simulation(method, problem._module, one, dtype=torch.float64, engine=engine).play(rounds)

    ours = play(FedFomo(lr=0.2, local_steps=3), 4)
    alone = play(Local(lr=0.2, local_steps=3), 4)
    assert identical(ours.predictors()["personal"], alone.predictors()["personal"], engine)
    # Steps that overshoot make the model worse: each round begins where the one before began.
    overshot = [play(FedFomo(lr=60.0, local_steps=3, baseline="before"), rounds) for rounds in (1, 2, 3)]
    starts = [vector(simulation.clients().before)[0] for simulation in overshot]
    assert all(np.array_equal(start, problem.start()) for start in starts)
    gentle = play(FedFomo(lr=0.2, local_steps=3, baseline="before"), 3)
    assert not close(vector(gentle.clients().before)[0], problem.start(), 1e-2)


def mixed(models: np.ndarray, scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """What client 4 makes of candidates that the server holds, and its gains; its own model is the last."""
    problem = Validated(participation=1.0)
    simulation = problem.simulate(FedFomo(), "sequential")
    setting, method = simulation.engine.setting, FedFomo()
    objective = Objective(setting.objective.module, setting.objective.task)
    if scale != 1.0:
        data_loss = objective.data_loss
        objective.data_loss = lambda *arguments: scale * data_loss(*arguments)
    site = simulation.engine.site_of_rows(torch.tensor(4), problem.federation.train, 0)
    like = setting.objective.initial_params()
    stacked = tree.unflatten(torch.tensor(models[:-1]), like)
    own = tree.unflatten(torch.tensor(models[-1]), like)
    client = method.client_init(simulation.server, torch.tensor(4))._replace(w=own)
    down = simulation.method.down(simulation.server, torch.tensor([4]))
    known = torch.ones(len(models) - 1, dtype=torch.bool)
    work = method.begin(client, type(down)(stacked, known), replace(site, objective=objective))
    return vector(work.client.w), work.gains.numpy()


def test_p40_none_better_keeps_the_own_one_better_is_taken_whole_and_scale_is_irrelevant():
    problem = Validated()
    own = problem.start()
    slope = problem.gradient(own, problem.federation.validation.of(4).numpy())
    worse, worst, better, best = own + 0.5 * slope, own + slope, own - 0.3 * slope, own - 0.2 * slope[::-1]
    kept, gains = mixed(np.stack([worse, worst, own]))
    assert np.array_equal(kept, own)
    assert (gains < 0).all()
    taken, gains = mixed(np.stack([worse, better, own]))
    assert close(taken, better, 1e-12)
    assert (gains > 0).tolist() == [False, True]
    models = np.stack([better, own - 0.1 * slope + 0.05, best, own])
    assert close(mixed(models, scale=3.7)[0], mixed(models)[0], 1e-12)
    assert close(mixed(models, scale=3.7)[1], 3.7 * mixed(models)[1], 1e-12)


def test_p41_the_gain_of_a_near_model_is_minus_the_slope_towards_it():
    problem = Validated(weight_decay=0.0)
    own, rows = problem.start(), problem.federation.validation.of(1).numpy()
    towards = np.random.default_rng(3).normal(size=own.shape)
    near = own + 1e-6 * towards
    setting = problem.simulate(FedFomo(), "sequential").engine.setting
    like = setting.objective.initial_params()
    base, models = tree.unflatten(torch.tensor(own), like), tree.unflatten(torch.tensor(near[None]), like)
    validation = tree.row(setting.batches.all_rows(problem.federation.validation, torch.tensor([1]), 0), 0)
    gain = float(gains_of(setting.objective, base, models, validation))
    slope = problem.gradient(own, rows) @ towards / np.linalg.norm(towards)
    assert gain == pytest.approx(-slope, abs=1e-5)
    assert abs(slope) > 1e-2


@each_engine
def test_newcomers_begin_with_the_models_that_helped_most(engine):
    problem = Validated(participation=1.0)
    method = FedFomo(lr=0.2, local_steps=3, candidates=2)
    trained = problem.simulate(method, engine).play(4)
    fresh = vector(trained.newcomers(problem.federation, round_number=9).predictors()["personal"])
    affinity, last = trained.server.affinity.numpy(), vector(trained.server.w)
    chosen = sorted(range(problem.clients), key=lambda j: (-affinity[:, j].mean(), j))[:2]
    for i in range(problem.clients):
        w = problem.start()
        gains = [
            (problem.validation_loss(w, i) - problem.validation_loss(last[j], i))
            / np.linalg.norm(last[j] - w)
            for j in chosen
        ]
        positive = np.maximum(gains, 0)
        if positive.sum() > 0:
            w = w + (positive / positive.sum()) @ (last[chosen] - w)
        for k in range(3):
            w = w - 0.2 * problem.gradient(w, problem.batch(i, 9, k))
        assert close(fresh[i], w)


def test_candidates_are_different_others_that_were_heard_and_exploration_fades():
    problem = Validated()
    method = FedFomo(candidates=3, exploration=1.0, exploration_decay=0.5)
    server = problem.simulate(method, "sequential").server
    heard = torch.tensor([True, True, False, True, True])
    affinity = torch.tensor([[0.0, 1, 9, 2, 2]]).repeat(5, 1).double()
    drawn = set()
    for r in range(6):
        at = server._replace(heard=heard, affinity=affinity, round=torch.tensor(r))
        chosen, known = method.choose(at, torch.arange(5))
        for i in range(5):
            own = chosen[i][known[i]].tolist()
            assert len(set(own)) == len(own) == 3
            assert not {i, 2} & set(own)
        if r >= 2:  # ε = 0: the largest affinity first, of equal ones the lowest number
            assert chosen[2].tolist() == [3, 4, 1]
        else:
            drawn |= {tuple(row) for row in chosen.tolist()}
    assert len(drawn) > 5


@each_engine
def test_where_nobody_has_validation_rows_everybody_trains_alone(engine):
    problem = Validated(participation=1.0)
    nobody = Rows.of_clients([torch.empty(0, dtype=torch.int64)] * problem.clients)
    data = replace(problem.federation, validation=nobody)

    def play(method):
        return Simulation(method, problem._module, data, dtype=torch.float64, engine=engine).play(3)

    ours, alone = play(FedFomo(lr=0.2, local_steps=2)), play(Local(lr=0.2, local_steps=2))
    assert identical(ours.predictors()["personal"], alone.predictors()["personal"], engine)
