"""Does joining help each client? Differences to training alone and to the one shared model."""

from typing import NamedTuple

import pandas as pd


class Gains(NamedTuple):
    """For how many clients a model is better than, equal to and worse than another one."""

    better: int
    equal: int
    worse: int

    @property
    def clients(self) -> int:
        """How many clients can be compared."""
        return sum(self)


def gains(
    values: "pd.Series[float]", baseline: "pd.Series[float]", *, higher_is_better: bool
) -> "pd.Series[float]":
    """By how much each client is better off than with the baseline; positive is better for any metric.

    >>> error, baseline = pd.Series({"a": 2.0, "b": 1.0}), pd.Series({"a": 1.5, "b": 3.0})
    >>> gains(error, baseline, higher_is_better=False).to_dict()
    {'a': -0.5, 'b': 2.0}
    """
    difference = values - baseline
    return (difference if higher_is_better else -difference).dropna()


def count_gains(gain: "pd.Series[float]") -> Gains:
    """How many clients gain, stay and lose."""
    return Gains(int((gain > 0).sum()), int((gain == 0).sum()), int((gain < 0).sum()))
