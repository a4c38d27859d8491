"""How diagnostics develop, on series whose answers can be computed by hand."""

import pandas as pd
import pytest

from idiolect.reproduction.trends import late_change, late_mean, settled


def told(*values: float) -> pd.DataFrame:
    return pd.DataFrame({0: values}, index=range(1, len(values) + 1))


def test_the_late_mean_is_of_the_second_half() -> None:
    assert late_mean(told(9, 7, 3, 1)) == 2
    assert late_mean(told(100, 5, 4, 3, 2)) == 3.0


def test_a_straight_line_changes_by_a_fifth_in_the_last_fifth() -> None:
    assert late_change(told(*range(11))) == pytest.approx(0.2)
    assert late_change(told(*range(0, -22, -2))) == pytest.approx(0.2)


def test_a_plateau_changes_no_more_in_the_last_fifth() -> None:
    assert late_change(told(0, 3, 5, 6, 6, 6, 6, 6, 6, 6, 6)) == 0
    assert late_change(told(0, 1, 2, 3, 4, 5, 6, 7, 8, 8, 10)) == pytest.approx(0.2)
    assert late_change(told(4, 4, 4, 4, 4)) == 0


def test_labels_are_settled_after_their_last_change() -> None:
    labels = pd.DataFrame([[0, 1, 1], [0, 1, 2], [0, 0, 2], [0, 0, 2]], index=[1, 2, 5, 9])
    assert settled(labels) == pytest.approx(5 / 9)
    assert settled(labels.iloc[2:]) == 0
