"""The page says what the runs say, is complete in one file, and is drawn without warnings."""

import html
import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import idiolect
from idiolect.evaluation.summary import reported_values
from idiolect.methods.apfl import APFL
from idiolect.methods.fedavg import FedAvg
from idiolect.methods.local import Local
from idiolect.reports import write_report
from idiolect.reports.evidence import gather
from idiolect.reports.figures import curves_chart
from idiolect.reports.settings import command_of
from idiolect.runs.comparison import Comparison, resolve_comparison
from idiolect.runs.config import resolve
from idiolect.runs.folder import RunFolder
from idiolect.runs.settings import read_settings
from reports.reading import tables


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report") / "runs"
    settings = {"methods": ["local", "fedavg", "apfl"], "data": "vowels", "rounds": 4, "seeds": 2}
    return idiolect.compare(settings, evaluate_every=2, out=folder).path


@pytest.fixture(scope="module")
def page(comparison: Path) -> str:
    write_report([comparison], comparison / "report.html")
    return (comparison / "report.html").read_text()


def test_the_table_of_clients_holds_the_mean_over_seeds_of_the_reported_rounds(
    comparison: Path, page: str
) -> None:
    evidence = gather([comparison])
    apfl = [run for run in evidence.runs if run.config.method["name"] == "apfl"]
    assert len(apfl) == 2
    values = [
        reported_values(run.metrics(), "personal", "accuracy", run.summary()["kinds"]["personal"]["round"])
        for run in apfl
    ]
    expected = pd.concat(values, axis=1).mean(axis=1)
    header, *rows = tables(page)["clients"]
    column = header.index("apfl personal")
    assert {row[0]: row[column] for row in rows} == {c: f"{100 * v:.1f} %" for c, v in expected.items()}


def test_every_model_has_a_row_and_the_headline_names_the_best_of_those_judged(
    comparison: Path, page: str
) -> None:
    models = [row[0] for row in tables(page)["models"][1:]]
    kinds = {method.name: method.kinds for method in (Local, FedAvg, APFL)}
    assert models == [f"{name} {kind}" for name, own in kinds.items() for kind in own]
    table = pd.read_parquet(comparison / "table.parquet")
    judged = table[table.kind.isin(["personal"]) | (table.method == "fedavg")]
    best = judged.loc[judged["mean"].idxmax()]
    assert (
        f"Best on average: {best.method} {best.kind}, mean test accuracy {100 * best['mean']:.1f} %" in page
    )


def test_traffic_is_that_of_the_messages(comparison: Path) -> None:
    curves = gather([comparison]).curves
    parameters, clients, rounds = 10 * 11 + 11, 15, 4
    moved = 2 * 32 * parameters * clients * rounds / 8e6
    fedavg = curves[curves.model == "fedavg global"].set_index("round").megabytes
    assert fedavg[0] == 0
    assert fedavg[rounds] == pytest.approx(moved)
    assert (curves[curves.model == "local personal"].megabytes == 0).all()


def test_curves_have_the_interval_over_clients_and_seeds(comparison: Path) -> None:
    evidence = gather([comparison])
    by_seed = []
    for run in (run for run in evidence.runs if run.config.method["name"] == "apfl"):
        table = run.metrics()
        kept = table[(table.kind == "personal") & (table.part == "test") & (table.metric == "accuracy")]
        by_seed.append(kept[kept["round"] == 4].sort_values("client")["value"].to_numpy())
    values = np.stack(by_seed)  # seeds, clients
    spread_of_clients = values.mean(0).std(ddof=1) / np.sqrt(values.shape[1])
    spread_of_seeds = values.mean(1).std(ddof=1) / np.sqrt(len(values))
    half = stats.norm.ppf(0.975) * np.hypot(spread_of_clients, spread_of_seeds)
    curves = evidence.curves
    found = curves[(curves.model == "apfl personal") & (curves["round"] == 4)].iloc[0]
    assert found["value"] == pytest.approx(values.mean())
    assert (found.low, found.high) == pytest.approx((values.mean() - half, values.mean() + half))


def test_seconds_are_an_axis_once_runs_have_them(comparison: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = pd.DataFrame({"round": [], "seconds": []})  # of older versions
    monkeypatch.setattr(RunFolder, "timing", lambda run: nothing)
    assert "seconds" not in curves_chart(gather([comparison])).axes
    timing = pd.DataFrame({"round": [1, 2, 3, 4], "seconds": [0.5, 1.5, 2.5, 4.0]})
    monkeypatch.setattr(RunFolder, "timing", lambda run: timing)
    chart = curves_chart(gather([comparison]))
    assert chart.axes == ["round", "kilobytes", "seconds"] or chart.axes == ["round", "seconds", "kilobytes"]
    assert all(series.x["seconds"] == [0.0, 1.5, 4.0] for series in chart.series)


def test_who_sends_nothing_is_level_over_traffic(comparison: Path) -> None:
    evidence = gather([comparison])
    local = next(series for series in curves_chart(evidence).series if series.name == "local personal")
    assert list(local.x) == ["round", "seconds"]  # and no traffic
    assert local.level == evidence.table.set_index("method")["mean"]["local"]


def test_the_command_on_the_page_makes_the_same_runs(comparison: Path, page: str) -> None:
    (command,) = re.findall(r'<pre id="command"[^>]*>(.*?)</pre>', page)
    program, word, *settings = shlex.split(html.unescape(command))
    assert (program, word) == ("idiolect", "compare")
    again = resolve_comparison(read_settings(settings))
    made = Comparison(comparison).config
    assert [config.to_yaml() for config in again.configs] == [config.to_yaml() for config in made.configs]


def test_the_command_of_a_run_says_what_was_asked_for(tmp_path: Path) -> None:
    asked = [
        "method=apfl",
        "data=vowels",
        "rounds=2",
        "method.mixing=0.5",
        "seed=3",
        "codec.up=topk",
        "codec.keep=0.1",
    ]
    run = idiolect.run(*asked, out=tmp_path / "run")
    program, word, *settings = shlex.split(command_of([run]))
    assert (program, word) == ("idiolect", "run")
    assert resolve(read_settings(settings)).to_yaml() == resolve(read_settings(asked)).to_yaml()
    assert len(settings) <= len(asked) + 1


def test_the_settings_of_each_method_are_in_a_table(comparison: Path, page: str) -> None:
    header, *rows = tables(page)["settings"]
    assert header == ["method", "setting", "symbol", "value", "meaning"]
    found = {(row[0], row[1]): row[2:4] for row in rows}
    apfl = next(run.config.method for run in gather([comparison]).runs if run.config.method["name"] == "apfl")
    assert found["apfl", "mixing"] == ["α", str(apfl["mixing"])]
    assert {name for name, _ in found} == {"local", "fedavg", "apfl"}


def without_scripts(page: str) -> str:
    return re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)


def test_the_page_needs_nothing_else_and_is_the_same_again(comparison: Path, page: str) -> None:
    assert re.findall(r"""(?:src|href)=["'](?!#)([^"']+)""", without_scripts(page)) == []
    assert re.findall(r"<script[^>]*src", page) == []
    again = comparison / "again" / "report.html"
    write_report([comparison], again)
    assert {file.stem for file in (again.parent / "figures").glob("*.svg")} == {
        "mean-gain-over-training-alone",
        "mean-gain-over-the-one-shared-model",
        *(f"each-client-s-gain-with-{model}" for model in [best_over_alone(comparison)]),
        "how-each-client-fares",
        "learning-curves-round",
        "learning-curves-kilobytes",
        "learning-curves-seconds",
        "what-crosses-the-wire",
    }
    assert again.read_text() == page


def best_over_alone(comparison: Path) -> str:
    models = pd.read_parquet(comparison / "gain-summary.parquet")
    over_alone = models[(models.over == "alone") & (models.kind != "chosen")]
    best = over_alone.loc[over_alone.mean_gain.idxmax()]
    return f"{best.method}-{best.kind}"


def test_without_scripts_the_answer_and_the_tables_can_be_read(page: str) -> None:
    text = without_scripts(page)
    assert re.search(r'<div class="answer"><p><strong>[A-Z]', text)
    assert {"models", "gain-models", "clients", "settings", "traffic-parts"} <= set(tables(text))
    assert "<noscript>This figure is drawn by a script; the same is beside the page as SVG and PNG." in text
