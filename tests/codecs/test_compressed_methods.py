"""Compression around methods: nothing is lost, bits are those of real messages, refusals are clear."""

from typing import Any

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter, ValidationError

from idiolect.codecs import SparseTernary, encode_tree
from idiolect.codecs.choice import CodecConfig
from idiolect.codecs.transport import sources_of
from idiolect.core import Population, rng, tree
from idiolect.core.method import Method
from idiolect.errors import UserError
from idiolect.methods.additive import Additive
from idiolect.methods.apfl import APFL
from idiolect.methods.catalogue import METHODS
from idiolect.methods.efl import EFL
from idiolect.methods.fedavg import FedAvg
from idiolect.methods.ifca import IFCA
from idiolect.methods.pfedkm import PFedKM
from idiolect.methods.pfedme import PFedMe
from idiolect.methods.scaffold import Scaffold
from idiolect.participation import Participation
from idiolect.participation.sampling import Uniform
from idiolect.testing import check_method
from paper.problems import ENGINES, Softmax, close, vector

STEPS, ROUNDS, KEEP = 3, 6, 0.3
BOTH = CodecConfig(up="ternary", down="ternary", keep=KEEP)


def server_model(simulation: Any) -> np.ndarray:
    return vector(simulation.server.inner.w)


@pytest.mark.parametrize("engine", ENGINES)
def test_on_fedavg_it_is_the_compressed_round_of_efl_without_elasticity(engine):
    """Spec 3.6 with λ = 0 and complete work, once as means of models and once as sums of changes."""
    problem = Softmax()
    fedavg = BOTH.wrap(FedAvg(lr=0.3, local_steps=STEPS, weighting="samples"))
    efl = EFL(lr=0.3, local_steps=STEPS, keep=KEEP, elasticity=0.0, weighting="normalised")
    ours, theirs = (problem.simulate(method, engine) for method in (fedavg, efl))
    for _ in range(ROUNDS):
        a, b = ours.advance(), theirs.advance()
        assert a.up_parts["w"].tolist() == b.up_parts["delta"].tolist()
        assert a.down_parts["w"].tolist() == b.down_parts["w"].tolist()
    held = vector(ours.server.broadcasts["w"].model)
    assert close(held, vector(theirs.server.broadcasts["w"].model))
    assert close(server_model(ours), server_model(theirs))
    residuals = ours.clients().residuals["FedAvg.w"], theirs.clients().residuals["Round.delta"]
    assert close(*map(vector, residuals))


METHODS_WITH_W: dict[str, tuple[Method, str]] = {
    "fedavg": (FedAvg(lr=0.3, local_steps=STEPS), "FedAvg.w"),
    "apfl": (APFL(lr=0.3, local_steps=STEPS), "APFL.w"),
    "additive": (Additive(lr=0.2, local_steps=STEPS), "Additive.delta"),
    "scaffold": (Scaffold(lr=0.2, local_steps=STEPS), "Scaffold.w_delta"),
    "pfedme": (PFedMe(lr=0.05, local_steps=STEPS), "PFedMe.change"),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", METHODS_WITH_W)
@pytest.mark.parametrize("codec", ["ternary", "topk", "float16", "stochastic"])
def test_nothing_is_lost_between_clients_and_server(name, codec, engine):
    """w^T = w^0 + Σ mean of what was sent, and Σ sent + R_i = Σ of the client's changes."""
    problem = Softmax()
    method, account = METHODS_WITH_W[name]
    simulation = problem.simulate(CodecConfig(up=codec, down=codec).wrap(method), engine)
    moved = problem.start()
    before = vector(simulation.clients().residuals[account])
    for number in range(ROUNDS):
        held = vector(simulation.server.broadcasts["w"].model)
        simulation.advance()
        asked = problem.asked(number)
        clients = simulation.clients()
        after = vector(clients.residuals[account])
        change = vector(clients.inner.w) - held
        sent = before + change - after
        assert np.array_equal(vector(clients.held["w"])[asked], np.tile(held, (len(asked), 1)))
        moved = moved + sent[asked].mean(0)
        before = after
    assert close(server_model(simulation), moved, 1e-12)
    assert np.abs(before).max() > 0


@pytest.mark.parametrize("engine", ENGINES)
def test_a_codec_that_loses_nothing_changes_nothing(engine):
    """Single precision on the wire: the trajectory stays within its rounding."""
    problem = Softmax()
    method = FedAvg(lr=0.3, local_steps=STEPS)
    plain = problem.simulate(method, engine).play(ROUNDS)
    wrapped = problem.simulate(CodecConfig(up="float32", down="float32").wrap(method), engine).play(ROUNDS)
    assert close(server_model(wrapped), vector(plain.server.w), 1e-7)


@pytest.mark.parametrize("engine", ENGINES)
def test_reported_bits_are_the_length_of_the_encoded_messages(engine):
    problem = Softmax()
    simulation = problem.simulate(BOTH.wrap(FedAvg(lr=0.3, local_steps=STEPS)), engine, plan=Uniform())
    codec, told = SparseTernary(keep=KEEP), 0
    before = simulation.clients().residuals["FedAvg.w"]
    for _ in range(ROUNDS):
        held = simulation.server.broadcasts["w"].model
        result = simulation.advance()
        clients = simulation.clients()
        after = clients.residuals["FedAvg.w"]
        for client in range(problem.clients):
            change = tree.subtract(tree.row(clients.inner.w, client), held)
            message = encode_tree(codec, tree.add(tree.row(before, client), change))
            assert int(result.up_parts["w"][client]) == message.bits
            assert int(result.down_parts["w"][client]) == told
        untold = tree.subtract(simulation.server.inner.w, held)
        told = min(encode_tree(codec, untold).bits, 64 * 15)
        before = after


def test_who_missed_rounds_is_told_all_of_them_or_the_dense_model():
    problem = Softmax()
    names = problem.federation.names
    absent = Participation(clients={"client-3": {"work": 0}, "client-4": {"join": 4}}).bind(names)
    method = CodecConfig(up="ternary", down="ternary", keep=0.1).wrap(FedAvg(lr=0.3, local_steps=STEPS))
    simulation = problem.simulate(method, "vectorised", plan=absent)
    told = [int(simulation.advance().down_parts["w"][0]) for _ in range(4)]
    simulation.plan = Participation(clients={"client-4": {"join": 4}}).bind(names)
    down = simulation.advance().down_parts["w"]
    last = int(down[0])
    assert told[0] == 0
    assert int(down[3]) == min(sum(told) + last, 64 * 15)
    assert int(down[4]) == 64 * 15  # it has just arrived
    assert int(simulation.advance().down_parts["w"][3]) < int(down[3])


def test_a_lost_reply_is_told_again():
    """The server cannot know whether its message arrived, and sends again what it may have missed."""
    problem = Softmax()
    method = BOTH.wrap(FedAvg(lr=0.3, local_steps=STEPS))
    lossy = Participation(lost_replies=0.5).bind(problem.federation.names)
    simulation = problem.simulate(method, "sequential", plan=lossy)
    heard, told, costs = torch.zeros(5, dtype=torch.bool), torch.zeros(5, dtype=torch.int64), []
    for number in range(ROUNDS):
        total = int(simulation.server.broadcasts["w"].total)
        down = simulation.advance().down_parts["w"]
        expected = (total - told).clamp(max=64 * 15)
        assert torch.equal(down, expected)
        heard = lossy.cohort(problem.seed, number, problem.federation.train.sizes).replied
        told = torch.where(heard, total, told)
        costs.append(int(heard.sum()))
    assert 0 < sum(costs) < ROUNDS * 5


def uploads_changes(method: Method) -> bool:
    problem = Softmax()
    population = Population(problem.federation.train.sizes, torch.ones(problem.clients, dtype=torch.bool))
    params = {"weight": torch.zeros(5, 3).double(), "bias": torch.zeros(5).double()}
    method = method.for_model(problem._module)
    server = method.server_init(params, population, rng.key(0, "server"))
    sent = [
        getattr(exchange.down(server, torch.tensor([0])), source)
        for exchange in method.exchanges(server)
        for source in sources_of(exchange).values()
    ]
    return all(tree.leaves(model) for model in sent or [()])  # a linear model has no body to share


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
@pytest.mark.parametrize("engine", ENGINES)
def test_every_method_is_compressed_or_refused_in_one_sentence(method, engine):
    problem = Softmax()
    instance = method(keep=None, elasticity=0) if method is EFL else method()
    up_only = CodecConfig(up="ternary", keep=KEEP).wrap(instance)
    if not uploads_changes(instance):
        with pytest.raises(UserError, match=rf"codec cannot be used with method={method.name}"):
            problem.simulate(up_only, engine)
        return
    plain, small = (problem.simulate(m, engine) for m in (instance, up_only))
    for _ in range(3):
        many, few = plain.advance().up_bits.sum(), small.advance().up_bits.sum()
    assert few < many / 2
    for leaf in tree.leaves(small.predictors()):
        assert leaf.isfinite().all()


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        (PFedKM(), "a message of its own"),
        (IFCA(), "none of its uploads"),
        (EFL(), "method.keep"),
    ],
)
def test_downlinks_that_cannot_be_compressed_are_refused(method, reason):
    with pytest.raises(UserError, match=reason):
        Softmax().simulate(BOTH.wrap(method), "sequential")


@pytest.mark.parametrize(
    ("section", "reason"),
    [
        ({"up": "ternry"}, "did you mean ternary"),
        ({"up": "float16", "keep": 0.3}, "codec.keep=0.3 has no effect"),
        ({"up": "ternary", "bits": 4}, "codec.bits=4 has no effect"),
        ({"keep": 0.3}, "codec.keep=0.3 has no effect"),
    ],
)
def test_a_section_that_makes_no_sense_is_refused(section, reason):
    with pytest.raises(UserError, match=reason):
        CodecConfig(**section).wrap(FedAvg())


@pytest.mark.parametrize("section", [{"keep": 0}, {"keep": 2}, {"scope": "layer"}, {"upp": "ternary"}])
def test_values_out_of_range_are_refused(section):
    with pytest.raises(ValidationError):
        TypeAdapter(CodecConfig).validate_python(section)


def test_without_codecs_the_method_is_left_alone():
    method = FedAvg()
    assert CodecConfig().wrap(method) is method


def test_a_compressed_method_keeps_the_contract_of_methods():
    method = CodecConfig(up="stochastic", down="ternary", bits=3, scope="flat").wrap(
        APFL(lr=0.2, local_steps=3)
    )
    check_method(method)
