"""Runs and comparisons as they lie on disk, and the models that come out of them."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as parquet
import pytest
import torch
from typer.testing import CliRunner

import idiolect
from idiolect.cli import app
from idiolect.evaluation.summary import means
from idiolect.runs.client_model import export_model, load_model
from idiolect.runs.comparison import tabulate
from idiolect.runs.folder import RunFolder
from idiolect.runs.lifecycle import reported_simulation, start_or_continue

QUICK = ("data=vowels", "rounds=6", "method.local_steps=2", "evaluation.every=2", "engine=sequential")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    out = tmp_path_factory.mktemp("runs") / "apfl"
    return idiolect.run("method=apfl", *QUICK, out=out)


def test_metrics_are_one_long_table_that_other_tools_read(run: RunFolder) -> None:
    table = parquet.read_table(run.path / "metrics.parquet")
    assert table.column_names == ["round", "client", "kind", "part", "metric", "value"]
    metrics = run.metrics()
    # rounds 0, 2, 4, 6; 15 speakers; 3 kinds; validation and test; loss, accuracy and balanced_accuracy
    assert len(metrics) == 4 * 15 * 3 * 2 * 3
    assert not metrics.duplicated(["round", "client", "kind", "part", "metric"]).any()


def test_bits_are_those_of_the_messages(run: RunFolder) -> None:
    rounds = run.rounds()
    model_bits = 32 * (10 * 11 + 11)
    assert rounds["round"].tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert rounds.down_bits.tolist() == [0, *6 * [15 * model_bits]]
    assert rounds.up_bits.tolist() == [0, *6 * [15 * model_bits]]
    assert run.summary()["up_bits"] == 6 * 15 * model_bits


def test_bits_of_briefs_are_counted_apart(run: RunFolder) -> None:
    """All 15 speakers are sent the shared model to be evaluated, at rounds 0, 2, 4 and 6."""
    model_bits = 32 * (10 * 11 + 11)
    assert run.rounds().brief_bits.tolist() == [15 * model_bits * (number % 2 == 0) for number in range(7)]
    assert run.summary()["brief_bits"] == 4 * 15 * model_bits
    briefs = run.traffic()[lambda traffic: traffic.direction == "brief"]
    assert (briefs.bits == model_bits).all()
    assert briefs.groupby("round").client.nunique().to_dict() == {0: 15, 2: 15, 4: 15, 6: 15}


def test_the_reported_state_gives_the_reported_numbers(run: RunFolder) -> None:
    reported = run.summary()["kinds"]["personal"]
    validation = means(run.metrics(), "personal", "validation", "accuracy")
    assert validation[reported["round"]] == validation.max()
    simulation = reported_simulation(run)
    assert simulation.round == reported["round"]
    data = simulation.federation
    accuracies = []
    for client in range(len(data)):
        rows = data.test.of(client)
        params = simulation.predictor(client)["personal"]
        outputs = data.inputs[rows] @ params["linear.weight"].T + params["linear.bias"]
        accuracies.append(float((outputs.argmax(1) == data.targets[rows]).double().mean()))
    assert np.mean(accuracies) == pytest.approx(reported["mean"], abs=1e-12)


def test_a_configuration_is_read_once_until_it_is_written_anew(run: RunFolder, tmp_path: Path) -> None:
    shutil.copytree(run.path, tmp_path / "copy")
    copy = RunFolder(tmp_path / "copy")
    read = copy.config
    assert read == run.config
    assert copy.config is RunFolder(tmp_path / "copy").config is read
    (copy.path / "config.yaml").write_text(read.without_rewriting().to_yaml())
    assert copy.config == read.without_rewriting() != read
    (copy.path / "config.yaml").unlink()
    with pytest.raises(idiolect.UserError, match="nor a YAML file that exists"):
        copy.config  # noqa: B018


def test_the_same_configuration_is_the_same_run(run: RunFolder) -> None:
    before = {file: file.stat().st_mtime_ns for file in run.path.rglob("*")}
    again = start_or_continue(replace(run.config, out=str(run.path)))
    assert again.summary() == run.summary()
    assert {file: file.stat().st_mtime_ns for file in run.path.rglob("*")} == before


@pytest.mark.parametrize("mixture", ["parameters", "outputs"])
def test_an_exported_model_predicts_as_in_the_run(mixture: str, tmp_path: Path) -> None:
    settings = ["method=apfl", f"method.mixture_of={mixture}", *QUICK, f"out={tmp_path / 'run'}"]
    finished = idiolect.run(*settings)
    personal = load_model(export_model(finished, "speaker-04", tmp_path / "model"))
    simulation = reported_simulation(finished)
    inputs = simulation.federation.inputs[:20]
    predictor = simulation.predictor(4)["personal"]
    with torch.no_grad():
        expected = simulation.engine.setting.objective.predict(predictor, inputs)
        torch.testing.assert_close(personal.module(inputs), expected)


def test_an_exported_regression_predicts_in_the_targets_units(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    table = pd.DataFrame({"site": ["a", "b", "c"] * 40, "x": generator.normal(size=120)})
    table["price"] = 1000 + 50 * table.x
    table.to_csv(tmp_path / "prices.csv", index=False)
    settings = ["method=fedavg", f"data={tmp_path}/prices.csv", "data.client=site", "data.target=price"]
    settings += ["rounds=30", "lr=0.5", "engine=sequential", "evaluation.every=30", f"out={tmp_path}/run"]
    finished = idiolect.run(*settings)
    assert finished.summary()["metric"] == "rmse"
    model = load_model(export_model(finished, "b", tmp_path / "model"))
    np.testing.assert_allclose(model.predict(pd.DataFrame({"x": [0.0, 1.0]})), [1000, 1050], rtol=1e-3)


@pytest.mark.usefixtures("without_pages")
def test_a_comparison_gives_all_methods_the_same_start_and_rows(tmp_path: Path) -> None:
    settings = [
        "methods=local,fedavg,apfl",
        "seeds=2",
        "apfl.mixing=0.25",
        "lr=0.5",
        *QUICK,
        f"out={tmp_path / 'out'}",
    ]
    comparison = idiolect.compare(*settings)
    table, runs = comparison.table, comparison.runs
    assert [(run.config.method["name"], run.config.seed) for run in runs] == [
        (method, seed) for method in ("local", "fedavg", "apfl") for seed in (0, 1)
    ]
    assert runs[-1].config.method["mixing"] == 0.25
    first = [run.metrics().query("round == 0 and metric == 'loss'") for run in runs if run.config.seed == 1]
    losses = [frame.groupby(["part", "client"])["value"].first() for frame in first]
    for other in losses[1:]:
        pd.testing.assert_series_equal(losses[0], other)
    # APFL's shared model takes FedAvg's steps on the same batches: with equal settings they are one.
    by_model = table.set_index(["method", "kind"])
    assert by_model.loc[("apfl", "global"), "mean"] == by_model.loc[("fedavg", "global"), "mean"]
    assert by_model.loc[("apfl", "global"), "gain_over_shared"] == 0
    assert (table.seeds == 2).all()
    seeds = [
        run.summary()["kinds"]["personal"]["mean"] for run in runs if run.config.method["name"] == "local"
    ]
    assert by_model.loc[("local", "personal"), "mean"] == pytest.approx(np.mean(seeds))
    assert by_model.loc[("local", "personal"), "std_over_seeds"] == pytest.approx(np.std(seeds, ddof=1))
    pd.testing.assert_frame_equal(table, pd.read_parquet(comparison.path / "table.parquet"))


@pytest.mark.usefixtures("without_pages")
def test_another_comparison_in_the_same_folder_is_refused_and_harms_nothing(tmp_path: Path) -> None:
    settings = ["methods=local", *QUICK, f"out={tmp_path / 'out'}"]
    idiolect.compare(*settings)
    before = (tmp_path / "out" / "comparison.json").read_bytes()
    with pytest.raises(idiolect.UserError, match="holds another run"):
        idiolect.compare(*settings, "methods=fedavg,local", "rounds=3")
    assert (tmp_path / "out" / "comparison.json").read_bytes() == before
    assert not (tmp_path / "out" / "fedavg-seed0").exists()


def test_training_in_python_gives_the_numbers_of_the_run_folder(run: RunFolder) -> None:
    settings = {key: value for key, value in run.config.method.items() if key != "name"}
    result = idiolect.train(
        idiolect.method("apfl", **settings),
        idiolect.load("vowels", seed=0),
        rounds=6,
        evaluate_every=2,
        engine="sequential",
    )
    pd.testing.assert_frame_equal(result.metrics, run.metrics())
    pd.testing.assert_frame_equal(result.client_values, run.client_values())
    assert result.summary.loc["personal", "mean"] == run.summary()["kinds"]["personal"]["mean"]
    assert result.simulation.round == run.summary()["kinds"]["personal"]["round"]


def test_in_python_too_each_kind_is_of_the_round_that_is_reported_for_it() -> None:
    result = idiolect.train("apfl", "vowels", rounds=12, evaluate_every=1, local_steps=3, lr=2.0)
    federation = result.simulation.federation
    chosen = result.summary["round"]
    assert chosen.nunique() > 1
    judged = result.simulation.round
    for kind in ("global", "localized", "personal", "global"):
        for number in (2, 11):
            client, rows = federation.names[number], federation.test.of(number)
            decided = result.model(client, kind)(federation.inputs[rows]).argmax(1)
            accuracy = float((decided == federation.targets[rows]).double().mean())
            assert accuracy == pytest.approx(result.client_values.loc[client, kind], abs=1e-12)
            assert result.simulation.round == judged == chosen["personal"]


def test_a_run_that_diverges_is_told(tmp_path: Path) -> None:
    settings = ["method=fedavg", *QUICK, "model=mlp", "lr=1e8", "rounds=4", f"out={tmp_path / 'run'}"]
    finished = idiolect.run(*settings)
    assert finished.summary()["diverged"] == ["global", "localized"]
    reported = finished.summary()["kinds"]["localized"]["round"]
    assert reported_simulation(finished).round == reported


def test_numbers_that_are_not_finite_are_null_in_json_and_infinite_in_python(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    table = pd.DataFrame({"site": ["a", "b"] * 20, "x": generator.normal(size=40)}).assign(
        y=lambda t: 2 * t.x
    )
    table.to_csv(tmp_path / "table.csv", index=False)
    settings = ["method=fedavg", f"data={tmp_path}/table.csv", "data.client=site", "data.target=y", "lr=1e30"]
    settings += ["rounds=3", "evaluation.choose=last", "engine=sequential", f"out={tmp_path}/run"]
    finished = idiolect.run(*settings)
    assert finished.summary()["kinds"]["global"]["mean"] == np.inf  # a failed client stays in the mean
    assert (tabulate([finished])["mean"] == np.inf).all()
    shown = CliRunner().invoke(app, ["show", str(finished.path), "--json"]).stdout
    for text in ((finished.path / "summary.json").read_text(), shown):
        content = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
        assert content["kinds"]["global"]["mean"] is None
        assert content["kinds"]["global"]["failed"] == ["a", "b"]
        assert content["kinds"]["global"]["clients"] == finished.summary()["kinds"]["global"]["clients"]
    report = CliRunner().invoke(app, ["report", str(finished.path), "--out", str(tmp_path / "page.html")])
    assert report.exit_code == 0


def test_trackers_get_the_means(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    out = f"out={tmp_path / 'run'}"
    settings = ["method=fedavg", *QUICK, "trackers=tensorboard,mlflow", out]
    finished = idiolect.run(*settings)
    expected = means(finished.metrics(), "global", "test", "accuracy")
    events = event_accumulator.EventAccumulator(str(finished.path / "tensorboard")).Reload()
    logged = {event.step: event.value for event in events.Scalars("global/test/accuracy")}
    assert logged == pytest.approx(expected.to_dict())
    (tracked,) = mlflow.search_runs(search_all_experiments=True, output_format="list")
    assert tracked.data.metrics["global/test/accuracy"] == pytest.approx(expected.iloc[-1])


def test_traffic_by_client_and_named_part_adds_up_to_the_rounds(tmp_path: Path) -> None:
    settings = ["method=efl", *QUICK, "participation.rate=0.4", f"out={tmp_path / 'efl'}"]
    run = idiolect.run(*settings)
    traffic, rounds = run.traffic(), run.rounds().set_index("round")
    assert set(traffic.part) >= {"delta", "fisher"}
    for direction in ("down", "up", "brief"):
        by_round = traffic[traffic.direction == direction].groupby("round").bits.sum()
        by_round = by_round.reindex(rounds.index, fill_value=0)
        assert by_round.to_dict() == rounds[f"{direction}_bits"].to_dict()
    trained = traffic[traffic.direction != "brief"]
    assert trained.groupby("round").client.nunique().tolist() == [6] * 6  # floor(0.4 * 15)


def test_a_codec_shrinks_what_clients_send(tmp_path: Path) -> None:
    settings = ["method=fedavg", *QUICK, "codec.up=ternary", "codec.keep=0.3", f"out={tmp_path / 'run'}"]
    rounds = idiolect.run(*settings).rounds()
    dense = 32 * (10 * 11 + 11) * 15
    assert (rounds.down_bits[1:] == dense).all()
    assert (rounds.up_bits < dense / 10).all()  # 1.19 bits and a sign's share instead of 32 for each entry


def test_groups_that_are_found_are_compared_with_true_ones(tmp_path: Path) -> None:
    settings = [
        "method=pfedkm",
        "data=three-clusters",
        "data.clients=9",
        "rounds=2",
        f"out={tmp_path / 'run'}",
    ]
    diagnostics = idiolect.run(*settings).diagnostics()
    index = diagnostics[diagnostics.name == "adjusted_rand_index"]
    assert index["round"].tolist() == [1, 2]
    assert index.value.between(-1, 1).all()
    vowels = idiolect.run("method=pfedkm", *QUICK, out=tmp_path / "v")
    assert "adjusted_rand_index" not in set(vowels.diagnostics().name)
