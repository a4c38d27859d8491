"""The page says what the runs say, is complete in one file, and is drawn without warnings."""

import re
from pathlib import Path

import pandas as pd
import pytest

import idiolect
from idiolect.evaluation.summary import reported_values
from idiolect.methods.apfl import APFL
from idiolect.methods.fedavg import FedAvg
from idiolect.methods.local import Local
from idiolect.reports import write_report
from idiolect.reports.evidence import gather
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


def test_the_page_needs_nothing_else_and_is_the_same_again(comparison: Path, page: str) -> None:
    outside = re.findall(
        r"""(?:src|href)=["'](?!#)([^"']+)""", re.sub(r"<svg.*?</svg>", "", page, flags=re.S)
    )
    assert outside == []
    assert len(re.findall(r'role="img"[^>]*><svg', page)) == 6  # three, for wide and for narrow windows
    assert "<script" not in page
    again = comparison / "again" / "report.html"
    write_report([comparison], again)
    assert {p.name for p in (again.parent / "figures").iterdir()} == {
        "clients.png",
        "curves.png",
        "traffic.png",
    }
    assert again.read_text() == page
