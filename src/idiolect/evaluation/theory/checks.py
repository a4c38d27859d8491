"""What all bounds share: one sentence for each input for which they are not valid, and a sum."""

from collections.abc import Iterable

from idiolect.errors import UserError


def require_positive(**values: float) -> None:
    """All of them above zero (and numbers at all).

    >>> require_positive(smoothness=0.0)
    Traceback (most recent call last):
    idiolect.errors.UserError: smoothness=0.0 must be above 0
    """
    _require((name, value, value > 0, "above 0") for name, value in values.items())


def require_not_negative(**values: float) -> None:
    """None of them below zero."""
    _require((name, value, value >= 0, "at least 0") for name, value in values.items())


def require_share(**values: float) -> None:
    """All of them between 0 and 1."""
    _require((name, value, 0 <= value <= 1, "from 0 to 1") for name, value in values.items())


def require_counts(**values: int) -> None:
    """All of them at least 1."""
    _require((name, value, value >= 1, "at least 1") for name, value in values.items())


def require_curvature(strong_convexity: float, smoothness: float) -> None:
    """0 < μ <= L."""
    require_positive(strong_convexity=strong_convexity, smoothness=smoothness)
    if strong_convexity > smoothness:
        raise UserError(
            f"strong_convexity={strong_convexity} must not be above smoothness={smoothness}: "
            "no function curves more at its least than at its most"
        )


def require_rate_below(rate: float, largest: float, formula: str) -> None:
    """0 < η < largest."""
    require_positive(rate=rate)
    if not rate < largest:
        raise UserError(f"rate={rate} must be below {largest:.6g} = {formula} for the bound to hold")


def _require(checks: Iterable[tuple[str, float, bool, str]]) -> None:
    for name, value, right, words in checks:
        if not right:
            raise UserError(f"{name}={value} must be {words}")


def geometric_sum(factor: float, terms: int) -> float:
    """1 + factor + factor² + .. , so many terms."""
    return terms if factor == 1 else (1 - factor**terms) / (1 - factor)
