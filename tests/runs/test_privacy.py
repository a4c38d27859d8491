"""Private runs: the noise that they decide on, what they count, and what they refuse."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

import idiolect
from idiolect.cli import app
from idiolect.core import tree
from idiolect.core.exchange import Epochs
from idiolect.errors import DivergenceError, UserError
from idiolect.methods.catalogue import METHODS
from idiolect.methods.fedavg import FedAvg
from idiolect.methods.local import Local
from idiolect.privacy.accounting import Release, batch_release, epsilon_of
from idiolect.runs.config import resolve
from idiolect.runs.decisions import decide
from idiolect.runs.folder import RunFolder
from idiolect.runs.identity import identity
from idiolect.runs.privacy import BudgetSpentError, Ledger, Prices, privacy_sentence
from idiolect.runs.settings import normalise
from idiolect.runs.setup import bound_plan, build_simulation, load_federation
from idiolect.simulation import Simulation

SMALL: dict[str, Any] = {
    "data": "vowels",
    "model": "linear",
    "batch_size": "all",
    "rounds": 3,
    "local_steps": 2,
}
ROW: dict[str, Any] = {"privacy.unit": "row", "privacy.epsilon": 3}
SILO: dict[str, Any] = {"privacy.unit": "silo", "privacy.epsilon": 3}


def decided(**settings: Any) -> Any:
    config = resolve(normalise({"method": "fedavg", **SMALL, **settings}))
    return decide(config, load_federation(config))


def test_noise_follows_from_the_planned_work() -> None:
    config, notes = decided(**ROW)
    spent = epsilon_of({Release(config.privacy.noise): 6}, 1e-5)
    assert 2.97 < spent <= 3
    assert any(note.startswith("privacy of each row: noise") for note in notes)
    assert any("would tell of rows" in note for note in notes)
    # Twice as many gradients at each batch, as APFL takes, need sqrt(2) times as much.
    both = decided(**ROW, method="apfl").config.privacy.noise / config.privacy.noise
    assert both == pytest.approx(2**0.5, rel=1e-3)
    # One client in each round: the one that is asked most decides.
    fewer = decided(**ROW, **{"participation.count": 1}).config.privacy.noise
    assert fewer < config.privacy.noise
    # An epoch of batches of 5 of 22 rows is 5 steps.
    sampled = decided(**ROW, batch_size=5, local_steps={"epochs": 1}).config
    assert sampled.method["local_steps"] == {"epochs": 1} == {"epochs": Epochs(1).epochs}
    assert 2.97 < epsilon_of({Release(sampled.privacy.noise, 5 / 22): 15}, 1e-5) <= 3


def test_it_is_said_where_noise_drowns_all_that_rows_can_say() -> None:
    """|noise| is about σ C sqrt(d), and b rows add up to b C at most; here b = 22, d = 11 · 11."""
    for noise, drowns in ((1.9, False), (2.1, True)):
        (sentence,) = (
            note
            for note in decided(**{"privacy.unit": "row", "privacy.noise": noise}).notes
            if note.startswith("privacy of each row")
        )
        assert ("noise is longer than all gradients of a batch together can be for" in sentence) == drowns
        assert ("1.05 times for" in sentence) == drowns


def test_it_is_said_that_large_targets_are_reached_slowly() -> None:
    prices = TABLE.assign(price=1e5 + 1e4 * TABLE.x0)
    for scaled in (True, False):
        data = {"name": prices, "client": "site", "target": "price", "scale_target": scaled}
        notes = decided(**ROW, data=data).notes
        assert any("the target is in units of its own" in note for note in notes) != scaled


def test_a_divergence_by_noise_is_not_said_to_come_from_rates_alone() -> None:
    result = idiolect.train(
        "fedavg", idiolect.load("vowels").subset(range(3)), "linear", rounds=5, local_steps=5, lr=10.0,
        choose="last", privacy={"unit": "row", "noise": 100.0},
    )  # fmt: skip
    (note,) = (note for note in result.notes if note.startswith("diverged"))
    assert "noise moves models too" in note
    assert "suit the data" not in note


def test_a_silo_is_hidden_in_as_many_sums_as_there_are_rounds() -> None:
    config, _ = decided(**SILO)
    assert 2.97 < epsilon_of({Release(config.privacy.noise): 3}, 1e-5) <= 3
    with pytest.raises(UserError, match=r"privacy.noise=0.5 is too little for privacy.epsilon=3: 3 rounds"):
        decided(**SILO, **{"privacy.noise": 0.5})


def test_the_ledger_counts_each_clients_releases(tmp_path: Path) -> None:
    settings = {**SMALL, **ROW, "batch_size": 6, "participation.rate": 0.4}
    run = idiolect.run(method="apfl", out=str(tmp_path / "run"), **settings)
    ledger, config = run.privacy(), run.config
    assert set(ledger.gradients) == {2}
    assert (ledger.releases == 2).all()
    asked = run.traffic().query("direction == 'up'").groupby("client")["round"].nunique()
    assert ledger.groupby("client")["round"].nunique().to_dict() == asked.to_dict()
    cut = json.loads((run.path / "summary.json").read_text())["privacy"]
    by_client = ledger.groupby("client").agg({"releases": "sum", "epsilon": "max"})
    assert by_client.releases.nunique() > 1  # some are asked more often
    for spent in by_client.itertuples():
        release = batch_release(config.privacy.noise, 2, 6 / 22)
        expected = epsilon_of({release: int(spent.releases)}, 1e-5)
        assert spent.epsilon == pytest.approx(expected, rel=1e-9)
    assert cut["epsilon"] == by_client.epsilon.max() <= 3
    assert cut["least_epsilon"] == by_client.epsilon.min() < cut["epsilon"]


def test_a_resumed_run_spends_and_computes_what_one_in_one_go_does(tmp_path: Path) -> None:
    class Stop(Exception):  # noqa: N818
        pass

    class Breaks:
        def played(self, round_number: int) -> None:
            if round_number == 2:
                raise Stop

        def evaluated(self, round_number: int, metrics: pd.DataFrame) -> None:
            pass

    settings = {**SMALL, "rounds": 5, "checkpoint.every": 2, "evaluation.every": 1, "batch_size": 6}
    for unit in (ROW, SILO):
        whole, broken = (
            tmp_path / f"{unit['privacy.unit']}-whole",
            tmp_path / f"{unit['privacy.unit']}-broken",
        )
        one = idiolect.run(method="fedavg", out=str(whole), **settings, **unit)
        with pytest.raises(Stop):
            idiolect.run(method="fedavg", out=str(broken), watch=lambda _: [Breaks()], **settings, **unit)
        other = idiolect.resume(str(broken))
        assert isinstance(other, RunFolder)
        for name in ("metrics", "privacy"):
            pd.testing.assert_frame_equal(getattr(one, name)(), getattr(other, name)())
        assert one.config.privacy == other.config.privacy


@pytest.mark.parametrize("evaluate_every", [1, 5])
def test_a_round_in_which_training_diverges_is_paid_for(
    evaluate_every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance = Simulation.advance

    def diverge_in_the_second(simulation: Simulation) -> Any:
        result = advance(simulation)
        if simulation.round == 2:  # clients have worked and sent
            simulation.round = 1
            raise DivergenceError("the parameters are not finite")
        return result

    monkeypatch.setattr(Simulation, "advance", diverge_in_the_second)
    settings = {**SMALL, **ROW, "evaluation.every": evaluate_every}
    run = idiolect.run(method="fedavg", out=str(tmp_path / "run"), **settings)
    assert run.summary()["ended"].startswith("diverged in round 2")
    assert set(run.privacy()["round"]) == {1, 2}
    expected = epsilon_of({Release(run.config.privacy.noise): 4}, 1e-5)  # two steps in each of two rounds
    assert run.summary()["privacy"]["epsilon"] == pytest.approx(expected, rel=1e-9)


def test_a_run_without_privacy_is_what_it_was(tmp_path: Path) -> None:
    settings = resolve(normalise({"method": "fedavg", **SMALL})).plain()
    assert settings["privacy"] is None
    assert "privacy" not in identity(settings)
    run = idiolect.run(method="fedavg", out=str(tmp_path / "run"), **SMALL)
    assert not (run.path / "privacy.parquet").exists()
    assert run.privacy().empty
    assert "privacy" not in run.summary()


def test_a_budget_is_never_passed(tmp_path: Path) -> None:
    config = decided(**ROW).config
    federation = load_federation(config)
    simulation = build_simulation(config, federation)
    prices = Prices(simulation.engine.setting, bound_plan(config, federation), config.privacy)
    ledger = Ledger(prices, pd.DataFrame(columns=["round"]), 0)
    for played in range(3):
        ledger.charge(simulation.server, played)
    with pytest.raises(BudgetSpentError, match=r"privacy.epsilon=3 is spent: with round 4 it would be 3"):
        ledger.charge(simulation.server, 3)


def test_a_run_that_has_spent_its_budget_has_ended_and_did_not_diverge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is planned so that this does not happen; what is planned may be wrong."""
    charge = Ledger.charge

    def no_more_than_two(ledger: Ledger, server: Any, played: int) -> Any:
        if played == 2:
            raise BudgetSpentError("privacy.epsilon=3 is spent: with round 3 it would be 3.1")
        return charge(ledger, server, played)

    monkeypatch.setattr(Ledger, "charge", no_more_than_two)
    run = idiolect.run(method="fedavg", out=str(tmp_path / "run"), **SMALL, **ROW)
    summary = run.summary()
    assert summary["ended"].startswith("privacy.epsilon=3 is spent")
    assert summary["diverged"] == []
    assert set(run.rounds()["round"]) == {0, 1, 2}
    shown = CliRunner().invoke(app, ["show", str(run.path)]).output
    assert "ended before all rounds were played: privacy.epsilon=3 is spent" in shown
    assert "diverged" not in shown
    assert "lr=" not in shown  # no other rate is proposed


def test_training_in_memory_tells_what_it_spent_as_a_run_does(tmp_path: Path) -> None:
    run = idiolect.run(method="fedavg", out=str(tmp_path / "run"), **SMALL, **ROW)
    settings = {name: value for name, value in SMALL.items() if name != "data"}
    result = idiolect.train("fedavg", SMALL["data"], **settings, **ROW)
    pd.testing.assert_frame_equal(result.privacy, run.privacy())
    (told,) = (note for note in result.notes if note.startswith("privacy of each row: ε = "))
    assert told in CliRunner().invoke(app, ["show", str(run.path)]).output


# fmt: off
REFUSED = {
    "row": {
        "efl", "ifca", "afl", "drfa", "agnostic-apfl", "perm", "perm-two-stage", "per-fedavg", "fedbabu",
        "fedrod", "fedala", "fedproto", "fedpac", "fedfomo", "knn-per",
    },
    "silo": {
        "efl", "pfedkm", "ifca", "afl", "drfa", "agnostic-apfl", "perm", "perm-two-stage", "fedgate",
        "fedala", "fedpac", "fedamp", "heur-fedamp", "fedfomo",
    },
}
# fmt: on


@pytest.mark.parametrize("unit", REFUSED)
@pytest.mark.parametrize("name", [method.name for method in METHODS])
def test_every_method_runs_or_is_refused_before_a_run_in_a_sentence(name: str, unit: str) -> None:
    known = next(method for method in METHODS if method.name == name)
    further = {"method.weighting": "uniform"} if getattr(known(), "weighting", "") == "samples" else {}
    if name == "perm-two-stage":  # whose clients are asked for more in the second stage alone
        further = {"method.global_rounds": 1}
    settings = {**SMALL, "method": name, "privacy.unit": unit, "privacy.noise": 1.0, "rounds": 3, **further}
    settings.pop("local_steps")
    config = resolve(normalise(settings))
    federation = load_federation(config).subset(range(3))
    if name in REFUSED[unit]:
        with pytest.raises(
            UserError, match=rf"^privacy.unit={unit} cannot be used with method={name}"
        ) as refused:
            decide(config, federation)
        assert "\n" not in str(refused.value)
        return
    decide(config, federation)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"privacy.unit": "row"}, "privacy: it needs privacy.epsilon=3, for one, or privacy.noise=1.1"),
        ({"privacy": "row"}, "privacy=row is not possible: it has settings, as privacy.unit=row"),
        ({"privacy.unit": "person"}, "privacy.unit=person is not possible: it must be row or silo"),
        ({"privacy": {"unit": ["row"]}}, "privacy.unit=['row'] is not possible: it must be row or silo"),
        ({"privacy.epsilon": 3}, "privacy.unit is missing: it must be row or silo"),
        ({**ROW, "privacy.delta": 1.5}, "privacy.delta=1.5 is not possible: it must be less than 1"),
        ({**ROW, "privacy.epsilon": 0}, "privacy.epsilon=0 is not possible: it must be greater than 0"),
        (
            {**ROW, "privacy.clip": 0},
            "privacy.clip=0 is not possible: it must be greater than or equal to 0.0",
        ),
        ({**ROW, "privacy.sigma": 1}, "privacy.sigma is not a setting"),
        ({**SILO, "codec.up": "topk"}, "privacy.unit=silo cannot be used with codec"),
        ({**SILO, "robust": "median"}, "privacy.unit=silo cannot be used with robust"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as refused:
        resolve(normalise({"method": "fedavg", "data": "vowels", **settings}))
    assert str(refused.value).startswith(sentence)


# --- what no two trainings may share ----------------------------------------------------------------------


def one_step(**settings: Any) -> np.ndarray:
    """The shared model after one step of rate 1 of one client with all of its rows, flat."""
    data = {"name": settings.pop("table", TABLE), "client": "site", "target": "outcome"}
    result = idiolect.train(
        "fedavg",
        {**data, "fractions": (1.0, 0.0, 0.0), **settings.pop("data", {})},
        settings.pop("model", "linear"),
        **{
            "rounds": 1,
            "local_steps": 1,
            "lr": 1.0,
            "batch_size": "all",
            "dtype": "float64",
            "engine": "sequential",
            **settings,
        },
    )
    params = result.simulation.global_model()
    return np.concatenate([value.numpy().ravel() for value in params.values()])  # type: ignore[union-attr]


TABLE = pd.DataFrame(
    {"site": ["a"] * 20, **{f"x{i}": np.linspace(-1, 1, 20) ** (i + 1) for i in range(40)}}
).assign(outcome=["no", "yes", "yes", "no"] * 5)
CHANGED = TABLE.assign(outcome=["yes", *TABLE.outcome[1:]])
OF_ROWS: dict[str, Any] = {"privacy": {"unit": "row", "noise": 100.0, "clip": 1.0}}
OF_SILOS: dict[str, Any] = {"privacy": {"unit": "silo", "noise": 100.0, "clip": 1.0}}
HALF: dict[str, Any] = {"noise": 200.0, "clip": 0.5}


@pytest.mark.parametrize(
    "other",
    [
        {"table": CHANGED},
        {"privacy": {**OF_ROWS["privacy"], **HALF}},
        {"weight_decay": 0.1},
        {"clip": 1000.0},
        {"participation": {"lost_replies": 1e-9}},
        {"data": {"class_weights": {"yes": 2.0}}},
    ],
    ids=["rows", "privacy", "weight decay", "clip", "participation", "class weights"],
)
@pytest.mark.parametrize("unit", [OF_ROWS, OF_SILOS], ids=["row", "silo"])
def test_trainings_that_differ_in_anything_have_noise_of_their_own(
    unit: dict[str, Any], other: dict[str, Any]
) -> None:
    """Else the difference of two models would be that of two sums as they are."""
    if unit is OF_SILOS:
        other = {
            name: {**value, "unit": "silo"} if name == "privacy" else value for name, value in other.items()
        }
    one, same, another = one_step(**unit), one_step(**unit), one_step(**{**unit, **other})
    assert np.array_equal(one, same)
    # Both have the deviation 100 in each of 41 entries, by the rows of a batch for the unit row.
    deviation = 100.0 / (20 if unit is OF_ROWS else 1)
    assert np.std(one) == pytest.approx(deviation, rel=0.35)
    assert np.std(another - one) == pytest.approx(2**0.5 * deviation, rel=0.35)


@pytest.mark.parametrize("unit", [OF_ROWS, OF_SILOS], ids=["row", "silo"])
def test_trainings_that_begin_elsewhere_have_noise_of_their_own(unit: dict[str, Any], tmp_path: Path) -> None:
    """Models that no setting tells from each other: of one class, or of one file at different times."""
    models, moves = [torch.nn.Linear(40, 1).double() for _ in range(2)], []
    for model in models:
        start = torch.cat([value.detach().ravel() for value in model.parameters()]).numpy()
        moves.append(one_step(**unit, model=model) - start)
        named = {f"linear.{name}": value for name, value in model.state_dict().items()}
        save_file(named, tmp_path / "first.safetensors")
        from_file = {"name": "linear", "weights": str(tmp_path / "first.safetensors")}
        moves.append(one_step(**unit, model=from_file) - start)
    deviation = 100.0 / (20 if unit is OF_ROWS else 1)
    for place, move in enumerate(moves):
        assert np.std(move) == pytest.approx(deviation, rel=0.35)
        for other in moves[:place]:
            assert np.std(move - other) == pytest.approx(2**0.5 * deviation, rel=0.35)


def test_rates_that_are_left_open_look_at_no_rows() -> None:
    alike = TABLE.assign(**{f"x{i}": TABLE.x0 for i in range(40)})  # whose losses are far less smooth
    for unit in (ROW, SILO):
        rates = [
            decided(**unit, data={"name": table, "client": "site", "target": "outcome"}).config.method
            for table in (TABLE, alike)
        ]
        assert rates[0] == rates[1]


class MoreLater(FedAvg):
    """Takes one gradient in the first step of a round, and two in the others."""

    name = "more-later"

    def step(self, work: Any, client: Any, down: Any, batches: Any, site: Any) -> Any:
        moved = super().step(work, client, down, batches, site)
        return super().step(moved, client, down, batches, site) if site.clock.step > 0 else moved


def test_steps_that_take_more_gradients_than_the_first_end_a_run() -> None:
    with pytest.raises(
        UserError, match="more-later as it is set: a round took 9 private gradients, and 6 were"
    ):
        idiolect.train(
            MoreLater(local_steps=2), idiolect.load("vowels").subset(range(3)), "linear", rounds=2,
            batch_size="all", engine="sequential", privacy={"unit": "row", "noise": 1.0},
        )  # fmt: skip


# --- those who come after training ------------------------------------------------------------------------


def test_newcomers_spend_what_their_trainings_cost(tmp_path: Path) -> None:
    settings = {**SMALL, "batch_size": 6, "local_steps": 2, "evaluation.choose": "last"}
    known = idiolect.load("vowels").names
    run = idiolect.run(
        method="apfl", out=str(tmp_path / "run"), **settings, **ROW, **{"newcomers.clients": known[0]}
    )
    noise, spent = run.config.privacy.noise, run.summary()["privacy"]
    assert known[0] not in set(run.privacy().client)
    # One training of two steps, of one gradient each, and two steps alone: all of rate 6 / 22.
    expected = epsilon_of({Release(noise, 6 / 22): 4}, 1e-5)
    assert spent["newcomers_epsilon"] == pytest.approx(expected, rel=1e-9)
    assert f"({expected:.3g} of newcomers at most)" in privacy_sentence(run.summary())  # type: ignore[operator]


def test_newcomers_who_would_spend_too_much_are_refused_before_the_run(tmp_path: Path) -> None:
    known = idiolect.load("vowels").names
    with pytest.raises(
        UserError, match=r"privacy.epsilon=3 is not enough for newcomers: .* take fewer steps"
    ):
        idiolect.run(
            method="fedavg", out=str(tmp_path / "run"), **SMALL, **ROW,
            **{"newcomers.clients": known[0], "newcomers.steps": 50},
        )  # fmt: skip
    assert not (tmp_path / "run").exists()
    # pFedKM's newcomers find their group by the losses of their rows.
    with pytest.raises(UserError, match=r"privacy.unit=row cannot be used with method=pfedkm"):
        idiolect.run(
            method="pfedkm", out=str(tmp_path / "run"), **SMALL, **ROW, **{"newcomers.clients": known[0]}
        )
    assert not (tmp_path / "run").exists()


def test_newcomers_draw_batches_of_their_own_in_each_training() -> None:
    """From the first model, which may be the reported one, and alone: else two releases had one sample."""
    data = idiolect.load("vowels")
    trained = idiolect.train(
        "fedavg", data.subset(range(3)), "linear", rounds=1, local_steps=1, batch_size=6,
        privacy={"unit": "row", "noise": 10.0},
    ).simulation  # fmt: skip
    others = data.subset([4])
    batches = [
        simulation.engine.setting.batches
        for simulation in (
            trained.newcomers(others, round_number=0, trained=False),
            trained.with_others(Local(learning_rate=0.1, local_steps=1), others),
        )
    ]
    sizes = others.train.sizes
    drawn = [
        batch.draw(torch.tensor([0]), 0, torch.arange(400), int(batch.widths[0])).sort(-1).values
        for batch in batches
    ]
    chance = 6 / int(sizes[0])
    members = [(rows[:, :, None] == others.train.index).any(1).double() for rows in drawn]
    assert all(float(each.mean()) == pytest.approx(chance, abs=0.02) for each in members)
    both = float((members[0] * members[1]).mean())
    assert both == pytest.approx(chance**2, abs=0.02)  # independent; of the same sample it is `chance`


def test_newcomers_noise_is_that_of_no_client_and_of_no_other_newcomer() -> None:
    data = idiolect.load("vowels")
    trained = idiolect.train(
        "fedavg", data.subset(range(3)), "linear", rounds=1, local_steps=1, lr=1.0, batch_size="all",
        dtype="float64", engine="sequential", privacy={"unit": "row", "noise": 1000.0},
    ).simulation  # fmt: skip
    moves = []
    for round_number, others in ((0, data.subset([4])), (0, data.subset([5])), (0, data.subset([6]))):
        met = trained.newcomers(others, round_number=round_number)
        before = tree.leaves(trained.server.inner.w)
        after = tree.leaves(tree.row(met.clients(), 0).inner.w)
        moves.append(torch.cat([(a - b).flatten() for a, b in zip(after, before, strict=True)]))
    first = trained.engine.setting.founding.inner.w
    own = tree.row(trained.clients(), 0).inner.w
    moves.append(torch.cat([(own[name] - first[name]).flatten() for name in first]))
    correlation = torch.corrcoef(torch.stack(moves)) - torch.eye(4)
    assert correlation.abs().max() < 5 / moves[0].numel() ** 0.5
