"""How something that a method tells of itself develops over the rounds of a run.

All take a row for each round in which it was told, in order, and a column for each of its numbers.
"""

import pandas as pd


def late_mean(told: pd.DataFrame) -> float:
    """The mean over the second half of the rounds."""
    return float(told.iloc[len(told) // 2 :].to_numpy().mean())


def late_change(told: pd.DataFrame) -> float:
    """The part of the change from first to last that falls into the last fifth: 0.2 on a straight line."""
    means = told.mean(axis=1).to_numpy()
    whole = abs(means[-1] - means[0])
    return float(abs(means[-1] - means[-1 - len(means) // 5]) / whole) if whole else 0.0


def settled(told: pd.DataFrame) -> float:
    """The part of the rounds after which nothing changes: 0 if it never does, 1 if it does to the end."""
    changes = (told.diff().iloc[1:] != 0).any(axis=1)
    return float(changes[changes].index.max() / told.index[-1]) if changes.any() else 0.0
