"""PERM where clients hold sub-models of different sizes: spec 5.7."""

from typing import Any

import numpy as np
import pytest
import torch

from idiolect.core import rng, tree
from idiolect.engines.batches import Batches
from idiolect.errors import UserError
from idiolect.evaluation.metrics import evaluate
from idiolect.methods.perm import PERM, PERMTwoStage
from idiolect.models import Perceptron, build_model
from idiolect.simulation import Simulation
from idiolect.testing.problems import small_network, uneven_classification
from paper.problems import ENGINES, close
from paper.test_perm import mixing, water_level
from paper.test_submodels import CLASSES, HIDDEN, INPUTS, numpy_gradient

CAPACITIES = (1.0, 0.6, 0.2)  # of five hidden units: 5, 3 and 1
LAMBDA = 60.0


def simulate(method: Any, engine: str = "sequential") -> Simulation:
    return Simulation(
        method,
        small_network,
        uneven_classification(),
        batch_size=4,
        seed=5,
        dtype=torch.float64,
        engine=engine,  # type: ignore[arg-type]
    )


def sized(**options: Any) -> dict[str, Any]:
    return {"weights": {"regulariser": LAMBDA}, "model_sizes": {"capacities": CAPACITIES} | options}


def masks_of(units: int) -> list[np.ndarray]:
    m = (np.arange(HIDDEN) < units) * 1.0
    return [np.outer(m, np.ones(INPUTS)), m, np.outer(np.ones(CLASSES), m), np.ones(CLASSES)]


class Problem:
    """The same federation in NumPy."""

    def __init__(self, simulation: Simulation) -> None:
        self.federation = simulation.federation
        self.w = [p.numpy() for p in simulation.server.w.values()]
        self.n = self.federation.train.sizes.numpy().astype(float)
        self.units = [int(np.floor(CAPACITIES[c % 3] * HIDDEN + 1e-9)) for c in range(len(self.n))]
        self.batches = Batches(self.federation, 5, 4)

    def gradient(self, model: list[np.ndarray], rows: Any) -> list[np.ndarray]:
        return numpy_gradient(
            model, self.federation.inputs.numpy()[rows], self.federation.targets.numpy()[rows]
        )

    def costs(self, support: str, complexity: str | None, rule: str) -> np.ndarray:
        masks = [masks_of(u) for u in self.units]
        g = []
        for c, mask in enumerate(masks):
            model = [m * p for m, p in zip(mask, self.w, strict=True)]
            found = self.gradient(model, self.federation.train.of(c).numpy())
            g.append(np.concatenate([(m * x).ravel() for m, x in zip(mask, found, strict=True)]))
        held = [np.concatenate([m.ravel() for m in mask]) for mask in masks]
        z = np.zeros((len(g), len(g)))
        for i in range(len(g)):
            for j in range(len(g)):
                common = held[i] * held[j] if support == "intersection" else 1.0
                W = held[j].sum()
                vc = {"parameters": W, "w_log_w": W * np.log(W), None: 0.0}[complexity]
                z[i, j] = (common * (g[i] - g[j]) ** 2).sum() + np.sqrt(vc / self.n[j])
                if rule == "zero_weight" and self.units[i] > self.units[j]:
                    z[i, j] = np.inf
        return z

    def matrix(self, *arguments: Any) -> np.ndarray:
        rows = []
        for z in self.costs(*arguments):
            allowed = np.isfinite(z)
            row = np.zeros(len(z))
            row[allowed] = water_level(z[allowed], self.n[allowed], LAMBDA)
            rows.append(row)
        return np.array(rows)


@pytest.mark.parametrize(
    ("support", "complexity", "rule"),
    [
        ("literal", "parameters", "zero_weight"),
        ("literal", "w_log_w", "submodel"),
        ("intersection", None, "submodel"),
        ("intersection", "parameters", "zero_weight"),
    ],
)
def test_the_weight_problem_has_masks_and_the_complexity_term(support, complexity, rule):
    ours = simulate(PERM(local_steps=1, **sized(support=support, complexity=complexity, rule=rule)))
    expected = Problem(ours).matrix(support, complexity, rule)
    assert close(mixing(ours.play(1)), expected)
    assert np.count_nonzero(expected) > len(expected)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("rule", ["zero_weight", "submodel"])
def test_an_epoch_of_visits_trains_what_owner_and_host_hold(engine, rule):
    rate, steps = 0.2, 2
    method = PERM(learning_rate=rate, local_steps=steps, **sized(complexity=None, rule=rule))
    ours = simulate(method, engine)
    problem = Problem(ours)
    A, N = problem.matrix("literal", None, rule), len(problem.n)
    V = [[m * p for m, p in zip(masks_of(u), problem.w, strict=True)] for u in problem.units]
    met = 0
    sigma = rng.permutation(rng.fold(rng.key(5, "server"), 0), N).tolist()
    for r in range(N):
        for i in range(N):
            c = sigma[(i + r) % N]
            if A[i, c] == 0:
                continue
            met += 1
            mask = masks_of(min(problem.units[i], problem.units[c]))
            model = [m * p for m, p in zip(mask, V[i], strict=True)]
            size = int(problem.batches.batch_sizes[c])
            for k in range(steps):
                rows = problem.batches.draw(torch.tensor(c), r, torch.tensor(k), size).numpy()
                found = problem.gradient(model, rows)
                factor = rate * A[i, c] / A[i].max()
                model = [p - factor * m * g for p, m, g in zip(model, mask, found, strict=True)]
            V[i] = [np.where(m > 0, new, old) for m, new, old in zip(mask, model, V[i], strict=True)]
    ours.play(N)
    assert met > N
    personal = tree.leaves(ours.predictors()["personal"])
    for part, leaf in enumerate(personal):
        assert close(leaf.numpy(), np.stack([v[part] for v in V]))


@pytest.mark.parametrize("engine", ENGINES)
def test_messages_have_the_bits_of_the_sub_model(engine):
    ours = simulate(PERM(local_steps=1, **sized(complexity=None)), engine)
    problem = Problem(ours)
    gradients = ours.advance()
    bits = [64 * sum(int(m.sum()) for m in masks_of(u)) for u in problem.units]
    assert gradients.down_parts["w"].tolist() == bits
    assert gradients.up_parts["g"].tolist() == bits
    visit = ours.advance()
    visitors = rng.permutation(rng.fold(rng.key(5, "server"), 0), len(bits)).roll(-1)  # round 1 of the epoch
    expected = torch.zeros(len(bits), dtype=torch.int64)
    for model, host in enumerate(visitors.tolist()):
        if mixing(ours)[model, host] > 0:
            expected[host] = bits[model]  # the owner is never the larger one
    assert torch.equal(visit.up_parts.get("v", torch.zeros_like(expected)), expected)


@pytest.mark.parametrize(
    "method",
    [
        PERM(local_steps=5, warmup_rounds=20, model_sizes={"capacities": (1, 0.5, 0.25), "complexity": None}),
        PERMTwoStage(
            local_steps=5,
            global_rounds=20,
            selection="rolling",
            model_sizes={"capacities": (1, 0.5, 0.25), "rule": "submodel", "support": "intersection"},
        ),
    ],
    ids=["single loop", "two stage"],
)
def test_sizes_of_one_half_and_a_quarter_train_end_to_end(method):
    federation = uneven_classification(clients=6, features=4, classes=3)
    model = build_model("mlp", federation, hidden=(16, 8))
    simulation = Simulation(method, model, federation)
    before = evaluate(simulation)
    after = evaluate(simulation.play(20 + 5 * 6))

    def accuracy(table: Any) -> float:
        chosen = table[(table["metric"] == "accuracy") & (table["kind"] == "personal")]
        return float(chosen["value"].mean())

    assert accuracy(after) > accuracy(before) + 0.2
    personal = simulation.predictors()["personal"]
    small = Perceptron(4, 3, (4, 2))
    for name, parameter in small.named_parameters():
        corner = (slice(None), *(slice(n) for n in parameter.shape))
        held = torch.zeros_like(personal[name], dtype=torch.bool)
        held[corner] = True
        assert (personal[name][2::3][~held[2::3]] == 0).all()  # the smallest clients' models stay small


def test_capacities_need_layers():
    with pytest.raises(UserError, match="leaves none of the 5 units"):
        simulate(PERM(model_sizes={"capacities": (1.0, 0.1)}))
