"""Predictions kept with runs, who gains beyond noise, and what each client chooses: on small made tables."""

import html
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import idiolect
from idiolect.cli import app
from idiolect.errors import UserError
from idiolect.runs import predictions
from idiolect.runs.comparison import Comparison
from idiolect.runs.folder import RunFolder
from idiolect.runs.gain_words import choice_sentences, gain_sentences, what_noise_is
from idiolect.runs.gains import measure_gains

KINDS = {"local": "personal", "fedavg": "localized", "apfl": "personal"}


def write_table(path: Path, *, regression: bool = False) -> Path:
    """Seven sites of different sizes: the first five agree on x, the last two have the opposite sign.

    The last one has few rows.
    """
    numbers = np.random.default_rng(5)
    sites = []
    for place, rows in enumerate((60, 80, 100, 120, 140, 160, 24)):
        x = numbers.normal(size=(rows, 3))
        sign = -1 if place >= 5 else 1
        score = sign * 2 * x[:, 0] + x[:, 1] + 0.5 * numbers.normal(size=rows)
        frame = pd.DataFrame(x, columns=["a", "b", "c"]).assign(site=f"s{place}")
        sites.append(frame.assign(y=score if regression else np.where(score > 0, "yes", "no")))
    pd.concat(sites).to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    folder = tmp_path_factory.mktemp("gains")
    table = write_table(folder / "table.csv")
    return idiolect.compare(
        f"data={table}",
        "data.client=site",
        "data.target=y",
        "methods=local,fedavg,apfl",
        "seeds=2",
        "rounds=6",
        "lr=0.3",
        "evaluation.every=1",
        "evaluation.metric=accuracy",
        f"out={folder / 'out'}",
    )


def run_of(comparison: Comparison, method: str, seed: int = 0) -> RunFolder:
    return RunFolder(comparison.path / f"{method}-seed{seed}")


def test_predictions_are_those_of_the_reported_models(comparison: Comparison) -> None:
    """The accuracy of the kept outputs, by hand, is the reported one of each kind and client."""
    for run in comparison.runs:
        kept = pd.read_parquet(run.path / "predictions.parquet")
        assert kept.output_0.dtype == np.float32
        assert set(kept.part) == {"test"}
        right = (kept.output_0 > 0) == (kept.target == 1)
        accuracies = right.groupby([kept.client, kept.kind], observed=True).mean().unstack()
        expected = run.client_values()
        assert len(expected.columns) in (1, 2, 3)
        for kind in expected.columns:
            pd.testing.assert_series_equal(
                accuracies[kind].reindex(expected.index), expected[kind], check_names=False
            )
        sizes = kept.groupby(["kind", "client"], observed=True).size().loc[str(expected.columns[0])]
        assert sizes.to_dict() == run.clients()["test"].to_dict()


def test_all_runs_of_a_seed_tell_of_the_same_rows(comparison: Comparison) -> None:
    tables = [pd.read_parquet(run_of(comparison, method).path / "predictions.parquet") for method in KINDS]
    rows = [
        t[t.kind == kind][["client", "row", "target"]] for t, kind in zip(tables, KINDS.values(), strict=True)
    ]
    for other in rows[1:]:
        assert other.astype(str).to_numpy().tolist() == rows[0].astype(str).to_numpy().tolist()


def test_a_store_on_disk_keeps_the_same_predictions_and_models(
    comparison: Comparison, tmp_path: Path
) -> None:
    run = run_of(comparison, "apfl")
    again = idiolect.run(str(run.path / "config.yaml"), "store=disk", f"out={tmp_path / 'disk'}")
    ours, theirs = (pd.read_parquet(each.path / "predictions.parquet") for each in (again, run))
    pd.testing.assert_frame_equal(ours, theirs)
    exported = idiolect.load_model(idiolect.export(again, client="s2", out=tmp_path / "model"))
    assert exported.dtype.is_floating_point


def test_the_gain_is_the_difference_of_reported_values(comparison: Comparison) -> None:
    values = comparison.client_values()
    gains = comparison.gains().set_index(["method", "kind", "client"]).sort_index()
    for model, kind in (("fedavg", "global"), ("fedavg", "localized"), ("apfl", "personal")):
        for over, baseline in (("alone", "local personal"), ("shared", "fedavg global")):
            own = gains.loc[(model, kind)]
            if (model, kind) == ("fedavg", "global") and over == "shared":
                continue
            difference = values[f"{model} {kind}"] - values[baseline]
            assert own[f"gain_over_{over}"].to_dict() == pytest.approx(difference.to_dict())
            own = own.drop("s6")  # too few rows for an interval
            assert (own[f"low_over_{over}"] <= own[f"gain_over_{over}"] + 1e-12).all()
            assert (own[f"high_over_{over}"] >= own[f"gain_over_{over}"] - 1e-12).all()
            assert (own[f"low_over_{over}"] < own[f"high_over_{over}"]).any()


def test_alone_over_shared_is_the_negative_of_shared_over_alone(comparison: Comparison) -> None:
    gains = comparison.gains().set_index(["method", "kind", "client"]).sort_index()
    shared, alone = gains.loc[("fedavg", "global")], gains.loc[("local", "personal")]
    assert alone.low_over_shared.equals(-shared.high_over_alone)
    assert alone.high_over_shared.equals(-shared.low_over_alone)
    assert alone.low_over_shared.isna().tolist() == [False] * 6 + [True]  # the last one has few rows
    mirrored = {"gain": "loss", "loss": "gain"}
    turned = [mirrored.get(verdict, verdict) for verdict in shared.verdict_over_alone]
    assert turned == alone.verdict_over_shared.tolist()


def test_sites_with_the_opposite_sign_lose_by_the_shared_model_beyond_noise(comparison: Comparison) -> None:
    gains = comparison.gains().set_index(["method", "kind", "client"]).sort_index().loc[("fedavg", "global")]
    assert gains.loc["s5", "verdict_over_alone"] == "loss"
    assert gains.loc["s6", "tested_rows"] < 10
    assert gains.loc["s6", "verdict_over_alone"] == "too few rows"
    assert "gain" not in set(gains.verdict_over_alone[["s5", "s6"]])
    row = (
        comparison.gain_summary().query("method == 'fedavg' and kind == 'global' and over == 'alone'").iloc[0]
    )
    verdicts = gains.verdict_over_alone
    assert row.clients == 7
    assert row.lose == (verdicts == "loss").sum()
    assert row.within_noise == verdicts.isin(["within noise", "too few rows"]).sum()
    assert row.gain + row.lose + row.within_noise == 7
    assert row.by_chance == pytest.approx(0.05 * 6)
    assert row.mean_gain == pytest.approx(gains.gain_over_alone.mean())
    assert row.low < row.mean_gain < row.high
    assert row.worst_client == gains.gain_over_alone.idxmin()
    # Thirds of 7 are 3, 2 and 2 clients, by training rows: s6 is the smallest, s5 the largest.
    assert row.small == pytest.approx(gains.gain_over_alone[["s6", "s0", "s1"]].mean())
    assert row.large == pytest.approx(gains.gain_over_alone[["s4", "s5"]].mean())
    # The shared model fits those with the opposite sign worst.
    assert row.far == pytest.approx(gains.gain_over_alone[["s5", "s6"]].mean())


def test_measured_again_it_is_the_same(comparison: Comparison) -> None:
    again = measure_gains(comparison.runs)
    pd.testing.assert_frame_equal(again.clients, comparison.gains())
    pd.testing.assert_frame_equal(again.models, comparison.gain_summary())
    pd.testing.assert_frame_equal(again.choices, Comparison(comparison.path).choices(), check_dtype=False)


def test_clients_keep_what_is_best_on_their_validation_rows(comparison: Comparison) -> None:
    """By hand from the metrics: the first of the best, so that equals stay alone."""
    made = comparison.choices()
    assert set(made.method) == {"apfl"}
    assert len(made) == 2 * 7
    order = ["local personal", "fedavg global", "fedavg localized", "apfl personal"]
    for row in made.itertuples():
        told = {}
        for model in order:
            method, kind = model.split(" ")
            run = run_of(comparison, method, int(row.seed))
            at = run.metrics()
            at = at[(at["round"] == run.summary()["kinds"][kind]["round"]) & (at.kind == kind)]
            at = at[(at.client == row.client) & (at.metric == "accuracy")].set_index("part")["value"]
            told[model] = at
        validation = {model: told[model]["validation"] for model in order}
        test = {model: told[model]["test"] for model in order}
        best = max(validation.values())
        assert row.chosen == next(model for model in order if validation[model] >= best - 1e-12)
        assert row.value == test[row.chosen]
        assert row.oracle_value == max(test.values())
        assert test[row.oracle] == row.oracle_value
    summary = comparison.gain_summary().query("kind == 'chosen' and over == 'alone'").iloc[0]
    assert summary["mean"] == pytest.approx(made.value.mean())
    assert summary.cost_of_choosing == pytest.approx((made.oracle_value - made.value).mean())
    assert summary.wrong_choices == pytest.approx((made.value < made.oracle_value).mean())
    needed = [run.summary()["up_bits"] for run in comparison.runs if run.config.method_name != "local"]
    assert summary.up_bits == pytest.approx(sum(needed) / 2)  # of two seeds


def test_a_client_takes_home_what_it_chose(comparison: Comparison, tmp_path: Path) -> None:
    """Its outputs are those that were kept of the chosen model."""
    for client in ("s0", "s5"):
        kept = comparison.kept_by(client)
        first = comparison.choices().query("client == @client and seed == 0").iloc[0]
        assert (str(kept.model), kept.seed, kept.method) == (first.chosen, 0, "apfl")
        out = tmp_path / client
        arguments = [
            "export",
            str(comparison.path),
            "--client",
            client,
            "--kind",
            "chosen",
            "--out",
            str(out),
        ]
        result = CliRunner().invoke(app, arguments)
        assert f"{client} keeps {first.chosen} of seed 0" in result.output
        run = run_of(comparison, kept.model.method)
        said = pd.read_parquet(run.path / "predictions.parquet").query("client == @client")
        said = said[said.kind == kept.model.kind]
        inputs = run.federation().inputs[said.row.tolist()]
        outputs = idiolect.load_model(out).outputs(inputs)[:, 0].numpy()
        assert outputs == pytest.approx(said.output_0.to_numpy(), rel=1e-5, abs=1e-6)


def test_mistakes_in_taking_home(comparison: Comparison, tmp_path: Path) -> None:
    out = {"out": tmp_path / "x"}
    with pytest.raises(UserError, match="is a comparison: give one of its runs"):
        idiolect.export(comparison, client="s0", **out)
    with pytest.raises(UserError, match="goes with the folder of a comparison"):
        idiolect.export(comparison.runs[0], client="s0", kind="chosen", **out)
    with pytest.raises(UserError, match="there is no client 's9'"):
        idiolect.export(comparison.path, client="s9", kind="chosen", **out)
    with pytest.raises(UserError, match="--client is missing"):
        idiolect.export(comparison.path, kind="chosen", **out)


def test_gains_are_printed_for_people_and_programs(comparison: Comparison) -> None:
    shown = CliRunner().invoke(app, ["show", str(comparison.path), "--clients"]).output
    row = (
        comparison.gain_summary().query("method == 'apfl' and kind == 'personal' and over == 'alone'").iloc[0]
    )
    flat = " ".join(shown.split())
    assert f"apfl personal against training alone: {row.gain} of 7 clients gain beyond noise" in flat
    assert "who gains by joining?" in flat
    assert "(1 with fewer than 10 test rows, too few to say)" in flat
    assert "each client's gain over training alone" in flat
    told = json.loads(CliRunner().invoke(app, ["show", str(comparison.path), "--json"]).output)
    assert len(told["gains"]) == 5 * 7  # alone, shared, fine-tuned, apfl, chosen
    assert {row["over"] for row in told["gain_summary"]} == {"alone", "shared"}
    assert len(told["choices"]) == 14


def test_the_page_says_who_gains(comparison: Comparison) -> None:
    assert comparison.page is not None
    page = comparison.page.read_text()
    for sentence in (*gain_sentences(comparison.gain_summary()), "Who gains by joining?"):
        assert html.escape(sentence) in page
    assert 'id="gain-groups"' in page
    apart = idiolect.report(*comparison.runs, out=comparison.path.parent / "apart.html").read_text()
    assert html.escape(gain_sentences(comparison.gain_summary())[0]) in apart
    other = idiolect.report(
        *comparison.runs, comparison, out=comparison.path.parent / "twice.html"
    ).read_text()
    assert "Who gains by joining?" not in other  # two runs of one name


def copied(comparison: Comparison, folder: Path) -> Comparison:
    shutil.copytree(comparison.path, folder)
    for file in folder.glob("gain*.parquet"):
        file.unlink()
    return Comparison(folder)


def test_without_predictions_one_sentence_says_why(comparison: Comparison, tmp_path: Path) -> None:
    other = copied(comparison, tmp_path / "old")
    for method in KINDS:
        for seed in (0, 1):
            (other.path / f"{method}-seed{seed}" / "predictions.json").unlink()
    models = other.gain_summary()
    assert (models.no_interval == models.clients).all()
    assert other.gains().low_over_alone.isna().all()
    assert models.low.notna().all()  # clients can be drawn nevertheless
    assert what_noise_is(models, other.runs) == [
        "local has no intervals: the run is of a version that kept no predictions"
    ]
    assert "nobody can say what is more than noise" in gain_sentences(models)[0]
    assert CliRunner().invoke(app, ["show", str(other.path), "--clients"]).exit_code == 0


def test_predictions_that_are_too_many_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictions, "MOST_NUMBERS", 300)
    table = write_table(tmp_path / "table.csv")
    words = [f"data={table}", "data.client=site", "data.target=y", "rounds=1", f"out={tmp_path / 'run'}"]
    run = idiolect.run("method=apfl", "lr=0.1", *words)
    assert not (run.path / "predictions.parquet").exists()
    assert str(predictions.why_none(run)).startswith("predictions were not kept: they are ")


def test_models_that_failed_lose_and_nothing_breaks(tmp_path: Path) -> None:
    """One method diverges: infinite losses; and it is nobody's choice."""
    table = write_table(tmp_path / "table.csv", regression=True)
    settings = [f"data={table}", "data.client=site", "data.target=y", "rounds=30", "evaluation.choose=last"]
    made = idiolect.compare(
        *settings, "methods=local,fedavg,ditto", "lr=0.05", "ditto.lr=1e6", f"out={tmp_path / 'out'}"
    )
    gains = made.gains().query("method == 'ditto' and kind == 'personal'")
    assert (gains.gain_over_alone == -math.inf).all()
    assert set(gains.verdict_over_alone) == {"loss"}
    assert not made.choices().chosen.str.startswith("ditto").any()
    row = made.gain_summary().query("method == 'ditto' and kind == 'personal' and over == 'alone'").iloc[0]
    assert (row.lose, row.mean_gain) == (7, -math.inf)
    shown = CliRunner().invoke(app, ["show", str(made.path), "--clients"])
    assert shown.exit_code == 0
    assert "7 lose" in shown.output
    assert json.loads(CliRunner().invoke(app, ["show", str(made.path), "--json"]).output)["gains"]


def test_without_a_baseline_there_is_nothing_to_say(tmp_path: Path) -> None:
    table = write_table(tmp_path / "table.csv")
    words = [f"data={table}", "data.client=site", "data.target=y", "rounds=1", f"out={tmp_path / 'out'}"]
    made = idiolect.compare("methods=apfl,ditto", "lr=0.1", *words)
    assert made.gain_summary().empty
    assert made.choices().empty
    assert "who gains" not in CliRunner().invoke(app, ["show", str(made.path), "--clients"]).output
    with pytest.raises(UserError, match="clients choose between training alone and another method"):
        idiolect.export(made.path, client="s0", kind="chosen", out=tmp_path / "x")


@pytest.mark.parametrize("fractions", ["[0.7,0.3,0]", "[0.7,0,0.3]"], ids=["no test", "no validation"])
def test_nobody_chooses_without_rows_to_choose_by_and_others_to_test_on(
    fractions: str, tmp_path: Path
) -> None:
    table = write_table(tmp_path / "table.csv")
    words = [f"data={table}", "data.client=site", "data.target=y", "rounds=1", f"data.fractions={fractions}"]
    made = idiolect.compare("methods=local,fedavg", "lr=0.1", *words, f"out={tmp_path / 'out'}")
    assert made.choices().empty
    assert "chosen" not in set(made.gains().kind)
    assert made.gain_summary().clients.eq(7).all()


def row_of(**further: object) -> pd.DataFrame:
    row = {"method": "apfl", "kind": "personal", "over": "alone", "metric": "accuracy", "clients": 15}
    row |= {"gain": 5, "lose": 0, "within_noise": 10, "too_few_rows": 0, "no_interval": 0}
    return pd.DataFrame([{**row, "mean_gain": 0.031, "low": 0.01, "high": 0.052, **further}])


def test_the_sentences() -> None:
    assert gain_sentences(row_of()) == [
        "apfl personal against training alone: 5 of 15 clients gain beyond noise, 0 lose, 10 are within "
        "noise; mean gain +3.1 points (95 %: +1.0 to +5.2)"
    ]
    (unsure,) = gain_sentences(row_of(low=-0.01))
    assert unsure.endswith("(95 %: −1.0 to +5.2, within noise)")
    assert gain_sentences(row_of(clients=0)) == [
        "apfl personal against training alone: no client has a value of both"
    ]
    chosen = row_of(kind="chosen", wrong_choices=0.25, cost_of_choosing=0.012, oracle=0.9, up_bits=8e6)
    assert choice_sentences(chosen) == [
        "chosen: each client keeps what is best on its own validation rows, the method or a baseline; an "
        "oracle that knows test rows would be better by: apfl 1.2 points (25 % of the choices; 1.00 MB up)"
    ]
