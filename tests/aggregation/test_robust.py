"""Robust sums around methods: without liars what the method does, with liars no ruin."""

import logging
from typing import Any

import pytest
import torch
from torch import nn

import idiolect
from idiolect.aggregation.robust import Robust
from idiolect.aggregation.rules import RULES, Clip, Krum, Median, RobustRule, Trimmed
from idiolect.core import tree
from idiolect.errors import UserError
from idiolect.methods.apfl import APFL
from idiolect.methods.fedavg import FedAvg
from idiolect.methods.perm import PERM
from idiolect.methods.scaffold import Scaffold
from idiolect.runs.config import resolve
from idiolect.runs.settings import normalise
from idiolect.simulation import Simulation

FEDERATION = idiolect.load("vowels").subset(range(6))
ROUNDS = 3


def simulation(method: Any, engine: Any = "vectorised") -> Simulation:
    outputs = FEDERATION.task.outputs
    model = nn.Linear(FEDERATION.inputs.shape[1], outputs)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model.reset_parameters()
    played = Simulation(method, model, FEDERATION, engine=engine, batch_size=8, dtype=torch.float64)
    for _ in range(ROUNDS):
        played.advance()
    return played


def difference(a: Simulation, b: Simulation) -> float:
    left, right = tree.leaves(a.server), tree.leaves(b.server)
    return max(float((x - y).abs().max()) for x, y in zip(left, right, strict=True))


@pytest.mark.parametrize("method", [FedAvg(weighting="samples"), APFL(), Scaffold()], ids=lambda m: m.name)
@pytest.mark.parametrize("engine", ["vectorised", "sequential"])
def test_a_rule_that_leaves_all_as_it_is_is_the_plain_sum(method: Any, engine: Any) -> None:
    plain, robust = simulation(method, engine), simulation(Robust(method, Clip(norm=1e9)), engine)
    assert difference(plain, robust) < 1e-10


class Liar(FedAvg):
    """FedAvg, of whose clients the second sends something else."""

    def finish(self, work: Any, client: Any, down: Any, site: Any) -> Any:
        client, up = super().finish(work, client, down, site)
        lie = tree.map_tree(lambda sent, true: sent + LIE * (true - sent), down.w, up.w)
        return client, tree.where(site.client_id == 1, type(up)(lie), up)


LIE = -10.0


@pytest.mark.parametrize(
    "rule", [Median(), Trimmed(share=0.2), Krum(attackers=1), Clip()], ids=lambda r: r.name
)
@pytest.mark.parametrize("lie", [-10.0, 1e30, float("inf"), float("nan")])
def test_a_liar_ruins_the_plain_sum_and_no_robust_one(
    rule: RobustRule, lie: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.LIE", lie)
    honest = simulation(FedAvg())
    scale = max(float(leaf.abs().max()) for leaf in tree.leaves(honest.server))
    assert not difference(honest, simulation(Liar(), "sequential")) < scale
    assert difference(honest, simulation(Robust(Liar(), rule), "sequential")) < scale


def test_the_log_names_whom_a_rule_left_out(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "idiolect"):
        simulation(Robust(Liar(), Krum(attackers=1)), "sequential")
    told = [record.getMessage() for record in caplog.records]
    assert told[0] == f"round 1: the robust sum left out {FEDERATION.names[1]}"


def test_all_uploads_wrong_leave_the_server_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    class AllLie(FedAvg):
        def finish(self, work: Any, client: Any, down: Any, site: Any) -> Any:
            client, up = super().finish(work, client, down, site)
            return client, tree.scale(up, float("nan"))

    played = simulation(Robust(AllLie(), Median()), "sequential")
    first = played.engine.setting.objective.initial_params()
    assert all(torch.equal(first[name], value) for name, value in played.server.inner.w.items())


def test_a_method_without_sums_is_refused() -> None:
    with pytest.raises(UserError, match="robust=median cannot be used with method=perm: its server"):
        simulation(Robust(PERM(), Median()))


def test_rules_by_name_in_a_configuration() -> None:
    given = {"method": "fedavg", "data": "vowels", "robust": "krum", "robust.attackers": 2}
    config = resolve(normalise(given))
    assert config.robust == Krum(attackers=2)
    assert resolve(normalise({"method": "fedavg", "data": "vowels", "robust": None})).robust is None
    again = resolve(normalise(config.plain()))
    assert again.robust == config.robust
    for name in RULES:
        assert resolve(normalise({"method": "fedavg", "data": "vowels", "robust": name})).robust.name == name
