"""The vectorised engine gives the numbers of the sequential one: methods x models x participation."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from idiolect.core import tree
from idiolect.core.cohort import Cohort, Population
from idiolect.core.hyper import STRICT
from idiolect.core.method import Method
from idiolect.core.task import Task
from idiolect.data.federation import Federation, Rows
from idiolect.engines import chunks
from idiolect.engines.chunks import padded_size
from idiolect.engines.compiler import compiler
from idiolect.engines.vectorised import Vectorised
from idiolect.engines.ways import Way
from idiolect.errors import UserError
from idiolect.evaluation.metrics import evaluate
from idiolect.methods.apfl import APFL
from idiolect.methods.catalogue import METHODS
from idiolect.methods.fedavg import FedAvg
from idiolect.methods.local import Local
from idiolect.methods.per_fedavg import PerFedAvg
from idiolect.methods.perm import PERM
from idiolect.methods.pfedme import PFedMe
from idiolect.methods.scaffold import Scaffold
from idiolect.models import build_model
from idiolect.simulation import Simulation

SIZES = (7, 12, 5, 9, 20, 3, 11)
MODELS = {
    "linear": ("linear", {}, (6,)),
    "mlp": ("mlp", {"hidden": (5, 4)}, (6,)),
    "cnn": ("cnn", {"filters": (2, 3), "hidden": 4}, (2, 16, 16)),
    "char-lstm": ("char-lstm", {"embedding": 3, "hidden": 4, "layers": 2}, (5,)),
}


class Irregular:
    """Some clients, who complete different parts of their work and whose replies may be lost."""

    def __init__(self, *, partial: bool = False, unequal: bool = False, lost: bool = False) -> None:
        self.partial, self.unequal, self.lost = partial, unequal, lost

    def cohort(self, seed: int, round_number: int, sizes: Tensor) -> Cohort:
        ids = torch.arange(len(sizes))
        if self.partial:
            ids = ids[(ids + round_number) % 3 != 0]
        work = torch.ones(len(ids), dtype=torch.float64)
        if self.unequal:
            work = ((ids * 3 + round_number) % 5) / 4.0
        replied = (ids + round_number) % 4 != 1 if self.lost else torch.ones(len(ids), dtype=torch.bool)
        inclusion = torch.full((len(ids),), len(ids) / len(sizes), dtype=torch.float64)
        population = Population(sizes, self.present(round_number, len(sizes)))
        return Cohort(ids, work.to(torch.float64), replied, inclusion, population)

    def present(self, round_number: int, clients: int) -> Tensor:
        return torch.ones(clients, dtype=torch.bool)


PLANS = {
    "full": Irregular(),
    "partial": Irregular(partial=True),
    "unequal steps": Irregular(unequal=True),
    "lost replies": Irregular(partial=True, unequal=True, lost=True),
}


def federation(shape: tuple[int, ...], *, codes: bool) -> Federation:
    generator = torch.Generator().manual_seed(1)
    rows = sum(SIZES)
    inputs = torch.randn(rows, *shape, generator=generator)
    if codes:
        inputs = torch.randint(4, (rows, *shape), generator=generator)
    targets = torch.randint(4, (rows,), generator=generator)
    owned = Rows.of_clients(list(torch.arange(rows).split(SIZES)))
    return Federation(inputs, targets, Task("multiclass", 4), tuple("abcdefg"), owned, owned, owned)


def problem(model: str) -> tuple[Federation, nn.Module]:
    name, options, shape = MODELS[model]
    data = federation(shape, codes=model == "char-lstm")
    module = build_model(name, data, seed=2, **options)
    if model == "linear":  # it starts at zero, where all clients' models are alike
        for parameter in module.parameters():
            nn.init.normal_(parameter, std=0.3, generator=torch.Generator().manual_seed(3))
    return data, module


def both(method: Method, model: str, plan: Any, dtype: torch.dtype, rounds: int = 3) -> list[Simulation]:
    data, module = problem(model)
    options: dict[str, Any] = {"batch_size": 4, "weight_decay": 0.01, "dtype": dtype, "plan": plan, "seed": 4}
    return [
        Simulation(method, module, data, engine=engine, **options).play(rounds)
        for engine in ("sequential", "vectorised")
    ]


def assert_equal_runs(expected: Simulation, actual: Simulation, tolerance: float) -> None:
    """Relative to the largest entry of each tensor."""
    pairs = [(expected.server, actual.server), (expected.clients(), actual.clients())]
    pairs.append((expected.predictors(), actual.predictors()))
    for mine, theirs in pairs:
        for a, b in zip(tree.leaves(mine), tree.leaves(theirs, like=mine), strict=True):
            assert a.dtype == b.dtype
            scale = float(a.double().abs().max()) if a.numel() else 0.0
            torch.testing.assert_close(b.double(), a.double(), rtol=0, atol=tolerance * max(scale, 1e-3))


VARIANTS = {
    "fedavg": FedAvg(local_steps=4),
    "fedavg-epochs-momentum": FedAvg(local_steps={"epochs": 1}, optimizer="momentum"),
    "local-adam": Local(local_steps=3, optimizer="adam", lr=0.01),
    "apfl": APFL(local_steps=4),
    "apfl-step-shared-first": APFL(local_steps=3, mixing_update="step", order="shared_first"),
    "apfl-outputs": APFL(local_steps=3, mixture_of="outputs"),
    "apfl-theory": APFL(local_steps=3, mixing=0.3, average_offset=2.0, ball_radius=1.5),
}


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("model", ["linear", "mlp"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_float64(variant: str, model: str, plan: str) -> None:
    expected, actual = both(VARIANTS[variant], model, PLANS[plan], torch.float64, rounds=2)
    assert_equal_runs(expected, actual, 1e-9)


@pytest.mark.parametrize("plan", ["full", "lost replies"])
@pytest.mark.parametrize("model", ["cnn", "char-lstm"])
@pytest.mark.parametrize("variant", ["fedavg", "apfl"])
def test_float64_of_larger_models(variant: str, model: str, plan: str) -> None:
    expected, actual = both(VARIANTS[variant], model, PLANS[plan], torch.float64, rounds=2)
    assert_equal_runs(expected, actual, 1e-9)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_float64_of_every_method(method: type[Method]) -> None:
    expected, actual = both(method(), "mlp", PLANS["lost replies"], torch.float64)
    assert_equal_runs(expected, actual, 1e-9)


@pytest.mark.parametrize("variant", VARIANTS)
def test_float32_to_rounding(variant: str) -> None:
    """A dozen steps of a small network: rounding of 1e-7 grows to less than 1e-4."""
    expected, actual = both(VARIANTS[variant], "mlp", PLANS["lost replies"], torch.float32)
    assert_equal_runs(expected, actual, 1e-4)


def test_chunks_do_not_change_the_numbers() -> None:
    data, module = problem("mlp")
    whole, pieces = (Simulation(APFL(local_steps=3), module, data, dtype=torch.float64) for _ in range(2))
    pieces.engine = Vectorised(pieces.engine.setting, Way(2, is_recorded=True))
    assert_equal_runs(whole.play(2), pieces.play(2), 1e-12)


@pytest.mark.parametrize("plan", ["unequal steps", "lost replies"])
@pytest.mark.parametrize(
    "method",
    [
        FedAvg(local_steps={"epochs": 2}),
        FedAvg(local_steps=9, optimizer="momentum"),
        APFL(local_steps=9),  # its first step is another one
        Scaffold(local_steps=9),  # steps share what is computed once
        PerFedAvg(local_steps=9),  # several batches in a step
        PFedMe(local_steps=4),
        PERM(local_steps=9),  # another message to each client
    ],
    ids=lambda method: method.name,
)
def test_stacks_that_become_smaller_give_the_same_numbers(
    method: Method, plan: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "SMALL_STACK_BYTES", 0)
    expected, actual = both(method, "mlp", PLANS[plan], torch.float64)
    assert_equal_runs(expected, actual, 1e-9)


@pytest.mark.parametrize("row_bytes", [1, 2**26])
@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_batches_of_all_rows_are_padded_to_similar_clients(
    model: str, row_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "ROW_BYTES", row_bytes)
    data, module = problem(model)
    expected, actual = (
        Simulation(
            APFL(local_steps=3), module, data, batch_size=None, dtype=torch.float64, engine=engine
        ).play(2)
        for engine in ("sequential", "vectorised")
    )
    assert_equal_runs(expected, actual, 1e-9)


def test_what_is_computed_for_clients_that_have_finished_is_thrown_away() -> None:
    """The first client's errors grow 100,000 times in a step: in the other's 40 steps they would overflow."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(41, 3, generator=generator)
    inputs[0] *= 1000
    targets = torch.randn(41, 1, generator=generator)
    owned = Rows.of_clients([torch.arange(1), torch.arange(1, 41)])
    data = Federation(inputs, targets, Task("regression", 1), ("a", "b"), owned, owned, owned)
    module, method = nn.Linear(3, 1), FedAvg(local_steps={"epochs": 1}, lr=0.1)
    expected, actual = (
        Simulation(method, module, data, batch_size=1, dtype=torch.float64, engine=engine).play(1)
        for engine in ("sequential", "vectorised")
    )
    assert all(leaf.isfinite().all() for leaf in actual.server.w.values())
    assert_equal_runs(expected, actual, 1e-9)


@pytest.mark.parametrize("row_bytes", [1, 500, 2**26])
def test_clients_are_evaluated_in_their_order_whatever_their_sizes(
    row_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "ROW_BYTES", row_bytes)
    data, module = problem("mlp")
    method = FedAvg(local_steps=3)
    expected, actual = (
        evaluate(Simulation(method, module, data, batch_size=4, dtype=torch.float64, engine=engine).play(1))
        for engine in ("sequential", "vectorised")
    )
    assert expected.drop(columns="value").equals(actual.drop(columns="value"))
    torch.testing.assert_close(*(torch.tensor(table["value"].to_numpy()) for table in (actual, expected)))


def test_a_client_without_training_rows_is_named() -> None:
    data, module = problem("linear")
    empty = replace(
        data, train=Rows.of_clients([data.train.of(client)[: 5 * (client != 2)] for client in range(7)])
    )
    with pytest.raises(UserError, match="client 'c' has no training rows; every client needs at least one"):
        Simulation(FedAvg(), module, empty)


def test_padded_chunks_leave_no_trace() -> None:
    """37 clients are padded to 38; neither states nor sums know of the double."""
    sizes = [3 + client % 4 for client in range(37)]
    generator = torch.Generator().manual_seed(5)
    rows = sum(sizes)
    owned = Rows.of_clients(list(torch.arange(rows).split(sizes)))
    data = Federation(
        torch.randn(rows, 3, generator=generator),
        torch.randint(4, (rows,), generator=generator),
        Task("multiclass", 4),
        tuple(str(client) for client in range(37)),
        owned,
        owned,
        owned,
    )
    assert padded_size(37) == 38
    module = build_model("mlp", data, hidden=(4,))
    expected, actual = (
        Simulation(APFL(local_steps=2), module, data, batch_size=2, dtype=torch.float64, engine=engine).play(
            2
        )
        for engine in ("sequential", "vectorised")
    )
    assert_equal_runs(expected, actual, 1e-9)


class LastFirst(FedAvg):
    """Asks whom the plan asks in an order of its own."""

    def ask(self, server: Any, cohort: Cohort, key: Tensor) -> Cohort:
        return cohort.select(torch.arange(len(cohort)).flip(0))


class ApartLastFirst(APFL):
    """So does this one, and its server gets every upload."""

    def ask(self, server: Any, cohort: Cohort, key: Tensor) -> Cohort:
        return cohort.select(torch.arange(len(cohort)).roll(2))

    def weights(self, server: Any, cohort: Cohort) -> None:
        return None

    def absorb(self, server: Any, replies: Any, cohort: Cohort) -> Any:
        weights = super().weights(server, cohort)
        return super().absorb(server, tree.weighted_sum(replies, weights), cohort)


@pytest.mark.parametrize("plan", ["full", "lost replies"])
@pytest.mark.parametrize("method", [LastFirst(local_steps=3), ApartLastFirst(local_steps=3)])
@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_a_method_may_ask_in_any_order(model: str, method: Method, plan: str) -> None:
    expected, actual = both(method, model, PLANS[plan], torch.float64, rounds=2)
    assert_equal_runs(expected, actual, 1e-9)


def test_recordings_stay_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "MOST_RECORDINGS", 2)
    data, module = problem("linear")
    simulation = Simulation(FedAvg(local_steps=1), module, data)
    recordings = simulation.engine._compiler._recordings  # type: ignore[attr-defined]
    for clients in ([0], [0, 1], [0, 1, 2], [0, 1, 2, 3]):

        class Some(Irregular):
            def cohort(self, seed: int, round_number: int, sizes: Tensor, ids: Any = clients) -> Cohort:
                return super().cohort(seed, round_number, sizes).select(torch.tensor(ids))

        simulation.plan = Some()
        simulation.advance()
        assert len(recordings) <= 2


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Reversing(FedAvg):
    """Gives the parameters back in another order in every step."""

    def step(self, *arguments: Any) -> Any:
        moved = super().step(*arguments)
        return moved._replace(w=dict(reversed(moved.w.items())))


@pytest.mark.parametrize("recorded", [True, False])
def test_a_step_may_give_names_back_in_another_order(recorded: bool) -> None:
    """Two layers of one shape, so that nothing but the names tells them apart."""
    data = federation((4,), codes=False)
    module = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Tanh(), nn.Linear(4, 4, bias=False))
    method = Reversing(local_steps=3)
    expected = Simulation(method, module, data, batch_size=3, dtype=torch.float64, engine="sequential")
    actual = Simulation(method, module, data, batch_size=3, dtype=torch.float64, engine="vectorised")
    actual.engine = Vectorised(actual.engine.setting, Way(4, is_recorded=recorded))
    assert_equal_runs(expected.play(2), actual.play(2), 1e-12)
