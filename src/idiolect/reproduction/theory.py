"""Claims on what is computed and not measured: functions and constants of a recipe."""

import numpy as np

from idiolect.errors import UserError
from idiolect.reproduction.functions import Function
from idiolect.reproduction.recipe import Recipe
from idiolect.reproduction.verdicts import Difference, furthest


def theory_difference(
    recipe: Recipe,
    first: str,
    second: str | float | tuple[float, ...],
    between: tuple[float, float] | None = None,
) -> Difference:
    """What the first is above the second by; of two functions the range from the least to the largest x-wise.

    Numbers have the difference that is furthest from zero. So "above" holds for functions if it does at
    every x, and is contradicted if it holds at none.
    """
    values = _values(recipe, first, between)
    others = _values(recipe, second, between) if isinstance(second, str) else np.atleast_1d(second)
    if len(others) not in (1, len(values)):
        raise UserError(f"{first!r} has {len(values)} values and {second!r} has {len(others)}")
    gaps = values - others
    if first in recipe.functions:
        return Difference(float(gaps.mean()), float(gaps.min()), float(gaps.max()))
    return furthest(gaps)


def _values(recipe: Recipe, name: str, between: tuple[float, float] | None) -> np.ndarray:
    if name not in recipe.theory:
        raise UserError(f"{name!r} is none of the functions and constants: {', '.join(recipe.theory)}")
    found = recipe.theory[name]
    values = np.array(found.y, dtype=float)
    if between is None or not isinstance(found, Function):
        return values
    x = np.array(found.x)
    return values[(between[0] <= x) & (x <= between[1])]
