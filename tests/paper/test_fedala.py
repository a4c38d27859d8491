"""FedALA against a transcription in plain torch, and its identities P29 to P33. Spec 8.7."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from idiolect.core import Batch, Objective, rng, tree
from idiolect.methods._mixing import Blend, Learning, sample
from idiolect.methods.catalogue import find_method
from idiolect.methods.fedala import Client, FedALA
from idiolect.methods.fedavg import FedAvg
from idiolect.methods.local import Local
from idiolect.simulation import EngineName, Simulation
from idiolect.testing.problems import Quadratics
from paper.heads import (
    ALL,
    BODY,
    CLIENTS,
    DATA,
    ENGINES,
    HEAD,
    SIZES,
    START,
    Model,
    asked,
    assert_close,
    assert_same,
    average,
    batch,
    cross_entropy,
    descend,
    rows_of,
    same,
    simulate,
    stacked,
)

each_engine = pytest.mark.parametrize("engine", ENGINES)
ETA, STEPS, ROUNDS = 0.3, 3, 5
OPTIONS: dict[str, Any] = {"lr": ETA, "local_steps": STEPS}
MIXING: dict[str, Any] = {
    "mixing_rate": 2.0, "mixing_share": 0.6, "mixing_batch": 4, "start_passes": 13, "start_spread": 0.01,
}  # fmt: skip


def mixed(own: Model, shared: Model, weights: Model) -> Model:
    return {
        name: own[name] + weights[name] * (shared[name] - own[name]) if name in weights else shared[name]
        for name in ALL
    }


def mixing_batches(client: int, key: Tensor) -> list[tuple[Tensor, Tensor]]:
    """A keyed sample of the client's rows, in batches of four."""
    x, y = rows_of(client)
    size = torch.tensor(len(y))
    count = max(math.ceil(0.6 * len(y)), min(4, len(y)))
    chosen = rng.permute(torch.arange(count), size, rng.fold(key, rng.key(0, "mixing")))
    return [(x[part], y[part]) for part in chosen.split(4)]


def one_pass_in_full(
    own: Model, shared: Model, weights: Model, batches: list[tuple[Tensor, Tensor]]
) -> tuple[Model, float]:
    losses = []
    for x, y in batches:
        at = mixed(own, shared, weights)
        losses.append(float(cross_entropy(at, x, y)))  # without the l2 term
        # A step of length one along the gradient: what moves is the gradient.
        moved = descend(at, lambda q, x=x, y=y: cross_entropy(q, x, y), HEAD, 1.0)
        weights = {
            name: (value - 2.0 * (at[name] - moved[name]) * (shared[name] - own[name])).clamp(0, 1)
            for name, value in weights.items()
        }
    return weights, sum(losses) / len(losses)


def transcription(keys: dict[tuple[int, int], Tensor]) -> tuple[Model, list[Model], list[Model], list[int]]:
    """w, the w_i, the A_i, and how many passes each client's first learning took."""
    w, own = START, [START for _ in CLIENTS]
    weights = [{name: torch.ones_like(START[name]) for name in HEAD} for _ in CLIENTS]
    passes = [0 for _ in CLIENTS]
    for r in range(ROUNDS):
        for i in asked(r):
            batches = mixing_batches(i, keys[i, r])
            if passes[i]:
                weights[i], _ = one_pass_in_full(own[i], w, weights[i], batches)
            elif not same({n: own[i][n] for n in HEAD}, {n: w[n] for n in HEAD}):
                losses: list[float] = []
                while len(losses) < 13:
                    weights[i], loss = one_pass_in_full(own[i], w, weights[i], batches)
                    losses.append(loss)
                    last = torch.tensor(losses[-10:], dtype=torch.float64)
                    if len(last) == 10 and last.std(correction=0) < 0.01:
                        break
                passes[i] = len(losses)
            own[i] = mixed(own[i], w, weights[i])
            for c in range(STEPS):
                x, y = batch(i, r, c)
                own[i] = descend(own[i], lambda q, x=x, y=y: cross_entropy(q, x, y), ALL, ETA)
        w = average([own[i] for i in asked(r)], SIZES[asked(r)])
    return w, own, weights, passes


def keys_of(simulation: Simulation) -> dict[tuple[int, int], Tensor]:
    setting = simulation.engine.setting
    return {(i, r): setting.client_key(torch.tensor(i), r) for i in CLIENTS for r in range(ROUNDS + 1)}


@each_engine
def test_fedala_matches_its_transcription(engine: EngineName) -> None:
    simulation = simulate(FedALA(**OPTIONS, **MIXING), engine).play(ROUNDS)
    keys = keys_of(simulation)
    w, own, weights, passes = transcription(keys)
    assert len({count for count in passes if count}) > 1  # some stopped early, some did not
    assert_close(simulation.server.w, w)
    models = simulation.predictors()
    assert_close(models["localized"], stacked(own))
    assert_close(simulation.clients().weights, stacked(weights))
    personal = []
    for i in CLIENTS:
        learned, _ = one_pass_in_full(own[i], w, weights[i], mixing_batches(i, keys[i, ROUNDS]))
        personal.append(mixed(own[i], w, learned))
    assert_close(models["personal"], stacked(personal))


def with_weights(simulation: Simulation, value: float) -> Simulation:
    """Every client's weights at this value, as if they had been learned."""
    clients: Client = simulation.clients()
    weights = tree.map_tree(lambda leaf: torch.full_like(leaf, value), clients.weights)
    simulation.engine.setting.store.put(torch.arange(len(SIZES)), clients._replace(weights=weights))
    return simulation


@each_engine
def test_p29_weights_of_one_are_fedavg(engine: EngineName) -> None:
    ours = simulate(FedALA(mixing_rate=0.0, **OPTIONS), engine).play(ROUNDS)
    fedavg = simulate(FedAvg(weighting="samples", **OPTIONS), engine).play(ROUNDS)
    assert_same(ours.server.w, fedavg.server.w, engine)
    assert_same(ours.predictors()["localized"], fedavg.predictors()["localized"], engine)
    assert same(ours.predictors()["personal"], ours.predictors()["global"])


@each_engine
def test_p30_weights_of_zero_on_the_head_are_fedper_and_on_everything_local(engine: EngineName) -> None:
    ours = with_weights(simulate(FedALA(mixing_rate=0.0, **OPTIONS), engine), 0.0).play(ROUNDS)
    fedper = simulate(find_method("fedper")(weighting="samples", **OPTIONS), engine).play(ROUNDS)
    assert_same({name: ours.server.w[name] for name in BODY}, fedper.server.shared, engine)
    for kind in ("localized", "personal"):
        assert_same(ours.predictors()[kind], fedper.predictors()[kind], engine)
    whole = with_weights(simulate(FedALA(mixed=["*"], mixing_rate=0.0, **OPTIONS), engine), 0.0).play(ROUNDS)
    alone = simulate(Local(**OPTIONS), engine).play(ROUNDS)
    assert_same(whole.predictors()["localized"], alone.predictors()["personal"], engine)


@each_engine
def test_p31_weights_move_from_the_second_round_on(engine: EngineName) -> None:
    simulation = simulate(FedALA(**OPTIONS), engine, plan=None).play(1)
    assert all((leaf == 1).all() for leaf in tree.leaves(simulation.clients().weights))
    assert (simulation.clients().started == -1).all()
    simulation.play(1)
    assert (simulation.clients().started == 1).all()
    assert simulation.server.started.all()
    moved = torch.stack([(leaf != 1).flatten(1).any(1) for leaf in simulation.clients().weights.values()])
    assert moved.any(0).all()


def test_p32_the_weights_gradient_is_the_layers_times_the_way_to_the_shared_model() -> None:
    x, y = rows_of(2)
    objective = simulate(FedALA()).engine.setting.objective
    shared = {name: value + 0.3 * torch.sin(7 * value + 1) for name, value in START.items()}
    blend = Blend.of(START, shared, HEAD)
    weights = {name: 0.5 + 0.4 * torch.sin(9 * START[name]) for name in HEAD}
    rows = Batch(x, y, torch.full((len(y),), 1 / len(y), dtype=torch.float64))
    rate = 1e-3  # too short to meet a bound
    moved, _ = blend.moved(weights, rate, rows, objective)
    for name in HEAD:
        slopes = (weights[name] - moved[name]).flatten() / rate
        for place in range(weights[name].numel()):
            loss = []
            for sign in (1, -1):
                nudged = weights[name].flatten().clone()
                nudged[place] += sign * 1e-6
                at = {**weights, name: nudged.reshape(weights[name].shape)}
                # The l2 term of the mixed part alone: the rest stands still.
                loss.append(float(objective.loss(blend.model(at), rows)))
            assert float(slopes[place]) == pytest.approx((loss[0] - loss[1]) / 2e-6, abs=1e-7)


def test_p33_on_a_quadratic_the_weights_reach_the_best_mixture() -> None:
    problem = Quadratics.asymmetric(clients=1, dimension=9)
    data = problem.federation()
    simulation = Simulation(FedALA(mixed=["*"]), problem.model, data, batch_size=None, dtype=torch.float64)
    objective: Objective = simulation.engine.setting.objective
    best = problem.optimum[0]
    angles = torch.arange(9, dtype=torch.float64)
    own, shared = best + 0.7 * torch.cos(angles), best + torch.sin(angles)
    blend = Blend.of({"weight": own}, {"weight": shared}, ("weight",))
    rows = Batch(data.inputs, data.targets, torch.ones(1, dtype=torch.float64))
    weights = {"weight": torch.ones(9, dtype=torch.float64)}
    for _ in range(40):
        weights = Learning(blend, [rows] * 50, objective, 0.3).one_pass(weights)[0]
    expected = ((best - own) / (shared - own)).clamp(0, 1)
    assert torch.allclose(weights["weight"], expected, atol=1e-6)
    assert 0 < int(((expected > 0) & (expected < 1)).sum()) < 9


@each_engine
def test_who_has_not_learned_yet_is_asked_to_in_the_round_it_comes_back(engine: EngineName) -> None:
    simulation = simulate(FedALA(**OPTIONS), engine)
    plain = simulate(FedAvg(**OPTIONS), engine)
    first: dict[int, int] = {}
    for r in range(ROUNDS):
        more = simulation.advance().down_bits.sum() - plain.advance().down_bits.sum()
        for i in asked(r):
            if r > 0:
                first.setdefault(i, r)
        starters = sum(start == r for start in first.values())
        assert more == starters * 64 * sum(value.numel() for value in START.values())
    assert simulation.clients().started.tolist() == [first.get(i, -1) for i in CLIENTS]


@each_engine
def test_fedalas_newcomer_trains_a_copy_of_the_shared_model(engine: EngineName) -> None:
    trained = simulate(FedALA(**OPTIONS), engine, plan=None).play(3)
    fresh = trained.newcomers(DATA, round_number=7).predictors()
    expected = []
    for i in CLIENTS:
        w = trained.server.w
        for c in range(STEPS):
            x, y = batch(i, 7, c)
            w = descend(w, lambda q, x=x, y=y: cross_entropy(q, x, y), ALL, ETA)
        expected.append(w)
    assert_close(fresh["localized"], stacked(expected))
    assert same(fresh["personal"], fresh["localized"])


def test_a_sample_has_each_row_once_and_at_least_a_batch() -> None:
    engine = simulate(FedALA()).engine
    for i in CLIENTS:
        site = engine.site_of_rows(torch.tensor(i), DATA.train, 3)  # type: ignore[attr-defined]
        for share, size in ((0.5, 4), (0.01, 5), (1.0, 100)):
            batches = sample(site, share, size)
            n = int(SIZES[i])
            count = max(math.ceil(share * n), min(size, n))
            taken = [tuple(row.tolist()) for b in batches for row in b.inputs[b.weights > 0]]
            assert len(taken) == len(set(taken)) == count
            assert all((b.weights > 0).all() for b in batches)  # a client alone has nothing that only pads
            assert all(float(b.weights.sum()) == pytest.approx(1) for b in batches)
