"""What is said of the course of a run follows from its tables."""

import numpy as np
import pandas as pd
import pytest

import idiolect
from idiolect.errors import UserError
from idiolect.reproduction.quantities import is_quantity, measure
from idiolect.runs.folder import RunFolder

RECIPE = """
paper: efl
item: Figure 0
title: Two methods on three speakers
settings:
  {data: vowels, rounds: 6, evaluation: {every: 2}, local_steps: 2, model: linear, batch_size: 8, lr: 0.1}
lines:
  FedAvg: {method: fedavg}
  EFL: {method: efl, method.keep: 0.3, method.elasticity: 0.1, method.fisher_every: 1}
judged: {FedAvg: global}
sizes: {paper: {seeds: 1}}
claims:
  - {says: less than half, of: "megabytes_up_of:w:delta", lower: EFL, than: FedAvg, times: 0.5}
  - {says: less than a thousandth, of: "megabytes_up_of:w:delta", lower: EFL, than: FedAvg, times: 0.001}
"""


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    folder = tmp_path_factory.mktemp("course")
    file = folder / "efl-fig0.yaml"
    file.write_text(RECIPE)
    (record,) = idiolect.reproduce(str(file), out=folder / "out", jobs=1).records
    runs = [RunFolder(path) for path in (folder / "out" / "runs").iterdir()]
    return record, {run.config.method_name: run for run in runs}


def one(run, name):
    """A quantity that is one number."""
    assert is_quantity(name)
    (value,) = measure(run, name, "last")
    return value


def test_models_that_are_not_compressed_have_32_bits_for_each_number(played):
    run = played[1]["fedavg"]
    clients, numbers = len(run.clients()), 10 * 11 + 11  # vowels: ten columns, eleven classes
    one_way = 6 * clients * numbers * 32 / 8e6
    assert one(run, "megabytes_up_of:w") == pytest.approx(one_way)
    assert one(run, "megabytes_of:w") == pytest.approx(2 * one_way)
    assert one(run, "megabytes_of:fisher") == 0


def test_all_parts_together_are_the_whole(played):
    run = played[1]["efl"]
    assert one(run, "megabytes_of:fisher") > 0
    assert one(run, "megabytes_of:w:delta:fisher:steps") == pytest.approx(one(run, "megabytes"))


def curve(run):
    """The clients' mean test value by round."""
    metrics = pd.read_parquet(run.path / "metrics.parquet")
    chosen = metrics.query("kind == 'global' and part == 'test'")
    chosen = chosen[chosen.metric == run.summary()["metric"]]
    return chosen.pivot_table(index="round", values="value")["value"]


def test_megabytes_are_counted_until_a_value_is_reached(played):
    run = played[1]["fedavg"]
    values = curve(run)
    assert list(values.index) == [0, 2, 4, 6]
    target = float(values[[2, 4, 6]].max())
    first = next(number for number in (0, 2, 4, 6) if values[number] >= target)
    per_round = one(run, "megabytes") / 6
    assert one(run, f"megabytes_to:global:{target!r}") == pytest.approx(first * per_round)
    assert one(run, "megabytes_to:global:0") == 0
    assert one(run, "megabytes_to:global:1.1") == float("inf")


def test_unsteadiness_is_the_spread_of_the_second_half(played):
    values = curve(played[1]["fedavg"])
    assert one(played[1]["fedavg"], "unsteadiness:global") == pytest.approx(np.std([values[4], values[6]]))


def test_a_kind_that_is_not_there_is_named(played):
    with pytest.raises(UserError, match="no personal model"):
        measure(played[1]["fedavg"], "unsteadiness:personal", "last")


def test_a_claim_may_be_about_a_multiple(played):
    assert [claim["verdict"] for claim in played[0]["claims"]] == ["confirmed", "contradicted"]


def test_a_line_is_judged_by_what_the_recipe_says(played):
    judged = {row["model"] for row in played[0]["table"] if row["judged"]}
    assert judged == {"FedAvg global", "EFL global"}
