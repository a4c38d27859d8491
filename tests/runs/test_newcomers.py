"""Clients that are left out of training: it is as if they were not there, until they come."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import idiolect
from idiolect.runs.folder import RunFolder
from idiolect.runs.left_out import NewcomerSettings
from idiolect.runs.setup import load_parties
from idiolect.silo.serve_settings import serve_settings
from matrix.problem import invoke
from runs.same_run import assert_same_run

SITES = ("a", "b", "c", "d", "e")
NEW = "c"
# As many clients as there are groups, and a method that remembers; each with random batches.
METHODS = ("apfl", "pfedkm", "perm")
OPTIONS: dict[str, Any] = {"pfedkm": {"groups": 2}}


def table() -> pd.DataFrame:
    """The site that is left out has other means, a category for itself and most of a class."""
    random = np.random.default_rng(5)
    frames = []
    for number, site in enumerate(SITES):
        rows = 24 + 6 * number
        new = site == NEW
        dose = random.normal(50 if new else number, 9 if new else 1 + number, rows)
        age = random.normal(30 + number, 4, rows)
        age[: 5 if new else 2] = np.nan
        ward = random.choice(["x", "y", "z"] if new else ["x", "y"], rows)
        chance = 0.9 if new else 0.25
        outcome = np.where(random.random(rows) < chance, "ill", "well")
        frames.append(
            pd.DataFrame({"dose": dose, "age": age, "ward": ward, "outcome": outcome, "site": site})
        )
    return pd.concat(frames, ignore_index=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("newcomers")
    frame = table()
    frame.to_csv(folder / "all.csv", index=False)
    frame[frame.site != NEW].to_csv(folder / "others.csv", index=False)
    frame[frame.site == NEW].to_csv(folder / "new.csv", index=False)
    return folder


def settings(data: Path, method: str, **further: Any) -> dict[str, Any]:
    return {
        "data": {
            "name": data,
            "client": "site",
            "target": "outcome",
            "missing": "impute",
            "class_weights": "balanced",
        },
        "method": {"name": method, **OPTIONS.get(method, {})},
        "local_steps": 2,
        "rounds": 4,
        "batch_size": 7,
        "evaluation": {"every": 2, "choose": "last"},
        **further,
    }


@pytest.fixture(scope="module", params=METHODS)
def left_out(request: pytest.FixtureRequest, folder: Path) -> RunFolder:
    out = folder / f"{request.param}-left-out"
    return idiolect.run(settings(folder / "all.csv", request.param, newcomers={"clients": [NEW]}, out=out))


def test_training_is_that_of_a_table_without_them(left_out: RunFolder, folder: Path) -> None:
    """Rates, scales, categories, class weights, batches and groups: every number of the run is the same."""
    method = left_out.config.method_name
    without = idiolect.run(settings(folder / "others.csv", method, out=folder / f"{method}-without"))
    for name in ("metrics", "rounds", "traffic", "diagnostics", "clients"):
        pd.testing.assert_frame_equal(
            getattr(left_out, name)(), getattr(without, name)(), check_exact=True, obj=name
        )
    assert left_out.config.method == without.config.method  # with the rates that suit the data
    summary = left_out.summary()
    assert summary.pop("newcomers")["clients"] == [NEW]
    assert summary == without.summary()
    assert any(NEW in note and "left out" in note for note in left_out.notes)


def test_they_get_what_personalize_gives(left_out: RunFolder, folder: Path) -> None:
    """At one round for all kinds, which is the last."""
    outside = idiolect.personalize(left_out, data=folder / "new.csv").metrics
    keys = ["client", "kind", "part", "metric"]
    met = left_out.newcomers()
    after = met[(met.stage == "after") & (met.kind != "alone")]
    pd.testing.assert_frame_equal(
        after[[*keys, "value"]].reset_index(drop=True), outside[[*keys, "value"]], check_exact=True
    )


def test_before_it_trains_a_newcomer_has_the_shared_model(folder: Path) -> None:
    run = idiolect.run(
        settings(folder / "all.csv", "fedavg", newcomers={"clients": [NEW], "steps": 5}, out=folder / "steps")
    )
    met = run.newcomers().query("part == 'test' and metric == 'loss'").set_index(["kind", "stage"])["value"]
    assert met["global", "before"] == met["global", "after"] == met["localized", "before"]
    assert met["localized", "after"] != met["localized", "before"]
    further = idiolect.personalize(run, data=folder / "new.csv", steps=5).metrics
    fine_tuned = further.query("part == 'test' and metric == 'loss' and kind == 'localized'")["value"].item()
    assert met["localized", "after"] == fine_tuned


def test_a_kind_comes_from_the_round_that_is_reported_for_it(folder: Path) -> None:
    """Of a rate with which the two models are best at different rounds; each as in a run that ends there."""
    choose = {"every": 1, "choose": "validation"}
    chosen = settings(folder / "all.csv", "ditto", evaluation=choose, newcomers={"clients": [NEW]}, rounds=8)
    run = idiolect.run(chosen, lr=2.0, out=folder / "rounds")
    rounds = {kind: numbers["round"] for kind, numbers in run.summary()["kinds"].items()}
    assert len(set(rounds.values())) > 1
    assert min(rounds.values()) > 0
    met = run.newcomers()
    for kind, number in rounds.items():
        until = {**chosen, "rounds": number, "evaluation": {"every": 1, "choose": "last"}}
        ended = idiolect.run(until, lr=2.0, out=folder / f"until-{kind}").newcomers()
        there, expected = (table[table.kind == kind].reset_index(drop=True) for table in (met, ended))
        pd.testing.assert_frame_equal(there, expected, check_exact=True)


def test_alone_is_gradient_descent_from_the_first_model() -> None:
    """Two full steps of least squares in NumPy, from where the run's model begins."""
    random = np.random.default_rng(1)
    frame = pd.DataFrame(random.normal(size=(60, 2)), columns=["u", "v"])
    frame["y"] = 3 * frame.u - frame.v + random.normal(scale=0.1, size=60)
    frame["site"] = np.repeat(["a", "b", "c"], 20)
    data = {"name": frame, "client": "site", "target": "y"}
    chosen = {"rounds": 2, "local_steps": 9, "batch_size": "all", "dtype": "float64", "lr": 0.3}
    result = idiolect.train("fedavg", data, newcomers={"clients": ["b"], "steps": 2}, **chosen)
    parties = load_parties(
        idiolect.runs.config.resolve(
            {"method": {"name": "fedavg"}, "data": data, "newcomers": {"clients": ["b"]}}
        )
    )
    new = parties.newcomers
    assert new is not None
    own = new.train.of(0)
    x, y = new.inputs[own].double().numpy(), new.targets[own].double().numpy()[:, 0]
    first = result.simulation.engine.setting.objective.initial_params()
    weight, bias = first["linear.weight"].detach().numpy()[0], first["linear.bias"].detach().numpy()
    for _ in range(2):
        errors = x @ weight + bias - y
        weight, bias = weight - 0.3 * x.T @ errors / len(y), bias - 0.3 * errors.mean()
    rows = new.test.of(0)
    errors = new.inputs[rows].double().numpy() @ weight + bias - new.targets[rows].double().numpy()[:, 0]
    met = result.newcomers.query("kind == 'alone' and part == 'test' and metric == 'loss'")
    assert met.set_index("stage")["value"]["after"] == pytest.approx(0.5 * (errors**2).mean(), rel=1e-9)


def test_who_is_drawn_depends_on_seed_and_name_alone() -> None:
    names = [f"client-{i}" for i in range(40)]
    settings = NewcomerSettings(clients=0.1)
    drawn = [names[place] for place in settings.among(names, seed=3)]
    assert len(drawn) == 4
    fewer = [name for name in reversed(names) if name in drawn or int(name[7:]) % 2]
    again = NewcomerSettings(clients=4).among(fewer, seed=3)
    assert sorted(fewer[place] for place in again) == sorted(drawn)
    others = {tuple(settings.among(names, seed=seed)) for seed in range(20)}
    assert len(others) == 20


def test_a_fixed_split_fixes_who_is_new(folder: Path) -> None:
    def who(seed: int, /, **split: int) -> list[str]:
        chosen = {"data": {"name": "vowels", **split}, "method": {"name": "local"}, "seed": seed}
        parties = load_parties(idiolect.runs.config.resolve({**chosen, "newcomers": {"clients": 3}}))
        assert parties.newcomers is not None
        assert not {*parties.newcomers.names} & {*parties.federation.names}
        return list(parties.newcomers.names)

    assert who(0, seed=4) == who(1, seed=4) == who(4)
    assert who(0) != who(1)


@pytest.mark.parametrize("data", ["synthetic", "opposed-signs", "quadratic-line", "vowels"])
def test_every_kind_of_data_has_them(data: str) -> None:
    options: dict[str, Any] = {"synthetic": {"clients": 6}, "opposed-signs": {"clients": 6}}
    chosen = {"name": data, **options.get(data, {})}
    result = idiolect.train("apfl", chosen, newcomers={"clients": 1}, rounds=2, local_steps=1)
    everybody = idiolect.load(data, seed=0, **options.get(data, {})).names
    (new,) = set(result.newcomers.client)
    assert {new, *result.metrics.client} == set(everybody)
    assert new not in set(result.metrics.client)


def test_a_loader_of_ones_own_is_told_who_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It centres inputs by the mean of the others."""
    lines = [
        "import idiolect, numpy",
        "def load(seed, left_out=()):",
        "    rows = {name: numpy.arange(8.0)[:, None] + 10 * i for i, name in enumerate('abc')}",
        "    mean = numpy.concatenate([x for name, x in rows.items() if name not in left_out]).mean()",
        "    targets = [x[:, 0] % 2 for x in rows.values()]",
        "    inputs = [x - mean for x in rows.values()]",
        "    return idiolect.from_arrays(inputs, targets, seed=seed, names=list('abc'))",
    ]
    (tmp_path / "centred.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    settings = {
        "data": {"name": "centred:load"},
        "method": {"name": "local"},
        "newcomers": {"clients": ["c"]},
    }
    parties = load_parties(idiolect.runs.config.resolve(settings))
    assert parties.federation.inputs[:16].mean().item() == pytest.approx(0.0, abs=1e-6)
    assert parties.federation.inputs[16:].mean().item() == pytest.approx(15.0)


class Killed(BaseException):
    """Nothing catches it."""


class Killer:
    def played(self, round_number: int) -> None:
        if round_number == 4:
            raise Killed

    def evaluated(self, round_number: int, metrics: pd.DataFrame) -> None:
        pass


def test_a_killed_run_meets_the_same_newcomers(left_out: RunFolder, folder: Path) -> None:
    """Killed when all rounds are played and nobody has come yet; with states on disk."""
    method = left_out.config.method_name
    chosen = settings(folder / "all.csv", method, newcomers={"clients": [NEW]}, store="disk")
    with pytest.raises(Killed):
        idiolect.run(chosen, watch=lambda config: [Killer()], out=folder / f"{method}-killed")
    idiolect.resume(folder / f"{method}-killed")
    assert_same_run(folder / f"{method}-killed", left_out.path)
    killed = RunFolder(folder / f"{method}-killed").newcomers()
    pd.testing.assert_frame_equal(killed, left_out.newcomers(), check_exact=True)


def test_memory_and_the_sequential_engine_give_the_same(left_out: RunFolder, folder: Path) -> None:
    chosen = settings(folder / "all.csv", left_out.config.method_name, newcomers={"clients": [NEW]})
    method, data = chosen.pop("method"), chosen.pop("data")
    result = idiolect.train(method, data, **chosen)
    pd.testing.assert_frame_equal(result.newcomers, left_out.newcomers(), check_exact=True)
    alone = idiolect.train(method, data, engine="sequential", **chosen)
    pd.testing.assert_frame_equal(alone.newcomers, left_out.newcomers(), rtol=1e-3, atol=1e-4)


def test_the_summary_has_their_means_and_show_says_them(folder: Path) -> None:
    run = idiolect.run(
        settings(folder / "all.csv", "apfl", newcomers={"clients": 2}, out=folder / "two"), seed=1
    )
    summary, met = run.summary(), run.newcomers()
    assert met.client.nunique() == 2
    told = met[(met.metric == summary["metric"]) & (met.part == "test") & (met.kind == "personal")]
    mean = told[told.stage == "after"]["value"].mean()
    assert summary["newcomers"]["kinds"]["personal"]["after"] == pytest.approx(mean, rel=1e-12)
    assert "2 newcomers" in invoke("show", run.path)
    assert json.loads(invoke("show", run.path, "--json"))["newcomers"]["clients"] == sorted(set(met.client))


def test_a_comparison_and_a_tuning_leave_them_out(folder: Path) -> None:
    chosen = settings(folder / "all.csv", "apfl", newcomers={"clients": 1, "steps": {"epochs": 2}})
    del chosen["method"]
    compared = idiolect.compare(chosen, methods="local,fedavg", seeds=2, out=folder / "comparison")
    told = json.loads(invoke("show", compared.path, "--json"))["newcomers"]
    assert [(each["method"], each["seed"]) for each in told] == [
        ("local", 0), ("local", 1), ("fedavg", 0), ("fedavg", 1),
    ]  # fmt: skip
    assert told[0]["clients"] == told[2]["clients"]
    for run in compared.runs:
        assert not set(run.newcomers().client) & set(run.metrics().client)
    tuned = idiolect.tune(chosen, methods="fedavg", trials=2, out=folder / "tuning")
    assert tuned.clients == len(SITES) - 1
    assert tuned.settings["newcomers"]["clients"] == 1


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ({"newcomers": {"clients": 1}}, "newcomers is not a setting of `idiolect serve`"),
        ({"participation": {"work": "classes"}}, "silos tell nobody their classes"),
    ],
)
def test_what_silos_do_not_show_is_no_setting_between_them(setting: dict[str, Any], told: str) -> None:
    given = {"silos": ["a", "b"], "schema": {"target": "y"}, "method": {"name": "fedavg"}}
    with pytest.raises(idiolect.UserError, match=told):
        serve_settings({**given, **setting}, Path())
