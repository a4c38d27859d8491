"""Claims about clients that were left out of training."""

import json

import pandas as pd
import pytest

from idiolect.errors import UserError
from idiolect.reproduction.played import client_metric
from idiolect.runs.folder import FORMAT, RunFolder


@pytest.fixture
def folder(tmp_path):
    """A run of which nothing is known."""
    (tmp_path / "run.json").write_text(json.dumps({"format": FORMAT}))
    return RunFolder(tmp_path)


@pytest.fixture
def run(folder):
    """Two newcomers, each with a number of its own for every stage and part."""
    rows = [
        (client, stage, "personal", part, "loss", hundreds + tens + ones)
        for client, hundreds in (("ada", 100), ("bo", 200))
        for stage, tens in (("before", 10), ("after", 20))
        for part, ones in (("train", 1), ("test", 2))
    ]
    columns = ["client", "stage", "kind", "part", "metric", "value"]
    pd.DataFrame(rows, columns=columns).to_parquet(folder.path / "newcomers.parquet")
    return folder


def test_newcomers_are_judged_after_they_trained(run):
    on_test = client_metric(run, "personal", "loss", "newcomers", "reported")
    on_train = client_metric(run, "personal", "loss", "newcomers-train", "reported")
    assert on_test.to_dict() == {"ada": 122, "bo": 222}
    assert on_train.to_dict() == {"ada": 121, "bo": 221}


def test_without_newcomers_there_is_nothing_to_judge(folder):
    with pytest.raises(UserError, match="nobody was left out"):
        client_metric(folder, "personal", "loss", "newcomers", "reported")
