"""EFL against a transcription of spec 3.6 and the identities EF1 to EF8."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pytest
import torch

from idiolect.codecs import SparseTernary
from idiolect.core import tree
from idiolect.core.exchange import Site
from idiolect.core.objective import Batch, Objective
from idiolect.core.schedule import Clock
from idiolect.core.task import Task
from idiolect.data.federation import Federation, Rows
from idiolect.methods.efl import EFL
from idiolect.methods.efl.fisher import diagonal_fisher
from idiolect.methods.efl.terms import Terms, elastic_weights
from idiolect.methods.fedavg import FedAvg
from idiolect.participation import Participation
from idiolect.participation.sampling import Plan, Uniform
from idiolect.simulation import EngineName, Simulation
from idiolect.testing.problems import small_network
from paper.problems import ENGINES, Softmax, close, finite_difference, of_method, vector

ROUNDS, STEPS, RATE = 8, 4, 0.3
SPLIT = 12  # the entries of the weight; those of the bias follow

# Stragglers, absent and silent clients, one that arrives late and one that leaves.
ROUGH = Participation(
    rate=0.7,
    work="uniform",
    inactive=0.1,
    lost_replies=0.2,
    clients={"client-1": {"join": 3}, "client-3": {"leave": 6}},
)


def rough(problem: Softmax) -> Plan:
    return ROUGH.bind(problem.federation.names)


def ternary(vector: np.ndarray, keep: float | None) -> np.ndarray:
    """ST of spec 3.5, for the weight and the bias each on its own."""
    if keep is None:
        return vector
    parts = []
    for part in (vector[:SPLIT], vector[SPLIT:]):
        k = max(int(len(part) * keep), 1)
        chosen = np.argsort(-np.abs(part), kind="stable")[:k]
        out = np.zeros_like(part)
        out[chosen] = np.abs(part[chosen]).mean() * np.sign(part[chosen])
        parts.append(out)
    return np.concatenate(parts)


def message_bits(vector: np.ndarray, keep: float | None) -> int:
    """The length of the real encoding."""
    if keep is None:
        return 64 * len(vector)
    codec = SparseTernary(keep=keep)
    return sum(codec.encode(torch.from_numpy(part)).bits for part in (vector[:SPLIT], vector[SPLIT:]))


def information(problem: Softmax, w: np.ndarray, client: int, kind: str) -> np.ndarray:
    """The diagonal Fisher information row by row."""
    rows = problem.rows(client)
    if kind == "unit":
        return np.ones_like(w)
    if kind == "exact":  # the closed form of multinomial logistic regression
        p, _ = problem._probabilities(w, rows)
        x = problem.federation.inputs.numpy()[rows]
        spread = p * (1 - p)
        return np.concatenate([np.einsum("rj,rc->cj", x**2, spread).ravel(), spread.sum(0)]) / len(rows)
    scores = [problem.gradient(w, rows[[j]]) - problem.weight_decay * w for j in range(len(rows))]
    return np.mean(np.square(scores), axis=0)


@dataclass
class Reference:
    """Spec 3.6, written from the text alone; the plan and the batches are data."""

    problem: Softmax
    plan: Plan
    keep: float | None = 0.3
    elasticity: float = 0.0
    fisher: str = "empirical"
    weighting: str = "unbiased"
    stale: bool = False
    exclude_self: bool = False
    mean: bool = False
    every: int = 1
    scale_first: bool = False
    bits_down: list[dict[int, int]] = field(default_factory=list)
    bits_up: list[dict[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        n = self.problem.clients
        self.w = self.problem.start()
        self.R_G = np.zeros_like(self.w)
        self.copies, self.residuals = np.tile(self.w, (n, 1)), np.zeros((n, len(self.w)))
        self.localized = self.copies.copy()
        self.terms: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self.told = {k: (np.zeros_like(self.w), np.zeros_like(self.w)) for k in range(n)}
        self.cost_of_round: list[int] = []
        self.last_sync = dict.fromkeys(range(n), 0)  # how many changes of ω each is known to have
        self.aggregates = np.zeros_like(self.w)
        self.sent = np.zeros_like(self.residuals)
        self.moved = np.zeros_like(self.residuals)

    def sums(self, client: int) -> tuple[np.ndarray, np.ndarray]:
        terms = [t for i, t in self.terms.items() if not (self.exclude_self and i == client)]
        U, V = (sum((t[a] for t in terms), np.zeros_like(self.w)) for a in (0, 1))
        return (U / max(len(terms), 1), V / max(len(terms), 1)) if self.mean else (U, V)

    def play(self, rounds: int) -> "Reference":
        problem = self.problem
        for r in range(rounds):
            cohort = self.plan.cohort(problem.seed, r, problem.federation.train.sizes)
            present = cohort.population.present.numpy()
            if r > 0:
                arrived = present & ~self.plan.present(r - 1, problem.clients).numpy()
                self.copies[arrived] = self.localized[arrived] = self.w  # who never trained was told nothing
            n = problem.sizes[present].sum()
            A, reports, shares = np.zeros_like(self.w), {}, 0.0
            down, up = {}, {}
            for k, work, replied, chance in zip(
                cohort.ids.tolist(), cohort.work.tolist(), cohort.replied.tolist(),
                cohort.inclusion.tolist(), strict=True,
            ):  # fmt: skip
                s = min(STEPS, int(work * (STEPS + 1)))
                if s == 0:
                    continue
                missed = sum(self.cost_of_round[self.last_sync[k] :])
                newcomer = self.last_sync[k] == 0 and not self.plan.present(0, problem.clients)[k]
                dense = 64 * len(self.w)
                down[k] = dense if newcomer or self.keep is None else min(missed, dense)
                self.copies[k] = self.w
                x = self.w.copy()
                if self.every == 1 or (r % self.every == 1 and self.terms):
                    self.told[k] = self.sums(k)
                U, V = self.told[k]
                for j in range(s):
                    g = problem.gradient(x, problem.batch(k, r, j))
                    x = x - RATE * (g + self.elasticity * (U * x - V))
                self.localized[k] = x
                change = (x - self.w) * (STEPS / s if self.scale_first else 1.0)
                delta = self.residuals[k] + change
                sent = ternary(delta, self.keep)
                self.residuals[k] = delta - sent
                self.sent[k] += sent
                self.moved[k] += change
                if not replied:
                    continue
                up[k] = message_bits(sent, self.keep)
                share = problem.sizes[k] / n
                weight = share * (1.0 if self.scale_first else STEPS / s)
                shares += share
                A += sent * (weight / chance if self.weighting == "unbiased" else weight)
                u = information(problem, x, k, self.fisher)
                reports[k] = (u, u * x)
                self.last_sync[k] = len(self.cost_of_round)
            self.bits_down.append(down)
            self.bits_up.append(up)
            if not up:
                continue
            if self.weighting == "normalised":
                A = A / shares
            self.aggregates += A
            delta_G = self.R_G + A
            T_G = ternary(delta_G, self.keep)
            self.R_G = delta_G - T_G
            self.w = self.w + T_G
            self.cost_of_round.append(message_bits(T_G, self.keep))
            if self.elasticity and r % self.every == 0:
                kept = {i: t for i, t in self.terms.items() if present[i]} if self.stale else {}
                self.terms = kept | reports
        return self


def elastic(**options: Any) -> EFL:
    return EFL(lr=RATE, local_steps=STEPS, **({"elasticity": 0.0} | options))


def shared(simulation: Simulation) -> np.ndarray:
    """ω, as all clients hold it."""
    server = simulation.server
    return vector(server.broadcasts["w"].model if hasattr(server, "broadcasts") else server.w)


def untold(simulation: Simulation) -> np.ndarray:
    """R_G: what the server has not told its clients yet."""
    return vector(of_method(simulation.server).w) - shared(simulation)


def left_out(clients: Any) -> np.ndarray:
    """R_k."""
    return vector(clients.residuals["Round.delta"])


VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "elastic": ({"elasticity": 0.05}, {}),
    "exact, stale": ({"elasticity": 0.05, "fisher": "exact"}, {"stale_terms": True}),
    "without self, means": (
        {"elasticity": 0.1, "exclude_self": True, "mean": True},
        {"exclude_self": True, "fisher_norm": "mean"},
    ),
    "stale means": ({"elasticity": 0.1, "mean": True}, {"stale_terms": True, "fisher_norm": "mean"}),
    "every third round": ({"elasticity": 0.05, "every": 3}, {"fisher_every": 3}),
    "literal weights": ({"weighting": "literal", "keep": 0.6}, {}),
    "normalised, scaled first": (
        {"weighting": "normalised", "scale_first": True},
        {"scale_before_compress": True},
    ),
    "not compressed": ({"keep": None, "elasticity": 0.05}, {}),
}


def play_variant(name: str, engine: EngineName) -> tuple[Reference, Simulation, list[Any]]:
    problem = Softmax()
    ours, more = VARIANTS[name]
    reference = Reference(problem, rough(problem), stale="stale_terms" in more, **ours).play(ROUNDS)
    same = {key: ours[key] for key in ("keep", "elasticity", "fisher", "weighting") if key in ours}
    simulation = problem.simulate(elastic(**same, **more), engine, plan=rough(problem))
    return reference, simulation, [simulation.advance() for _ in range(ROUNDS)]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", VARIANTS)
def test_round_follows_the_specification(name, engine):
    reference, simulation, _ = play_variant(name, engine)
    server, clients = of_method(simulation.server), simulation.clients()
    assert close(shared(simulation), reference.w)
    assert close(vector(of_method(clients).localized), reference.localized)
    if reference.keep is not None:
        assert close(vector(clients.held["w"]), reference.copies)
        assert close(untold(simulation), reference.R_G)
        assert close(left_out(clients), reference.residuals)
    if reference.elasticity:
        sums = sum((np.stack(t) for t in reference.terms.values()), np.zeros((2, len(reference.w))))
        assert close([vector(server.elastic.sums.u), vector(server.elastic.sums.v)], sums)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["plain", "elastic", "not compressed"])
def test_reported_bits_are_those_of_the_encoded_messages_and_of_what_was_missed(name, engine):
    reference, simulation, results = play_variant(name, engine)
    names = range(len(simulation.federation))
    for number, result in enumerate(results):
        expected_down, expected_up = reference.bits_down[number], reference.bits_up[number]
        zeros = torch.zeros(len(names), dtype=torch.int64)
        down, up = result.down_parts.get("w", zeros), result.up_parts.get("delta", zeros)
        assert down.tolist() == [expected_down.get(k, 0) for k in names]
        assert up.tolist() == [expected_up.get(k, 0) for k in names]
        if reference.elasticity and expected_up:
            fisher = 2 * 64 * len(reference.w)  # u and v, float64
            assert result.up_parts["fisher"].tolist() == [fisher * (k in expected_up) for k in names]
            terms = fisher if any(reference.bits_up[:number]) else 0  # zero is not sent
            told = result.down_parts.get("fisher", zeros)
            assert told.tolist() == [terms * (k in expected_down) for k in names]
        assert result.up_bits.sum() == sum(int(part.sum()) for part in result.up_parts.values())


def test_a_client_that_missed_many_rounds_gets_the_dense_model_where_that_is_shorter():
    problem = Softmax()
    clients = {"client-2": {"work": 0.0}}
    plan = Participation(clients=clients).bind(problem.federation.names)
    simulation = problem.simulate(elastic(keep=0.1), "sequential", plan=plan)
    simulation.play(40)
    simulation.plan = Uniform()
    down = simulation.advance().down_parts["w"]
    assert int(down[2]) == 64 * 15
    assert (down[[0, 1, 3, 4]] < 64 * 15).all()


@pytest.mark.parametrize("engine", ENGINES)
def test_ef1_without_elasticity_and_compression_it_is_fedavg_weighted_by_rows(engine):
    problem = Softmax()
    ours = problem.simulate(elastic(keep=None), engine, plan=Uniform()).play(ROUNDS)
    fedavg = FedAvg(lr=RATE, local_steps=STEPS, weighting="samples")
    theirs = problem.simulate(fedavg, engine, plan=Uniform()).play(ROUNDS)
    assert close(shared(ours), vector(theirs.server.w), 1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_ef2_partial_work_weighs_updates_by_full_over_completed_steps(engine):
    problem = Softmax()
    plan = Participation(work="uniform", inactive=0.2).bind(problem.federation.names)
    w = problem.start()
    for r in range(ROUNDS):
        cohort = plan.cohort(problem.seed, r, problem.federation.train.sizes)
        update = np.zeros_like(w)
        for k, work in zip(cohort.ids.tolist(), cohort.work.tolist(), strict=True):
            s = min(STEPS, int(work * (STEPS + 1)))
            x = w.copy()
            for j in range(s):
                x = x - RATE * problem.gradient(x, problem.batch(k, r, j))
            if s:
                update += STEPS / s * problem.sizes[k] / problem.sizes.sum() * (x - w)
        w = w + update
    ours = problem.simulate(elastic(keep=None), engine, plan=plan).play(ROUNDS)
    assert close(shared(ours), w, 1e-12)


class EqualSizes(Softmax):
    """The same clients with six rows each."""

    @cached_property
    def federation(self) -> Federation:
        uneven = super().federation
        rows = Rows.of_clients([uneven.train.of(k)[:6] for k in range(len(uneven))])
        return Federation(uneven.inputs, uneven.targets, uneven.task, uneven.names, rows, rows, rows)


@pytest.mark.parametrize("engine", ENGINES)
def test_ef3_with_unit_fisher_it_is_fedprox_with_mu_lambda_n(engine):
    problem = EqualSizes()
    n, strength = problem.clients, 0.07
    w = problem.start()
    for r in range(ROUNDS):
        local = []
        for k in range(n):
            x = w.copy()
            for j in range(STEPS):
                x = x - RATE * (problem.gradient(x, problem.batch(k, r, j)) + strength * n * (x - w))
            local.append(x)
        w = np.mean(local, axis=0)
    method = elastic(keep=None, fisher="unit", elasticity=strength)
    simulation = problem.simulate(method, engine, plan=Uniform())
    server = simulation.server
    ones = tree.map_tree(lambda leaf: torch.full_like(leaf, n), server.w)
    start = Terms(ones, tree.map_tree(torch.mul, ones, server.w))
    simulation.server = server._replace(
        elastic=server.elastic._replace(sums=start, contributors=torch.ones(n, dtype=torch.bool))
    )
    assert close(shared(simulation.play(ROUNDS)), w, 1e-12)


def one_parameter() -> tuple[torch.nn.Module, Federation]:
    """A line through the origin: every message is a single number."""
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(11, 1, generator=generator, dtype=torch.float64)
    y = 1.7 * x + 0.3 * torch.randn(11, 1, generator=generator, dtype=torch.float64)
    rows = Rows.of_clients([torch.arange(0, 2), torch.arange(2, 6), torch.arange(6, 11)])
    federation = Federation(x, y, Task("regression", 1), ("a", "b", "c"), rows, rows, rows)
    return torch.nn.Linear(1, 1, bias=False).double(), federation


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("keep", [0.1, 0.5, 1.0])
def test_ef4_a_tensor_of_size_one_is_never_distorted(keep, engine):
    model, federation = one_parameter()
    plan = Participation(work="uniform").bind(federation.names)

    def play(keep: float | None) -> torch.Tensor:
        simulation = Simulation(
            elastic(keep=keep), model, federation, engine=engine, dtype=torch.float64, batch_size=2, plan=plan
        ).play(ROUNDS)
        return torch.tensor(shared(simulation))

    torch.testing.assert_close(play(keep), play(None), rtol=1e-12, atol=0)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("elasticity", [0.0, 0.05])
def test_ef5_nothing_that_clients_send_is_lost_and_all_hold_the_same_model(elasticity, engine):
    problem = Softmax()
    plan = Participation(rate=0.6, work="uniform").bind(problem.federation.names)
    method = elastic(elasticity=elasticity)
    simulation = problem.simulate(method, engine, plan=plan)
    before, total = left_out(simulation.clients()), np.zeros((problem.clients, 15))
    aggregates = np.zeros(15)
    for number in range(ROUNDS):
        start = shared(simulation)
        cohort = plan.cohort(problem.seed, number, problem.federation.train.sizes)
        steps = np.minimum(STEPS, (cohort.work * (STEPS + 1)).long().numpy())
        simulation.advance()
        clients = simulation.clients()
        after = left_out(clients)
        for k, s, chance in zip(cohort.ids.tolist(), steps, cohort.inclusion.tolist(), strict=True):
            if s == 0:
                continue
            assert np.array_equal(vector(clients.held["w"])[k], start)  # ω_k = ω_G after its synchronisation
            change = vector(clients.inner.localized)[k] - start
            sent = before[k] + change - after[k]  # T_k, by what is left of it
            assert (
                len(np.unique(np.abs(sent[np.abs(sent) > 1e-12]).round(10))) <= 2
            )  # one magnitude per tensor
            total[k] += sent
            aggregates += STEPS / s * problem.sizes[k] / problem.sizes.sum() / chance * sent
        before = after
    residual = untold(simulation)
    assert np.abs(residual).max() > 1e-3
    assert close(shared(simulation) + residual, problem.start() + aggregates, 1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_ef6_an_inactive_client_changes_nothing(engine):
    problem = Softmax()
    names = problem.federation.names
    simulation = problem.simulate(elastic(elasticity=0.05, stale_terms=True), engine, plan=Uniform()).play(3)
    before = tree.row(simulation.clients(), 2)

    def table_row() -> Terms:
        return tree.row(of_method(simulation.server).elastic.table, 2)

    row = table_row()
    simulation.plan = Participation(clients={"client-2": {"work": 0.1}}).bind(names)  # 0.1 of 4 steps: none
    simulation.play(3)
    assert all(
        torch.equal(a, b)
        for a, b in zip(
            tree.leaves((before, row)),
            tree.leaves(
                (tree.row(simulation.clients(), 2), tree.row(of_method(simulation.server).elastic.table, 2))
            ),
            strict=True,
        )
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_ef7_the_first_round_has_no_elastic_term(engine):
    problem = Softmax()
    with_term = problem.simulate(elastic(elasticity=0.3), engine).play(1)
    without = problem.simulate(elastic(), engine).play(1)
    assert close(shared(with_term), shared(without), 1e-12)
    assert not close(shared(with_term.play(1)), shared(without.play(1)), 1e-4)


@pytest.mark.parametrize("engine", ENGINES)
def test_ef8_keeping_every_entry_is_not_fedavg(engine):
    problem = Softmax()
    ours = problem.simulate(elastic(keep=1.0), engine, plan=Uniform()).play(ROUNDS)
    fedavg = FedAvg(lr=RATE, local_steps=STEPS, weighting="samples")
    theirs = problem.simulate(fedavg, engine, plan=Uniform()).play(ROUNDS)
    assert not close(shared(ours), vector(theirs.server.w), 1e-2)


def test_the_debiased_model_is_the_shared_one_with_its_residual():
    problem = Softmax()
    simulation = problem.simulate(elastic(server_apply="debiased"), "vectorised").play(ROUNDS)
    debiased = vector(tree.row(simulation.predictors()["global"], 0))
    assert close(debiased, shared(simulation) + untold(simulation), 1e-12)


def test_weights_agree_when_everybody_is_asked_and_active():
    problem = Softmax()
    models = [
        shared(problem.simulate(elastic(weighting=weighting), "sequential", plan=Uniform()).play(4))
        for weighting in ("unbiased", "literal", "normalised")
    ]
    assert close(models[1], models[0], 1e-12)
    assert close(models[2], models[0], 1e-12)


@pytest.mark.parametrize("section", [{"count": 2}, {"sampling": "proportional", "count": 2}])
def test_unbiased_weights_are_the_shares_of_rows_on_average(section):
    """E[p_τ^k s_τ^k] = E p^k: the condition r_τ = 0 of the theory."""
    sizes = Softmax().federation.train.sizes
    plan = Participation(**section).bind(Softmax().federation.names)
    draws = torch.zeros(600, len(sizes), dtype=torch.float64)
    for seed in range(len(draws)):
        cohort = plan.cohort(seed, 0, sizes)
        full = replace(cohort, local_steps=torch.full_like(cohort.ids, STEPS))
        steps = 1 + (seed + cohort.ids) % STEPS  # any number of completed steps
        weights = elastic_weights(steps, full, "unbiased", scaled=False)
        draws[seed, cohort.ids] = weights * steps / STEPS
    error = draws.std(0) / len(draws) ** 0.5
    assert ((draws.mean(0) - sizes / sizes.sum()).abs() < 4 * error).all()


def test_a_departure_renormalises_and_stale_terms_of_the_departed_are_dropped():
    problem = Softmax()
    plan = Participation(clients={"client-4": {"leave": 2}}).bind(problem.federation.names)
    simulation = problem.simulate(elastic(elasticity=0.05, stale_terms=True), "vectorised", plan=plan)
    sums = [float(simulation.advance().info["weight_sum"]) for _ in range(4)]
    np.testing.assert_allclose(sums, 1.0, rtol=1e-12)
    elastic_terms = of_method(simulation.server).elastic
    assert elastic_terms.contributors.tolist() == [True] * 4 + [False]
    torch.testing.assert_close(elastic_terms.sums, tree.map_tree(lambda t: t[:4].sum(0), elastic_terms.table))
    assert not any(leaf[4].any() for leaf in tree.leaves(elastic_terms.table))


def test_abandonment_is_advised_for_those_who_are_often_inactive_and_changes_nothing():
    problem = Softmax()
    plan = Participation(clients={"client-1": {"work": 0.0}}).bind(problem.federation.names)
    advised = problem.simulate(elastic(abandon_above=0.5), "vectorised", plan=plan)
    silent = problem.simulate(elastic(), "vectorised", plan=plan)
    info = [advised.advance().info for _ in range(4)][-1]
    assert info["abandon"].tolist() == [False, True, False, False, False]
    torch.testing.assert_close(info["inactive_rate"], torch.tensor([0, 1, 0, 0, 0]).double())
    assert "abandon" not in silent.advance().info
    assert np.array_equal(shared(advised), shared(silent.play(3)))


def at_client(kind_of_task: Task, x: torch.Tensor, y: torch.Tensor, module: torch.nn.Module) -> Site:
    """A client with its rows, of which the last only pads."""
    weights = torch.full((len(x),), 1 / (len(x) - 1), dtype=torch.float64)
    weights[-1] = 0
    return Site(
        Objective(module, kind_of_task, weight_decay=0.5),
        client_id=torch.tensor(0),
        size=torch.tensor(len(x) - 1),
        steps=torch.tensor(1),
        full_steps=torch.tensor(1),
        key=torch.tensor(99),
        clock=Clock(0, 0, 1),
        rows=Batch(x, y, weights),
    )


TASKS = {
    "multiclass": (
        Task("multiclass", 3),
        torch.randint(0, 3, (20,), generator=torch.Generator().manual_seed(1)),
    ),
    "binary": (Task("binary", 1), torch.randint(0, 2, (20,), generator=torch.Generator().manual_seed(2))),
    "regression": (
        Task("regression", 2),
        torch.randn(20, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64),
    ),
}


def network_at(kind: str) -> tuple[Site, dict[str, torch.Tensor]]:
    task, y = TASKS[kind]
    x = torch.randn(20, 4, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    torch.manual_seed(6)
    site = at_client(task, x, y, small_network(4, task.outputs).double())
    return site, site.objective.initial_params()


@pytest.mark.parametrize("kind", TASKS)
def test_empirical_fisher_is_the_mean_of_squared_finite_differences_of_the_log_likelihood(kind):
    site, params = network_at(kind)
    names = list(params)
    shapes = [params[name].shape for name in names]

    def unpacked(w: np.ndarray) -> dict[str, torch.Tensor]:
        parts = torch.from_numpy(w).split([shape.numel() for shape in shapes])
        return {n: p.reshape(s) for n, p, s in zip(names, parts, shapes, strict=True)}

    at = np.concatenate([params[name].numpy().ravel() for name in names])
    squares = []
    for row in range(19):
        x, y = site.all_rows.inputs[row][None], site.all_rows.targets[row][None]

        def negative_log_likelihood(w: np.ndarray, x=x, y=y) -> float:
            outputs = site.objective.predict(unpacked(w), x)
            return float(site.objective.task.row_losses(outputs, y)[0])

        squares.append(finite_difference(negative_log_likelihood, at) ** 2)
    ours = diagonal_fisher("empirical", params, site)
    assert close(np.concatenate([ours[n].numpy().ravel() for n in names]), np.mean(squares, axis=0), 1e-7)


@pytest.mark.parametrize("kind", TASKS)
def test_sampled_fisher_averages_to_the_exact_one_and_is_a_function_of_the_key(kind):
    site, params = network_at(kind)
    exact = tree.flatten(diagonal_fisher("exact", params, site))
    draws = torch.stack(
        [
            tree.flatten(
                diagonal_fisher("sampled", params, Site(**{**vars(site), "key": torch.tensor(seed)}))
            )
            for seed in range(225)
        ]
    )
    error = draws.std(0) / 15
    assert ((draws.mean(0) - exact).abs() <= 5 * error + 1e-12).all()
    again = tree.flatten(diagonal_fisher("sampled", params, Site(**{**vars(site), "key": torch.tensor(3)})))
    assert torch.equal(draws[3], again)


def test_a_subsample_takes_different_rows_and_all_where_there_are_fewer():
    site, params = network_at("multiclass")
    everything = diagonal_fisher("empirical", params, site)
    for count in (19, 50):
        chosen = diagonal_fisher("empirical", params, site, most_rows=count)
        torch.testing.assert_close(chosen, everything, rtol=1e-12, atol=0)
    part = diagonal_fisher("empirical", params, site, most_rows=6)
    assert not torch.allclose(tree.flatten(part), tree.flatten(everything), rtol=1e-3)
