"""Rows of a matrix in an order in which those that are alike stand together."""

import numpy as np
from numpy.typing import ArrayLike


def by_similarity(matrix: ArrayLike) -> list[int]:
    """An order of the rows (and columns) of a square matrix of weights: leaves of average linkage.

    The two groups whose rows differ least are joined, their nearest ends side by side, until all are one.

    >>> by_similarity([[1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1]])
    [0, 2, 1, 3]
    """
    weights = np.asarray(matrix, np.float64)
    alike = np.nan_to_num(weights + weights.T)
    apart = np.sqrt(np.square(alike[:, None] - alike[None]).sum(-1))
    groups = [[row] for row in range(len(apart))]
    while len(groups) > 1:
        distances = np.array(
            [[np.inf if a is b else apart[np.ix_(a, b)].mean() for b in groups] for a in groups]
        )
        first, second = sorted(map(int, np.unravel_index(distances.argmin(), distances.shape)))
        joined = _side_by_side(groups[first], groups[second], apart)
        groups = [group for place, group in enumerate(groups) if place not in (first, second)]
        groups.insert(first, joined)
    return groups[0] if groups else []


def _side_by_side(one: list[int], other: list[int], apart: np.ndarray) -> list[int]:
    ways = [(one, other), (one, other[::-1]), (one[::-1], other), (one[::-1], other[::-1])]
    left, right = min(ways, key=lambda way: apart[way[0][-1], way[1][0]])
    return left + right
