"""Outer steps around methods: the equations, what moves, and who is refused."""

import numpy as np
import pytest
import torch

from idiolect.aggregation.outer import Outer
from idiolect.aggregation.robust import Robust
from idiolect.aggregation.rules import Clip
from idiolect.codecs.choice import CodecConfig
from idiolect.core import tree
from idiolect.core.outer_step import OUTER_STEPS, Adagrad, Adam, AvgM, Yogi
from idiolect.errors import UserError
from idiolect.methods.catalogue import METHODS
from idiolect.methods.fedamp import FedAMP, HeurFedAMP
from idiolect.methods.fedavg import FedAvg
from idiolect.methods.fedfomo import FedFomo
from idiolect.methods.fedopt import FedAdagrad, FedAdam, FedAvgM, FedYogi
from idiolect.methods.fedproto import FedProto
from idiolect.methods.ifca import IFCA
from idiolect.methods.local import Local
from idiolect.methods.local_sgd import LocalSGD
from idiolect.methods.perm import PERM, PERMTwoStage
from idiolect.methods.personal_parts import FedPer
from idiolect.methods.pfedkm import PFedKM
from idiolect.methods.scaffold import Scaffold
from idiolect.methods.submodels import FederatedDropout, FedRolex, HeteroFL
from idiolect.methods.vrl_sgd import VRLSGD
from idiolect.participation.plan import Participation
from idiolect.participation.work import Fixed
from idiolect.runs.config import resolve
from idiolect.runs.settings import normalise
from idiolect.testing import check_method
from paper.network import (
    BODY,
    DATA,
    HEAD,
    RATE,
    START,
    asked,
    assert_close,
    average,
    batch,
    descend,
    same,
    simulate,
)
from paper.problems import ENGINES

each_engine = pytest.mark.parametrize("engine", ENGINES)
FEDAVG = FedAvg(lr=RATE, local_steps=3)


def transcribed(rounds, step):
    """FedAvg's clients, and a server that has `step(w, change, m, v, round)` for each tensor."""
    w = dict(START)
    memory = {name: (np.zeros_like(value), None) for name, value in w.items()}
    for r in range(rounds):
        uploads = []
        for i in asked(r):
            local = w
            for call in range(3):
                local = descend(local, BODY + HEAD, batch(i, r, call))
            uploads.append(local)
        mean = average(uploads, BODY + HEAD)
        for name in w:
            w[name], memory[name] = step(w[name], mean[name] - w[name], *memory[name])
        w = dict(w)
    return w


def heavy(w, change, m, v):
    m = 0.8 * m + change
    return w + 0.5 * m, (m, v)


def adaptive(squares, momentum=0.9, rate=0.02, floor=1e-2):
    def step(w, change, m, v):
        v = np.full_like(w, floor**2) if v is None else v
        m, v = momentum * m + (1 - momentum) * change, squares(v, change**2)
        return w + rate * m / (np.sqrt(v) + floor), (m, v)

    return step


TRANSCRIPTIONS = {
    "avgm": (AvgM(rate=0.5, momentum=0.8), heavy),
    "adagrad": (Adagrad(rate=0.02, floor=1e-2), adaptive(lambda v, s: v + s, momentum=0.0)),
    "adam": (Adam(rate=0.02, floor=1e-2, decay=0.7), adaptive(lambda v, s: 0.7 * v + 0.3 * s)),
    "yogi": (Yogi(rate=0.02, floor=1e-2, decay=0.7), adaptive(lambda v, s: v - 0.3 * s * np.sign(v - s))),
}


@each_engine
@pytest.mark.parametrize("name", TRANSCRIPTIONS)
def test_outer_steps_match_their_transcriptions(engine, name):
    outer, step = TRANSCRIPTIONS[name]
    assert_close(simulate(Outer(FEDAVG, outer), engine).play(5).server.inner.w, transcribed(5, step))


@each_engine
def test_p54_without_momentum_and_with_rate_one_it_is_the_average(engine):
    ours = simulate(Outer(FEDAVG, AvgM(momentum=0.0)), engine).play(4)
    assert_close(ours.server.inner.w, simulate(FEDAVG, engine).play(4).server.w, 1e-14)


BY_NAME = {"avgm": FedAvgM, "adagrad": FedAdagrad, "adam": FedAdam, "yogi": FedYogi}


@each_engine
@pytest.mark.parametrize("name", BY_NAME)
def test_methods_by_name_are_fedavg_with_that_outer_step(engine, name):
    outer = OUTER_STEPS[name]()
    ours = simulate(BY_NAME[name](lr=RATE, local_steps=3), engine).play(4)
    around = simulate(Outer(FEDAVG, outer), engine).play(4)
    assert same(ours.server.w, around.server.inner.w)
    assert ours.method.outer_step() == outer


@each_engine
def test_local_sgds_own_outer_step_is_avgm_without_momentum(engine):
    ours = simulate(Outer(FEDAVG, AvgM(rate=0.6, momentum=0.0)), engine).play(4)
    local_sgd = simulate(LocalSGD(lr=RATE, local_steps=3, outer_step=0.6), engine).play(4)
    assert_close(ours.server.inner.w, local_sgd.server.w, 1e-13)


@each_engine
def test_outer_steps_multiply_around_a_method_that_has_one(engine):
    inner = LocalSGD(lr=RATE, local_steps=3, outer_step=0.5)
    ours = simulate(Outer(inner, AvgM(rate=0.6, momentum=0.0)), engine).play(3)
    once = simulate(LocalSGD(lr=RATE, local_steps=3, outer_step=0.3), engine).play(3)
    assert_close(ours.server.inner.w, once.server.w, 1e-13)


@each_engine
def test_p55_momentum_is_the_heavy_ball(engine):
    """w⁺ = w + (average - w) + β (w - w⁻), the average from a round of FedAvg that starts at w."""
    simulation = simulate(Outer(FEDAVG, AvgM(momentum=0.8)), engine)
    before = now = simulation.server.inner.w
    for _ in range(4):
        fedavg = simulate(FEDAVG, engine)
        fedavg.server, fedavg.round = fedavg.server._replace(w=now), simulation.round
        mean = fedavg.play(1).server.w
        expected = {name: mean[name] + 0.8 * (now[name] - before[name]) for name in now}
        before, now = now, simulation.play(1).server.inner.w
        assert_close(now, expected, 1e-12)


@each_engine
def test_p56_adam_with_a_huge_floor_is_the_average(engine):
    outer = Adam(rate=1e9, floor=1e9, momentum=0.0, first=0.0)
    ours = simulate(Outer(FEDAVG, outer), engine).play(4)
    assert_close(ours.server.inner.w, simulate(FEDAVG, engine).play(4).server.w, 1e-7)


@each_engine
def test_p57_sign_steps_and_the_first_step_of_yogi(engine):
    def after(outer, rounds=1):
        return simulate(Outer(FEDAVG, outer), engine).play(rounds).server.inner.w

    mean = simulate(FEDAVG, engine).play(1).server.w
    signs = {name: START[name] + 0.1 * np.sign(mean[name].numpy() - START[name]) for name in START}
    assert_close(after(Adam(rate=0.1, momentum=0.0, decay=0.0, floor=1e-15, first=0.0)), signs, 1e-10)
    assert_close(after(Adam(first=0.0)), after(Yogi(first=0.0)), 1e-14)
    with pytest.raises(AssertionError):
        assert_close(after(Adam(first=0.0), 2), after(Yogi(first=0.0), 2), 1e-4)


@each_engine
def test_personal_parts_do_not_move(engine):
    """FedPer's heads in the first round are those without an outer step, bit for bit; its body is not."""
    fedper = FedPer(lr=RATE, local_steps=2)
    plain, outer = simulate(fedper, engine).play(1), simulate(Outer(fedper, AvgM(rate=0.5)), engine).play(1)
    assert same(outer.clients().inner.w, plain.clients().w)
    assert sorted(outer.server.memory["shared"].mean) == sorted(BODY)
    expected = {name: (START[name] + plain.server.shared[name].numpy()) / 2 for name in BODY}
    assert_close(outer.server.inner.shared, expected, 1e-13)


@pytest.mark.parametrize("name", OUTER_STEPS)
def test_where_nobody_replied_nothing_moves(name):
    outer = OUTER_STEPS[name]()
    method = Outer(FedAvg(lr=RATE, local_steps=3, incomplete="drop"), outer)
    started = simulate(method).play(2)
    silent = simulate(method, plan=Participation(work=Fixed(0.4)).bind(DATA.names))
    silent.server, silent.round = started.server, started.round
    for before, after in zip(tree.leaves(started.server), tree.leaves(silent.play(2).server), strict=True):
        assert torch.equal(before, after)


@each_engine
def test_controls_of_scaffold_are_left_alone(engine):
    simulation = simulate(Outer(Scaffold(lr=0.1, local_steps=2), AvgM(rate=0.5)), engine, plan=None).play(3)
    assert set(simulation.server.memory) == {"w"}
    controls = simulation.clients().inner.c
    assert_close(simulation.server.inner.c, {n: v.mean(0) for n, v in controls.items()}, 1e-10)


REFUSED = (
    Local,
    IFCA,
    PERM,
    PERMTwoStage,
    PFedKM,
    VRLSGD,
    HeteroFL,
    FedRolex,
    FederatedDropout,
    FedProto,
    FedAMP,
    HeurFedAMP,
    FedFomo,
)


@pytest.mark.parametrize("kind", REFUSED, ids=lambda kind: kind.name)
def test_methods_without_a_common_average_are_refused(kind):
    sentence = f"outer=adam cannot be used with method={kind.name}: its server keeps no average for all"
    with pytest.raises(UserError, match=sentence):
        simulate(Outer(kind(), Adam()))


AVERAGING = [kind for kind in METHODS if kind not in REFUSED]


@pytest.mark.parametrize("kind", AVERAGING, ids=lambda kind: kind.name)
def test_half_an_outer_step_goes_half_the_way_of_a_method(kind):
    simulation = simulate(Outer(kind(), AvgM(rate=0.5, momentum=0.0)), plan=None, batch_size=None)
    before = simulation.server
    plain = simulate(kind(), plan=None, batch_size=None)
    simulation.advance(), plain.advance()
    after, server = simulation.server, plain.server
    while hasattr(after, "inner"):
        before, after = before.inner, after.inner
    while hasattr(server, "inner"):
        server = server.inner
    names = outer_memory(simulation.server)
    assert names
    for name in names:
        start, end, half = getattr(before, name), getattr(server, name), getattr(after, name)
        assert_close(half, {n: (start[n] + end[n]).numpy() / 2 for n in start}, 1e-9)


def outer_memory(server):
    while not hasattr(server, "memory"):
        server = server.inner
    return tuple(server.memory)


def test_an_outer_step_keeps_the_contract():
    check_method(Outer(FedPer(local_steps=3), Yogi()))


@each_engine
def test_it_stands_within_robust_sums_and_codecs(engine):
    """A rule and a codec that leave all as it is."""
    outer = Outer(FEDAVG, Adam())
    expected = simulate(outer, engine).play(3).server.inner.w
    assert_close(simulate(Robust(outer, Clip(norm=1e9)), engine).play(3).server.inner.inner.w, expected)
    whole = CodecConfig(up="topk", down="topk", keep=1.0).wrap(outer)
    assert_close(simulate(whole, engine).play(3).server.inner.inner.w, expected)


def test_outer_steps_by_name_in_a_configuration():
    given = {"method": "fedavg", "data": "vowels", "outer": "adam", "outer.rate": 0.1}
    config = resolve(normalise(given))
    assert config.outer == Adam(rate=0.1)
    assert resolve(normalise(config.plain())).outer == config.outer
    plain = resolve(normalise({"method": "fedavg", "data": "vowels", "outer": None}))
    assert plain.outer is None
    assert "outer" not in plain.identity()
    with pytest.raises(UserError, match=r"outer\.rat"):
        resolve(normalise({**given, "outer.rat": 1}))
    with pytest.raises(UserError, match="outer"):
        resolve(normalise({**given, "outer": "adamm"}))
