"""PERM against a NumPy transcription of the spec, and its identities PE1 to PE10 through the public API."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from idiolect.core import rng
from idiolect.core.tree import flatten_rows
from idiolect.data.quadratics import quadratics
from idiolect.methods.fedavg import FedAvg
from idiolect.methods.local import Local
from idiolect.methods.perm import PERM, PERMTwoStage
from idiolect.methods.perm.matrix import MixingMatrix
from idiolect.methods.perm.route import NOBODY, Route
from idiolect.simulation import Simulation
from idiolect.testing import check_method
from paper.problems import ENGINES, Softmax, close, identical_clients, on_quadratics, vector

ALONE = {"regulariser": 1e-9}  # α_i = e_i wherever gradients differ
TOGETHER = {"regulariser": 1e12}  # α_i(j) = n_j / n


def mixing(simulation: Simulation) -> np.ndarray:
    n = len(simulation.federation)
    return simulation.server.mixing.rows(0, n, n).numpy()


def personal(simulation: Simulation) -> np.ndarray:
    return flatten_rows(simulation.predictors()["personal"]).numpy()


# ---- an independent transcription -------------------------------------------------------------------


def water_level(z: np.ndarray, n: np.ndarray, lam: float) -> np.ndarray:
    """Eq. 2 by bisection on the multiplier ν of Σ_j n_j / (2λ) max(0, ν - z_j) = 1."""
    low, high = z.min(), z.max() + 2 * lam / n.min()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if (n / (2 * lam) * np.maximum(0, middle - z)).sum() < 1 else (low, middle)
    return n / (2 * lam) * np.maximum(0, high - z)


class Transcription:
    """Spec 5.4 to 5.6 and the row on partial participation of 5.11, in plain NumPy."""

    def __init__(self, problem: Softmax, rate: float, steps: int, rule: str, lam: float | None) -> None:
        self.problem, self.rate, self.steps, self.rule, self.lam = problem, rate, steps, rule, lam
        self.N = problem.clients
        self.w = problem.start()
        self.V = np.tile(self.w, (self.N, 1))
        self.A = np.zeros((self.N, self.N))
        self.G: dict[int, np.ndarray] = {}
        self.noise: dict[int, tuple[float, float]] = {}  # σ̂² and t̂
        self.epoch = self.position = 0
        self.waiting: list[tuple[int, int]] = []

    def gradients(self, clients: list[int], round_number: int | None = None) -> list[np.ndarray]:
        found = [self.problem.gradient(self.w, self.problem.rows(c)) for c in clients]
        self.G.update(zip(clients, found, strict=True))
        if self.lam is None and round_number is not None:
            self.noise.update({c: self.row_noise(c, round_number) for c in clients})
        return found

    def row_noise(self, client: int, round_number: int) -> tuple[float, float]:
        """σ̂² and t̂ from the parts' Helmert contrasts, each from the means of all rows before it."""
        rows = np.asarray(self.problem.rows(client))
        key = rng.fold(rng.key(self.problem.seed, "client", torch.tensor(client), round_number), 0)
        rows = rows[rng.permutation(key, len(rows)).numpy()]
        contrasts, before = [], [rows[0::8]]
        for k in range(1, min(8, len(rows))):
            part, seen = rows[k::8], np.concatenate(before)
            scale = len(part) * len(seen) / (len(part) + len(seen))
            change = self.problem.gradient(self.w, part) - self.problem.gradient(self.w, seen)
            contrasts.append(np.sqrt(scale) * change)
            before.append(part)
        pairs = list(pairwise(contrasts))
        variance = float(np.mean([c @ c for c in contrasts]))
        return variance, float(np.mean([(a @ b) ** 2 for a, b in pairs]))

    def automatic(self, z: np.ndarray, n: np.ndarray, heard: list[int]) -> tuple[np.ndarray, float]:
        """The costs and λ of spec 5.4 where λ is not given."""
        told = np.array([i in self.noise for i in heard])  # not those who were heard in the warm-up alone
        variance, square = np.array([self.noise[i] for i in heard if i in self.noise]).T
        filled = np.full(len(heard), (n[told] @ variance) / n[told].sum())
        filled[told] = variance
        sums = (filled / n)[:, None] + filled / n
        alike = 2 * (n[told] @ square) / (n[told] @ variance**2) * (1 + 1 / 14)
        pairs = ~np.eye(len(heard), dtype=bool)
        excess = np.mean((z / sums - 1)[pairs])
        counts = max(0, 1 - (9 * alike / len(heard) / excess**2) ** 2) if excess > 0 else 0
        return counts * z, 0.5 * n.mean() * np.median(z[pairs])

    def weights(self) -> None:
        heard = sorted(self.G)
        n = self.problem.sizes[heard].astype(float)
        z = np.array([[((self.G[i] - self.G[j]) ** 2).sum() for j in heard] for i in heard])
        z, lam = (z, self.lam) if self.lam else self.automatic(z, n, heard)
        self.A[:] = 0
        for row, i in enumerate(heard):
            self.A[i, heard] = water_level(z[row], n, lam)

    def visits(self, r: int, online: list[int]) -> None:
        N = self.N
        if self.position < N:
            sigma = rng.permutation(rng.fold(rng.key(self.problem.seed, "server"), self.epoch), N).tolist()
            pairs = [(i, sigma[(i + self.position) % N]) for i in range(N)]
            pairs = sorted((p for p in pairs if self.A[p] > 0), key=lambda p: p[1])
        else:
            pairs = self.make_up()
        for i, c in pairs:
            if c in online:
                factor = self.A[i, c] / self.A[i].max() if self.rule == "per_model" else N * self.A[i, c]
                for k in range(self.steps):
                    rows = self.problem.batch(c, r, k)
                    self.V[i] = self.V[i] - self.rate * factor * self.problem.gradient(self.V[i], rows)
        self.waiting = [p for p in self.waiting if p not in pairs] + [p for p in pairs if p[1] not in online]
        self.position += 1
        if self.position == 2 * N or (self.position >= N and not self.waiting):
            self.epoch, self.position, self.waiting = self.epoch + 1, 0, []

    def make_up(self) -> list[tuple[int, int]]:
        """For each client the visit that has waited longest, and of those for each model the oldest."""
        offered: list[tuple[int, int]] = []
        for i, c in self.waiting:
            if all(c != other for _, other in offered):
                offered.append((i, c))
        chosen: list[tuple[int, int]] = []
        for i, c in offered:
            if all(i != other for other, _ in chosen):
                chosen.append((i, c))
        return sorted(chosen, key=lambda p: p[1])

    def single_loop(self, rounds: int, warmup: int, gamma: float) -> None:
        for r in range(rounds):
            online = self.problem.asked(r)
            if r < warmup:
                self.w = self.w - gamma * np.mean(self.gradients(online), axis=0)
                self.V[:] = self.w
                continue
            if self.position == 0 or not self.G:
                g = self.gradients(online, r)
                self.weights()
                self.w = self.w - gamma * np.mean(g, axis=0)
                self.V[[i for i in range(self.N) if i not in self.G]] = self.w
            self.visits(r, online)

    def two_stage(self, rounds: int, global_rounds: int, gamma: float) -> None:
        for r in range(rounds):
            online = self.problem.asked(r)
            if r < global_rounds:
                copies = []
                for c in online:
                    w = self.w
                    for k in range(self.steps):
                        w = w - gamma * self.problem.gradient(w, self.problem.batch(c, r, k))
                    copies.append(w)
                self.w = np.mean(copies, axis=0)
                self.V[:] = self.w
                continue
            if self.position == 0 or not self.G:
                unheard = [c for c in online if c not in self.G]
                if unheard:
                    self.gradients(unheard, r)
                    self.weights()
            self.visits(r, online)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("participation", "rule", "lam", "rounds"),
    [(1.0, "literal", 40.0, 17), (0.6, "per_model", None, 31), (0.4, "literal", 20.0, 31)],
)
def test_single_loop_equals_its_transcription(engine, participation, rule, lam, rounds):
    problem = Softmax(participation=participation)
    ours = problem.simulate(
        PERM(
            learning_rate=0.05,
            local_steps=3,
            global_learning_rate=0.2,
            warmup_rounds=2,
            step_rule=rule,
            weights={"regulariser": lam},
        ),
        engine,
    ).play(rounds)
    theirs = Transcription(problem, 0.05, 3, rule, lam)
    theirs.single_loop(rounds, 2, 0.2)
    assert theirs.epoch >= 2
    assert close(vector(ours.predictors()["personal"]), theirs.V)
    assert close(vector(ours.predictors()["global"])[0], theirs.w)
    assert close(mixing(ours), theirs.A)
    assert 0 < (theirs.A > 0).sum() < theirs.N**2


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("participation", "rule"), [(1.0, "per_model"), (0.6, "literal")])
def test_two_stage_equals_its_transcription(engine, participation, rule):
    problem = Softmax(participation=participation)
    method = PERMTwoStage(
        learning_rate=0.05, local_steps=3, global_learning_rate=0.1, global_rounds=4, step_rule=rule
    )
    ours = problem.simulate(method, engine).play(30)
    theirs = Transcription(problem, 0.05, 3, rule, None)
    theirs.two_stage(30, 4, 0.1)
    assert theirs.epoch >= 2
    assert close(vector(ours.predictors()["personal"]), theirs.V)
    assert close(vector(ours.predictors()["global"])[0], theirs.w)
    assert close(mixing(ours), theirs.A)


def test_the_contract_of_methods_holds():
    check_method(PERM(local_steps=3, warmup_rounds=1, weights={"projected_steps": 2}, ball_radius=3.0))


# ---- identities -------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_pe1_with_all_weight_on_itself_it_is_local_training_with_rate_eta_n(engine):
    rate, steps, epochs = 0.02, 3, 4
    method = PERM(learning_rate=rate, local_steps=steps, step_rule="literal", weights=ALONE)
    ours = on_quadratics(method, engine, batch_size=None)
    n = len(ours.federation)
    ours.play(epochs * n)
    local = Local(learning_rate=rate * n, local_steps=steps)
    theirs = on_quadratics(local, engine, batch_size=None).play(epochs)
    assert close(mixing(ours), np.eye(n), 1e-12)
    assert close(personal(ours), personal(theirs), 1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_pe2_on_identical_clients_an_epoch_is_gradient_descent(engine):
    federation, clients, steps = identical_clients(3), 3, 4

    def run(method: Any, rounds: int) -> np.ndarray:
        problem = Softmax(participation=1.0, batch_size=None)
        return personal(
            Simulation(
                method, problem._module, federation, batch_size=None, dtype=torch.float64, engine=engine
            ).play(rounds)
        )

    ours = run(PERM(learning_rate=0.1, local_steps=steps, step_rule="literal"), clients)
    descent = run(Local(learning_rate=0.1, local_steps=clients * steps), 1)
    assert close(ours, descent, 1e-12)


def full_matrix(clients: int) -> MixingMatrix:
    return MixingMatrix(torch.arange(clients * clients), torch.full((clients * clients,), 1 / clients))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 20), st.integers(0, 2**40))
def test_pe3_every_round_is_a_bijection_and_every_model_meets_every_client_once(clients, seed):
    route = Route.start(clients, torch.tensor(seed)).planned(full_matrix(clients))
    met = torch.zeros(clients, clients, dtype=torch.int64)
    for _ in range(clients):
        assert route.visitors.sort().values.tolist() == list(range(clients))
        met[route.visitors, torch.arange(clients)] += 1
        route = route.back_from(torch.arange(clients)).advanced(full_matrix(clients))
    assert (met == 1).all()
    assert (int(route.epoch), int(route.position)) == (1, 0)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 12), st.integers(0, 2**40), st.floats(0.3, 0.95))
def test_pe3_missed_visits_are_made_up_for_at_the_end_of_the_epoch(clients, seed, available):
    draw = np.random.default_rng(seed)
    matrix = full_matrix(clients)
    route = Route.start(clients, torch.tensor(seed)).planned(matrix)
    met = np.zeros((clients, clients), dtype=int)
    rounds = 0
    while route.epoch == 0:
        online = torch.as_tensor(draw.random(clients) < available).nonzero()[:, 0]
        hosts = online[route.visitors[online] != NOBODY]
        models = route.visitors[hosts]
        assert len(models.unique()) == len(models)
        met[models, hosts] += 1
        left_over = clients * clients - met.sum()
        route = route.back_from(hosts).advanced(matrix)
        rounds += 1
    assert met.max() <= 1
    assert clients <= rounds <= 2 * clients
    assert left_over == 0 or rounds == 2 * clients


@pytest.mark.parametrize("engine", ENGINES)
def test_pe4_projected_steps_reach_the_closed_form(engine):
    exact = Softmax(participation=1.0).simulate(PERM(local_steps=2), engine).play(2)
    method = PERM(local_steps=2, weights={"projected_steps": 300})
    stepped = Softmax(participation=1.0).simulate(method, engine).play(2)
    assert np.abs(mixing(exact) - mixing(stepped)).max() < 1e-12
    assert close(personal(stepped), personal(exact), 1e-10)
    single = Softmax(participation=1.0).simulate(PERM(local_steps=2, weights={"projected_steps": 1}), engine)
    assert np.abs(mixing(exact) - mixing(single.play(2))).max() > 1e-3  # sizes differ: one step is not enough


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("regulariser", [None, 1e-3, 5.0])
def test_pe5_identical_clients_weigh_by_rows(engine, regulariser):
    one = Softmax().federation
    federation = one.subset([2, 2, 2, 2])
    method = PERM(local_steps=1, weights={"regulariser": regulariser})
    module = Softmax()._module
    ours = Simulation(method, module, federation, dtype=torch.float64, engine=engine).play(1)
    assert close(mixing(ours), np.full((4, 4), 0.25), 1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_pe5_a_large_regulariser_weighs_by_rows(engine):
    problem = Softmax(participation=1.0)
    ours = problem.simulate(PERM(local_steps=1, weights=TOGETHER), engine).play(1)
    rows = problem.sizes / problem.sizes.sum()
    assert close(mixing(ours), np.tile(rows, (problem.clients, 1)), 1e-9)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("factor", [0.999, 1.001])
def test_pe6_a_client_is_alone_iff_the_nearest_is_beyond_its_budget(engine, factor):
    problem = Softmax(participation=1.0)
    g = np.array([problem.gradient(problem.start(), problem.rows(c)) for c in range(problem.clients)])
    z = ((g[:, None] - g) ** 2).sum(-1) + np.diag(np.full(problem.clients, np.inf))
    thresholds = problem.sizes * z.min(1) / 2
    for i in range(problem.clients):
        method = PERM(local_steps=1, weights={"regulariser": factor * thresholds[i]})
        row = mixing(problem.simulate(method, engine).play(1))[i]
        assert (np.count_nonzero(row) == 1) == (factor < 1)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("rule", ["literal", "per_model"])
def test_pe7_a_single_client_does_plain_sgd(engine, rule):
    federation = quadratics(seed=3, clients=4, dimensions=3, noise=0.5, rows=6, double=True).subset([2])
    perm = PERM(learning_rate=0.1, local_steps=3, step_rule=rule)
    ours = on_quadratics(perm, engine, federation).play(5)
    alone = on_quadratics(Local(learning_rate=0.1, local_steps=3), engine, federation).play(5)
    assert mixing(ours).tolist() == [[1.0]]
    assert close(personal(ours), personal(alone), 1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_pe9_permuting_clients_permutes_the_matrix(engine):
    problem, order = Softmax(participation=1.0), [3, 0, 4, 1, 2]
    method = PERM(local_steps=1, weights={"regulariser": 40.0})

    def run(federation: Any) -> np.ndarray:
        settings = {"dtype": torch.float64, "engine": engine}
        return mixing(Simulation(method, problem._module, federation, **settings).play(1))

    straight, shuffled = run(problem.federation), run(problem.federation.subset(order))
    assert close(shuffled, straight[np.ix_(order, order)], 1e-12)
    assert not close(shuffled, straight, 1e-3)


@pytest.mark.parametrize("engine", ENGINES)
def test_pe10_uniform_weights_are_incremental_training_and_not_averaging(engine):
    """Not an identity: the objective is FedAvg's, so both end near its minimiser, but on other paths."""
    federation = quadratics(seed=3, clients=4, dimensions=3, smallest=0.4, rows=2, double=True)

    def run(method: Any, rounds: int) -> np.ndarray:
        models = on_quadratics(method, engine, federation, batch_size=None).play(rounds).predictors()
        return models["personal" if "personal" in models else "global"]["weight"].numpy()

    def models(rate: float, epochs: int) -> tuple[np.ndarray, np.ndarray]:
        perm = PERM(learning_rate=rate, local_steps=2, step_rule="literal", weights=TOGETHER)
        return run(perm, 4 * epochs), run(FedAvg(learning_rate=rate, local_steps=2), 4 * epochs)

    early, averaged = models(0.2, 1)
    assert np.abs(early - averaged).max() > 1e-2
    curvature, weighted = np.zeros(3), np.zeros(3)
    for client in range(4):  # f = ½ mean (w x - y)²
        rows = federation.train.of(client)
        x, y = federation.inputs[rows].numpy(), federation.targets[rows].numpy()
        curvature, weighted = curvature + (x * x).mean(0), weighted + (x * y).mean(0)
    minimiser = weighted / curvature
    coarse = np.abs(models(0.8, 6)[0] - minimiser).max()
    fine, fine_averaged = (np.abs(m - minimiser).max() for m in models(0.2, 20))
    assert max(fine, fine_averaged) < 0.4 * coarse


# ---- options ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_the_final_step_is_a_full_gradient_step_on_every_mixture(engine):
    problem = Softmax(participation=1.0)
    options: dict[str, Any] = {"local_steps": 2, "epochs": 2, "weights": {"regulariser": 5.0}}
    without = problem.simulate(PERM(**options), engine).play(2 * problem.clients)
    V, A = vector(without.predictors()["personal"]), mixing(without)
    gradients = np.array([[problem.gradient(v, problem.rows(j)) for j in range(problem.clients)] for v in V])
    expected = V - 0.3 * np.einsum("ij,ijd->id", A, gradients)
    ours = problem.simulate(PERM(final_step=0.3, **options), engine).play(3 * problem.clients)
    assert close(vector(ours.predictors()["personal"]), expected)
    assert close(vector(ours.play(3).predictors()["personal"]), expected)  # and then the models rest
    assert int(ours.advance().down_bits.sum()) == 0


@pytest.mark.parametrize("engine", ENGINES)
def test_zero_weights_send_nothing(engine):
    problem = Softmax(participation=1.0)
    ours = problem.simulate(PERM(local_steps=1, weights={"regulariser": 5.0}), engine)
    first = ours.advance()
    others = [ours.advance() for _ in range(problem.clients - 1)]
    used = np.count_nonzero(mixing(ours))
    model = 64 * len(problem.start())
    assert 0 < used < problem.clients**2
    assert int(first.info["skipped_visits"]) == problem.clients**2 - used
    assert int(first.info["saved_bits"]) == (problem.clients**2 - used) * (2 * model + 64)
    assert sum(int(r.info["visits"]) for r in (first, *others) if "visits" in r.info) == used
    # an epoch: everybody's gradient at w, and for each visit a model and its factor down, the model up
    assert sum(int(r.down_bits.sum()) for r in (first, *others)) == problem.clients * model + used * (
        model + 64
    )
    assert sum(int(r.up_bits.sum()) for r in (first, *others)) == (problem.clients + used) * model


def test_the_cap_bounds_the_applied_rate():
    capped = on_quadratics(
        PERM(learning_rate=0.1, local_steps=2, step_rule="literal", step_cap=0.15, weights=ALONE),
        "sequential",
        batch_size=None,
    ).play(4)
    local = on_quadratics(Local(learning_rate=0.15, local_steps=2), "sequential", batch_size=None).play(1)
    assert close(personal(capped), personal(local), 1e-12)


def test_diagnostics_describe_the_matrix():
    problem = Softmax(participation=1.0)
    ours = problem.simulate(PERM(local_steps=1, weights={"regulariser": 5.0}), "vectorised")
    info, A = ours.advance().info, mixing(ours)
    logs = np.log(np.where(A > 0, A, 1))
    assert float(info["mixing_entropy"]) == pytest.approx(-(A * logs).sum(1).mean(), rel=1e-12)
    assert float(info["effective_helpers"]) == pytest.approx((1 / (A * A).sum(1)).mean(), rel=1e-12)
    rows = problem.sizes / problem.sizes.sum()
    assert float(info["mixing_change"]) == pytest.approx(np.linalg.norm(A - rows), rel=1e-12)
    assert np.array_equal(info["mixing_matrix"].numpy(), A)
    ours.play(problem.clients - 1)
    again = ours.advance().info
    assert float(again["mixing_change"]) == pytest.approx(np.linalg.norm(mixing(ours) - A), rel=1e-9)


def test_gradients_of_some_rows_are_keyed_and_all_rows_are_the_limit():
    problem = Softmax(participation=1.0)

    def matrix(rows: int | None) -> np.ndarray:
        method = PERM(local_steps=1, gradient_rows=rows, weights={"regulariser": 5.0})
        return mixing(problem.simulate(method, "vectorised").play(1))

    assert np.array_equal(matrix(4), matrix(4))
    assert not close(matrix(4), matrix(None), 1e-6)
    assert close(matrix(int(problem.sizes.max())), matrix(None), 1e-12)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method", [PERM(local_steps=4), PERMTwoStage(local_steps=4, global_rounds=2)])
def test_a_newcomer_mixes_the_models_of_clients_like_itself(method, engine):
    problem = Softmax(participation=1.0, batch_size=None)
    trained = problem.simulate(method, engine).play(12)
    newcomer = problem.federation.subset([3])  # with the rows of client 3
    model = vector(trained.newcomers(newcomer).predictors()["personal"])[0]
    G = vector(trained.server.gradients)
    z = np.append(((G[3] - G) ** 2).sum(1), 0.0)
    n = np.append(problem.sizes, problem.sizes[3]).astype(float)
    pairs = ((G[:, None] - G) ** 2).sum(-1)[~np.eye(len(G), dtype=bool)]
    alpha = water_level(z, n, 0.5 * problem.sizes.mean() * np.median(pairs))
    v = alpha[:-1] @ vector(trained.server.v) + alpha[-1] * vector(trained.server.w)
    for _ in range(4):
        v = v - 0.1 * alpha[-1] / alpha.max() * problem.gradient(v, problem.rows(3))
    assert close(model, v)


def test_a_final_step_without_an_end_is_refused():
    with pytest.raises(ValidationError, match="final_step needs epochs"):
        PERM(final_step=0.1)
