"""Charts of what methods tell: from the table of diagnostics, with the right names, in a telling order."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd

from idiolect.reports.charts import Curves, HeatMap
from idiolect.reports.diagnosed import diagnosed_charts

CLIENTS = ["north", "east", "south", "west"]


def run(method: str, seed: int, **told: Any) -> Any:
    """A run that tells arrays by name, [rounds, ...], from round 1 on."""
    rows = [
        (number, name, index, float(value))
        for name, array in told.items()
        for number, of_round in enumerate(array, 1)
        for index, value in enumerate(np.ravel(of_round))
    ]
    table = pd.DataFrame(rows, columns=["round", "name", "index", "value"])
    return SimpleNamespace(
        config=SimpleNamespace(method_name=method, seed=seed),
        diagnostics=lambda: table,
        clients=lambda: pd.DataFrame(index=CLIENTS),
    )


def test_weights_of_clients_over_time_with_their_middle() -> None:
    weights = np.array([[0.5, 0.5, 0.5, 0.5], [0.1, 0.4, 0.6, 0.9]])
    (chart,) = diagnosed_charts([run("apfl", 3, mixing=weights), run("apfl", 4, mixing=weights)])
    assert isinstance(chart, Curves)
    assert "(apfl, seed 3)" in chart.title
    *lines, middle = chart.series
    assert [line.client for line in lines] == CLIENTS
    assert [line.y for line in lines] == weights.T.tolist()
    assert middle.y == [0.5, 0.5]
    assert middle.high is not None
    np.testing.assert_allclose(middle.high, np.percentile(weights, 90, axis=1))
    assert middle.x == {"round": [1, 2]}
    assert diagnosed_charts([run("apfl", 0, mixing=np.full((5, 4), 0.75))]) == []  # nothing happens


def test_clients_of_one_group_stand_together() -> None:
    labels = [[0, 0, 0, 0], [1, 0, 1, 0], [1, 0, 1, 2]]
    (chart,) = diagnosed_charts([run("pfedkm", 0, labels=labels)])
    assert isinstance(chart, HeatMap)
    assert chart.categorical
    assert list(chart.rows) == ["east", "north", "south", "west"]
    assert list(chart.columns) == ["1", "2", "3"]
    assert [list(row) for row in chart.values] == [[0, 0, 0], [0, 1, 1], [0, 1, 1], [0, 0, 2]]


def test_the_last_mixing_matrix_is_ordered_alike_in_rows_and_columns() -> None:
    last = np.array([[0.6, 0, 0.4, 0], [0, 0.7, 0, 0.3], [0.5, 0, 0.5, 0], [0, 0.2, 0, 0.8]])
    (chart,) = diagnosed_charts([run("perm", 0, mixing_matrix=[np.full((4, 4), 0.25), last])])
    assert isinstance(chart, HeatMap)
    assert "round 2" in chart.description
    assert list(chart.rows) == list(chart.columns)
    assert {frozenset(chart.rows[:2]), frozenset(chart.rows[2:])} == {
        frozenset({"north", "south"}),
        frozenset({"east", "west"}),
    }
    places = [CLIENTS.index(name) for name in chart.rows]
    np.testing.assert_array_equal(chart.values, last[np.ix_(places, places)])


def test_the_consensus_error_is_that_of_the_last_step() -> None:
    (chart,) = diagnosed_charts([run("additive", 0, consensus_error=[[0, 1, 4], [0, 2, 3]])])
    assert isinstance(chart, Curves)
    assert list(chart.series[0].y) == [4, 3]
    assert chart.y_log


def test_methods_that_tell_nothing_have_no_charts() -> None:
    assert diagnosed_charts([run("fedavg", 0), run("efl", 0, weight_sum=[[1], [2]])]) == []
