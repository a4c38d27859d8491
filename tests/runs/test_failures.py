"""Trainings that diverge, clients that explode alone, and runs that fail: said, kept and never rewarded."""

import json
import re
import shlex
from dataclasses import fields
from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
from pydantic.dataclasses import dataclass

import idiolect
from families import of_family
from idiolect import core
from idiolect.core.hyper import STRICT
from idiolect.methods.catalogue import METHODS
from idiolect.methods.fedavg import FedAvg
from idiolect.runs.comparison import Comparison
from idiolect.runs.folder import RunFolder
from idiolect.runs.notes import smaller_rates
from matrix.problem import invoke
from reports.reading import tables

SITES = ("a", "b", "c", "d")
BROKEN = "b"


def correlated() -> pd.DataFrame:
    """Four sites whose eight columns are nearly one, on scales that differ by a million."""
    random = np.random.default_rng(3)
    hidden = random.normal(size=240)
    columns = {f"x{i}": 10.0**i * (hidden + 0.05 * random.normal(size=240)) for i in range(-2, 6)}
    target = 40 + 7 * hidden + random.normal(size=240)
    return pd.DataFrame({"site": np.repeat(SITES, 60), **columns, "y": target})


def with_outliers() -> pd.DataFrame:
    """Four sites, of which one has inputs a thousand times as large as the others': only it explodes."""
    random = np.random.default_rng(4)
    frames = []
    for site, slope in zip(SITES, (1.0, -0.5, 2.0, 1.5), strict=True):
        x = random.normal(size=60) * (1000 if site == BROKEN else 1)
        frames.append(pd.DataFrame({"site": site, "x": x, "y": slope * x + random.normal(size=60)}))
    return pd.concat(frames, ignore_index=True)


def settings_for(table: pd.DataFrame, folder: Path, *further: str) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    table.to_csv(folder / "table.csv", index=False)
    common = ["rounds=12", "evaluation.every=2", "checkpoint.every=4", "method.local_steps=5"]
    return [f"data={folder}/table.csv", "data.client=site", "data.target=y", *common, *further]


def outliers(folder: Path, *further: str) -> list[str]:
    return settings_for(with_outliers(), folder, "data.fractions=[0.5,0.25,0.25]", *further)


@pytest.fixture(scope="module")
def exploded(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Each client trains alone at a rate that suits a curvature of 1, its bias's; one has 4 for its input."""
    folder = tmp_path_factory.mktemp("exploded")
    return idiolect.run(
        "method=local", "lr=0.9", "seed=1", *outliers(folder, f"out={folder}/run", "rounds=30")
    )


def test_a_client_that_explodes_alone_is_named_and_stays_in_every_mean(exploded: RunFolder) -> None:
    summary, metrics = exploded.summary(), exploded.metrics()
    numbers = summary["kinds"]["personal"]
    assert summary["diverged"] == ["personal"]
    assert numbers["diverged"] == [BROKEN]
    last = metrics[metrics["round"] == 30].pivot_table("value", "client", ["part", "metric"], sort=False)
    for part in ("validation", "test"):
        assert last.loc[BROKEN, (part, "loss")] == np.inf
        assert last.loc[BROKEN, (part, "rmse")] == np.inf
        assert last.loc[BROKEN, (part, "r2")] == -np.inf
        assert np.isfinite(last.drop(BROKEN)[part]).all(axis=None)
    assert numbers["clients"] == len(SITES)


def test_choosing_rounds_does_not_reward_a_client_that_is_not_finite(exploded: RunFolder) -> None:
    """The mean without the exploded client would be best at a round where that client has no finite loss."""
    metrics, numbers = exploded.metrics(), exploded.summary()["kinds"]["personal"]
    validation = metrics[(metrics.part == "validation") & (metrics.metric == "rmse")]
    by_round = validation.pivot_table("value", "round", "client")
    finite = np.isfinite(by_round).all(axis=1)
    assert not finite.all()
    means = by_round[finite].mean(axis=1)
    assert numbers["round"] == means.idxmin()
    assert numbers["validation"] == pytest.approx(means.min())
    assert by_round.drop(columns=BROKEN).mean(axis=1).idxmin() not in means.index


def test_every_output_names_the_client(exploded: RunFolder, tmp_path: Path) -> None:
    shown = invoke("show", exploded.path)
    assert "over 4 clients" in shown
    assert f"diverged: personal (1 of 4 clients: {BROKEN})" in shown
    assert "(diverged" in shown
    assert not re.search(r"\b(nan|inf)\b", shown)
    said = json.loads(invoke("show", exploded.path, "--json"))
    assert said["kinds"]["personal"]["diverged"] == [BROKEN]
    assert any(BROKEN in note for note in said["notes"])
    invoke("report", exploded.path, "--out", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "diverged" in tables(page)["models"][1][1]
    assert f"1 of 4 clients: {BROKEN}" in page
    assert "Best on average" not in page


def test_failed_and_undefined_are_told_apart_in_json(tmp_path: Path) -> None:
    settings = outliers(tmp_path, "method=local", "lr=0.9", "seed=1", "rounds=30", "evaluation.choose=last")
    run = idiolect.run(*settings, f"out={tmp_path}/run")
    said = json.loads((run.path / "summary.json").read_text())["kinds"]["personal"]
    assert (said["mean"], said["worst"], said["std"]) == (None, None, None)
    assert said["failed"] == [BROKEN]
    numbers = run.summary()["kinds"]["personal"]
    assert numbers["mean"] == numbers["worst"] == numbers["weighted"] == np.inf
    assert np.isfinite(numbers["min"])
    values = {
        row["client"]: row["personal"] for row in json.loads(invoke("show", run.path, "--json"))["clients"]
    }
    assert [client for client, value in values.items() if value is None] == [BROKEN]


@pytest.mark.parametrize("method", ["local", "fedavg", "apfl", "pfedme", "per-fedavg", "perm"])
def test_the_hint_works_when_followed(method: str, tmp_path: Path) -> None:
    table = correlated()
    followed: list[str] = []
    for attempt in range(4):
        start = [] if followed else ["lr=30"]
        out = tmp_path / str(attempt)
        said = invoke(
            "run", *settings_for(table, tmp_path, *start, *followed), f"method={method}", f"out={out}"
        )
        summary = RunFolder(out).summary()
        if not summary["diverged"]:
            break
        hint = re.search(r"; try ([^(]*) \(", said.replace("\n", " "))
        assert hint is not None
        followed = shlex.split(hint[1])
    assert 1 <= attempt <= 3
    judged = summary["kinds"][summary["judged_by"]]
    assert not judged["untrained"]
    assert judged["mean"] < table.y.std()


def test_hints_are_a_tenth_of_the_rates_and_go_to_the_method_of_a_comparison() -> None:
    method = idiolect.method("pfedme", learning_rate=0.05, inner_rate=0.2)
    assert smaller_rates(method) == ["lr=0.005", "method.inner_rate=0.02"]
    assert smaller_rates(method, "pfedme") == ["pfedme.learning_rate=0.005", "pfedme.inner_rate=0.02"]


DIVERGING = [
    pytest.param(kind, data, id=f"{kind.name}-{data}", marks=of_family(kind.name))
    for kind in METHODS
    for data in ("table", "vowels")
    if not (kind.needs_classes and data == "table")
]


@pytest.mark.parametrize(("kind", "data"), DIVERGING)
def test_no_method_ends_in_an_error_when_it_diverges(
    kind: type[core.Method], data: str, tmp_path: Path
) -> None:
    federation = correlated() if data == "table" else None
    source = settings_for(federation, tmp_path)[:3] if federation is not None else ["data=vowels"]
    rates = [f"method.{field.name}=1e6" for field in fields(kind) if field.name.endswith("rate")]  # type: ignore[arg-type]
    pace = ["rounds=4", "evaluation.every=2", f"out={tmp_path}/run"]
    run = idiolect.run(f"method={kind.name}", *source, *rates, *pace)
    summary = run.summary()
    assert summary["diverged"]
    for name in summary["diverged"]:
        numbers = summary["kinds"][name]
        assert numbers["diverged"] or summary["ended"].startswith("diverged in round")
    assert "diverged" in invoke("show", run.path)


@pytest.mark.parametrize(
    ("method", "rates"),
    [("pfedkm", ["lr=3"]), ("perm-two-stage", ["lr=1.5", "method.global_learning_rate=1.5"])],
)
def test_what_is_compared_and_grows_slowly_is_a_divergence_too(
    method: str, rates: list[str], tmp_path: Path
) -> None:
    """Distances between clients are large and finite in one round, and are not in the next."""
    settings = settings_for(correlated(), tmp_path, f"method={method}", *rates, "rounds=40")
    summary = idiolect.run(*settings, out=tmp_path / "run").summary()
    assert summary["ended"].startswith("diverged in round")


@pytest.mark.parametrize("method", ["efl", "pfedkm", "drfa"])
def test_a_method_that_cannot_go_on_has_ended_and_keeps_what_it_had(method: str, tmp_path: Path) -> None:
    settings = settings_for(correlated(), tmp_path, f"method={method}", "lr=1e30")
    run = idiolect.run(*settings, out=tmp_path / "run")
    summary = run.summary()
    played = int(run.rounds()["round"].max())
    assert re.match(rf"diverged in round {played + 1}: .* finite", summary["ended"])
    assert summary["diverged"] == list(summary["kinds"])
    assert 0 in set(run.metrics()["round"])
    assert not run.rounds()["round"].duplicated().any()
    assert invoke("resume", run.path)  # it is finished
    data = {"name": f"{tmp_path}/table.csv", "client": "site", "target": "y"}
    pace = {"rounds": 12, "evaluate_every": 2, "local_steps": 5}
    result = idiolect.train({"name": method, "learning_rate": 1e30}, data, **pace)
    assert result.ended == summary["ended"]
    assert result.notes
    pd.testing.assert_frame_equal(result.metrics, run.metrics())
    # In the middle of the round that failed, clients had other states than those that are reported.
    judged = summary["kinds"][summary["judged_by"]]["round"]
    assert result.simulation.round == judged
    values = result.simulation.evaluate()
    expected = run.metrics()[lambda metrics: metrics["round"] == judged].reset_index(drop=True)
    pd.testing.assert_frame_equal(values, expected)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Moody(FedAvg):
    """Fails in its first round, until somebody mends it."""

    name: ClassVar[str] = "moody"
    broken: ClassVar[bool] = True

    def end_round(self, server: core.ServerState) -> core.ServerState:
        if Moody.broken:
            raise ZeroDivisionError("a mistake of\nmy own")
        return super().end_round(server)


COMPARED = ("data=vowels", "rounds=4", "evaluation.every=2", "method.local_steps=2", "engine=sequential")


@pytest.fixture
def own_method(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(Moody, "broken", True)
    return f"{__name__}:Moody"


def test_one_run_that_fails_does_not_take_the_comparison_with_it(
    own_method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    methods = f"methods=local,{own_method},efl"
    said = invoke("compare", methods, "efl.learning_rate=1e30", *COMPARED, "seeds=2", f"out={out}")
    assert re.search(r"moody seed 1 +│ +failed", said)
    assert "moody seed 0: failed: ZeroDivisionError: a mistake of my own\n" in said
    comparison = idiolect.show(out)
    assert isinstance(comparison, Comparison)
    assert [run.config.method_name for run in comparison.runs] == ["local", "local", "efl", "efl"]
    assert [(failed.method, failed.seed) for failed in comparison.failures] == [("moody", 0), ("moody", 1)]
    assert comparison.table.set_index("method").diverged.to_dict() == {"local": False, "efl": True}
    assert "Traceback" in (out / "moody-seed0" / "log.txt").read_text()
    shown = json.loads(invoke("show", out, "--json"))
    assert [failed["method"] for failed in shown["failures"]] == ["moody", "moody"]
    assert {(row["method"], row["seed"]) for row in shown["diverged"]} == {("efl", 0), ("efl", 1)}
    page = (out / "report.html").read_text()
    assert "failed:</span> ZeroDivisionError" in page
    assert "Best on average among the 1 rows" in page
    # Once it is mended, `resume` makes what is missing, and only that.
    local = (out / "local-seed0" / "summary.json").stat().st_mtime_ns
    monkeypatch.setattr(Moody, "broken", False)
    assert "failed" not in invoke("resume", out)
    again = Comparison(out)
    assert (len(again.runs), again.failures) == (6, ())
    assert (out / "local-seed0" / "summary.json").stat().st_mtime_ns == local
    assert "moody global" in invoke("show", out)


def test_a_comparison_of_failures_only_is_one_sentence(own_method: str, tmp_path: Path) -> None:
    said = invoke("compare", f"methods={own_method}", *COMPARED, f"out={tmp_path}/out", mistake=True)
    assert said.startswith("error: all 1 runs of the comparison")
    assert "ZeroDivisionError" in said
    assert invoke("show", tmp_path / "out", mistake=True).count("\n") == 1


def test_an_interrupt_ends_a_comparison_which_resume_continues(tmp_path: Path) -> None:
    class Impatient:
        def played(self, round_number: int) -> None:
            if round_number == 3:
                raise KeyboardInterrupt

        def evaluated(self, round_number: int, metrics: pd.DataFrame) -> None:
            pass

    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        idiolect.compare("methods=local,fedavg", *COMPARED, out=out, watch=lambda config: [Impatient()])
    assert "is not finished: 0 of its 2 runs" in invoke("show", out, mistake=True)
    resumed = idiolect.resume(out)
    assert isinstance(resumed, Comparison)
    whole = idiolect.compare("methods=local,fedavg", *COMPARED, out=tmp_path / "whole")
    pd.testing.assert_frame_equal(resumed.table, whole.table)
    assert resumed.page is not None


@pytest.mark.usefixtures("without_pages")
def test_seeds_that_share_a_note_share_its_line(tmp_path: Path) -> None:
    settings = settings_for(
        correlated(), tmp_path, "methods=fedavg", "lr=1e6", "seeds=3", f"out={tmp_path}/out"
    )
    said = invoke("compare", *settings)
    assert "fedavg seeds 0, 1, 2: diverged: global (all 4 clients)" in said
    assert "try fedavg.learning_rate=0.1" in said
    mended = [*settings[:-1], "fedavg.learning_rate=0.1", f"out={tmp_path}/mended"]
    assert "diverged" not in invoke("compare", *mended)


def test_mistakes_in_settings_are_told_before_anything_runs(tmp_path: Path) -> None:
    out = tmp_path / "out"
    settings = ["methods=local,fedavg", *COMPARED, "evaluation.metric=rmse", f"out={out}"]
    assert "rmse is no metric of a multiclass task" in invoke("compare", *settings, mistake=True)
    assert not out.exists()


@pytest.mark.usefixtures("without_pages")
def test_counts_of_clients_are_whole_numbers(tmp_path: Path) -> None:
    """A client gains, loses or is within noise over all seeds together."""
    said = invoke("compare", "methods=local,fedavg", *COMPARED, "seeds=3", f"out={tmp_path}/out")
    assert re.search(r"\d+ of 15 clients gain beyond noise, \d+ lose, \d+ are within noise", said)
    assert not re.search(r"\d\.\d+ of 15", said)


def test_the_best_on_average_is_the_best_row(tmp_path: Path) -> None:
    comparison = idiolect.compare("methods=local,fedavg,apfl", *COMPARED, "lr=0.5", out=tmp_path / "out")
    best = comparison.table.sort_values("mean").iloc[-1]
    assert comparison.page is not None
    assert f"Best on average: {best.method} {best.kind}, mean test accuracy" in comparison.page.read_text()


def test_an_untrained_model_is_not_reported_without_saying_so(tmp_path: Path) -> None:
    run = idiolect.run(
        *settings_for(correlated(), tmp_path, "method=fedavg", "lr=1e4", f"out={tmp_path}/run")
    )
    numbers = run.summary()["kinds"]["global"]
    assert (numbers["round"], numbers["untrained"]) == (0, True)
    said = invoke("show", run.path)
    assert "untrained: for global" in said
    assert "(diverged, untrained)" in said


def test_a_run_that_would_go_on_improving_is_told(tmp_path: Path) -> None:
    run = idiolect.run(
        *settings_for(
            correlated(), tmp_path, "method=fedavg", "lr=1e-4", "batch_size=all", f"out={tmp_path}/run"
        )
    )
    assert run.summary()["kinds"]["global"]["still_improving"]
    assert not run.summary()["diverged"]
    assert "still improving at the last evaluation: global" in invoke("show", run.path)
