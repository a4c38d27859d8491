"""check_method passes the methods that keep the contract and names the clause that a broken one breaks."""

from typing import Any, NamedTuple

import pytest
import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from idiolect.core import tree
from idiolect.core.cohort import Cohort
from idiolect.core.exchange import Exchange, Info, Site
from idiolect.core.hyper import STRICT
from idiolect.core.objective import Batch
from idiolect.core.transport import Transport
from idiolect.core.tree import Params
from idiolect.engines import assembly
from idiolect.engines.engine import Outcome
from idiolect.engines.vectorised import Vectorised
from idiolect.methods._template import Template
from idiolect.methods.apfl import APFL
from idiolect.methods.fedavg import Client, Down, FedAvg, Server, Up, Work
from idiolect.methods.local import Local
from idiolect.methods.submodels import HeteroFL
from idiolect.testing import ContractError, Quadratics, Reduction, check_method
from idiolect.testing.problems import Attention


def local_sgd_point(rate: float, steps: int) -> Any:
    """Where averaged local gradient descent ends: biased towards clients of high curvature."""

    def point(problem: Quadratics) -> dict[str, Tensor]:
        kept = (1 - rate * problem.curvature) ** steps
        w = ((1 - kept) * problem.optimum).sum(0) / (1 - kept).sum(0)
        return {
            "global": w.expand_as(problem.optimum),
            "localized": problem.optimum + kept * (w - problem.optimum),
        }

    return point


def own_optimum(problem: Quadratics) -> dict[str, Tensor]:
    return {"personal": problem.optimum}


def test_fedavg_keeps_the_contract() -> None:
    check_method(FedAvg(lr=0.3, local_steps=3), fixed_point=local_sgd_point(0.3, 3))


def test_the_template_runs_as_it_is() -> None:
    check_method(
        Template(lr=0.3, local_steps=3),
        reductions=[Reduction("localized", FedAvg(lr=0.3, local_steps=3), "localized")],
        fixed_point=local_sgd_point(0.3, 3),
    )


def test_fedavg_with_adam_keeps_the_contract() -> None:
    check_method(FedAvg(lr=0.01, local_steps=2, optimizer="adam", weighting="samples"))


def test_local_keeps_the_contract() -> None:
    check_method(Local(lr=0.3, local_steps={"epochs": 1}), fixed_point=own_optimum)


@pytest.mark.parametrize(
    "options",
    [
        {"mixing": 0.6, "local_steps": 3},
        {"mixing": "adaptive", "mixing_update": "step", "order": "shared_first", "local_steps": 3},
        {"mixture_of": "outputs", "mix_with": "local_copy", "ball_radius": 2.0, "local_steps": 3},
        {"mixing": 0.4, "average_offset": 3.0, "local_steps": 3},
    ],
)
def test_apfl_keeps_the_contract_and_trains_fedavgs_shared_model(options: dict[str, Any]) -> None:
    reductions = [Reduction("global", FedAvg(lr=0.3, local_steps=3), "global")]
    check_method(APFL(lr=0.3, **options), reductions=[] if "ball_radius" in options else reductions)


def test_apfl_reaches_every_clients_optimum() -> None:
    check_method(APFL(lr=0.3, local_steps=1, mixing=0.6), fixed_point=own_optimum, rounds_to_fixed_point=600)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class WrongSign(FedAvg):
    def step(self, work: Work, client: Client, down: Down, batches: tuple[Batch, ...], site: Site) -> Work:
        gradient = site.objective.gradient(work.w, batches[0])
        return Work(tree.step(work.w, -0.3, gradient), work.optimizer)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class StateOnSelf(FedAvg):
    def absorb(self, server: Server, replies: Up, cohort: Cohort) -> tuple[Server, Info]:
        velocity = tree.subtract(replies.w, server.w)
        if hasattr(self, "velocity"):
            velocity = tree.add(velocity, self.velocity)
        object.__setattr__(self, "velocity", tree.scale(velocity, 0.5))
        return Server(tree.add(server.w, velocity)), {}


@dataclass(frozen=True, kw_only=True, config=STRICT)
class SecretChannel(FedAvg):
    """The client half leaves something on the object that the server half picks up."""

    def finish(self, work: Work, client: Client, down: Down, site: Site) -> tuple[Client, Up]:
        object.__setattr__(self, "secret", 0.5)
        return Client(work.w, work.optimizer), Up(work.w)

    def absorb(self, server: Server, replies: Up, cohort: Cohort) -> tuple[Server, Info]:
        return Server(tree.scale(replies.w, getattr(self, "secret", 1.0))), {}


@dataclass(frozen=True, kw_only=True, config=STRICT)
class FirstComeFirstServed(FedAvg):
    def weights(self, server: Server, cohort: Cohort) -> None:  # type: ignore[override]
        return None

    def absorb(self, server: Server, replies: Up, cohort: Cohort) -> tuple[Server, Info]:
        return Server(tree.row(replies.w, 0)), {}


class Wider(NamedTuple):
    w: Params
    rows_of_the_client: Tensor


@dataclass(frozen=True, kw_only=True, config=STRICT)
class MessageOutsideItsType(FedAvg):
    def finish(self, work: Work, client: Client, down: Down, site: Site) -> tuple[Client, Up]:
        return Client(work.w, work.optimizer), Wider(work.w, site.size)  # type: ignore[return-value]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ChangesItsInput(FedAvg):
    def step(self, work: Work, client: Client, down: Down, batches: tuple[Batch, ...], site: Site) -> Work:
        gradient = site.objective.gradient(work.w, batches[0])
        for name, w in work.w.items():
            w -= 0.3 * gradient[name]
        return work


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ForgetsTheMask(FedAvg):
    """Counts on all planned steps being done instead of on those that were."""

    def finish(self, work: Work, client: Client, down: Down, site: Site) -> tuple[Client, Up]:
        drift = torch.as_tensor(site.clock.step, dtype=torch.float64)
        return Client(work.w, work.optimizer), Up(tree.scale(work.w, 1 / (1 + drift + _calls(self))))


@dataclass(frozen=True, kw_only=True, config=STRICT)
class RoundsOnTheWay(FedAvg):
    """Sends half precision between machines, but hands over full precision within one."""

    def transport(self, exchange: Exchange) -> Transport:
        return HalfPrecision(exchange)


class HalfPrecision(Transport):
    def send_up(self, upload: Up) -> Up:
        return Up(tree.map_tree(torch.Tensor.half, upload.w))

    def receive_up(self, sent: Up, like: Up) -> Up:
        return Up(tree.map_tree(torch.Tensor.double, sent.w))


@dataclass(frozen=True, kw_only=True, config=STRICT)
class KnowsOneModel(FedAvg):
    """Counts on the names of a perceptron's layers."""

    def finish(self, work: Work, client: Client, down: Down, site: Site) -> tuple[Client, Up]:
        assert "2.weight" in work.w
        return Client(work.w, work.optimizer), Up(work.w)


def _calls(method: Any) -> int:
    object.__setattr__(method, "calls", getattr(method, "calls", 0) + 1)
    return method.calls


BROKEN: list[tuple[type[FedAvg], str]] = [
    (WrongSign, "reaches its fixed point"),
    (StateOnSelf, "states survive serialisation"),
    (SecretChannel, "nothing but messages crosses"),
    (RoundsOnTheWay, "receive_up gives another message than was sent"),
    (FirstComeFirstServed, "the order of clients is irrelevant"),
    (MessageOutsideItsType, "messages are of their declared type"),
    (ChangesItsInput, "inputs are not changed"),
    (ForgetsTheMask, "vectorised equals sequential"),
    (KnowsOneModel, "vectorised equals sequential on a linear model"),
]


@pytest.mark.parametrize(("broken", "clause"), BROKEN, ids=[b.__name__ for b, _ in BROKEN])
def test_a_broken_method_is_named_with_the_clause_that_it_breaks(broken: type[FedAvg], clause: str) -> None:
    with pytest.raises(ContractError, match=clause):
        check_method(
            broken(lr=0.3, local_steps=3), fixed_point=local_sgd_point(0.3, 3), rounds_to_fixed_point=60
        )


def test_a_false_claim_of_reduction_is_refused() -> None:
    with pytest.raises(ContractError, match="reduces to local"):
        check_method(
            FedAvg(lr=0.3, local_steps=3),
            reductions=[Reduction("localized", Local(lr=0.3, local_steps=3), "personal")],
        )


@pytest.mark.parametrize(
    ("layer", "model"),
    [
        (nn.GroupNorm, "a network with group norm"),
        (nn.LayerNorm, "a residual network that uses a layer twice"),
        (Attention, "a network with attention"),
        (nn.Embedding, "a network with an embedding"),
    ],
)
def test_an_engine_that_is_wrong_with_one_kind_of_layer_is_found(
    layer: type[nn.Module], model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class WrongWithOneLayer(Vectorised):
        def carry_out(self, *arguments: Any) -> Outcome:
            outcome = super().carry_out(*arguments)
            if not any(isinstance(part, layer) for part in self.setting.objective.module.modules()):
                return outcome
            return outcome._replace(replies=tree.scale(outcome.replies, 1 + 1e-6))

    monkeypatch.setattr(assembly, "Vectorised", WrongWithOneLayer)
    with pytest.raises(ContractError, match=f"vectorised equals sequential on {model}: ") as found:
        check_method(FedAvg(lr=0.3, local_steps=3))
    assert str(found.value).count("vectorised equals sequential") == 1


def test_a_model_that_a_method_refuses_in_words_is_passed_over() -> None:
    """Sub-models need a chain of layers, which a normalisation is no part of."""
    check_method(HeteroFL(local_steps=3))
