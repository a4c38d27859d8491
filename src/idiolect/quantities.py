"""Numbers as people read them, the same in tables, on pages and in terminals."""

import math

_SHARES = ("accuracy", "balanced_accuracy", "recall", "precision")  # shown in per cent
_FROM_ZERO_TO_ONE = ("auc", "average_precision", "f1", "calibration_error", "threshold")


def show_value(value: float, metric: str) -> str:
    """A metric's value: shares in per cent, areas and the like with three decimals, others with four digits.

    That of a failed model is infinite.

    >>> show_value(0.98761, "accuracy"), show_value(0.98761, "rmse"), show_value(float("nan"), "rmse")
    ('98.8 %', '0.9876', '–')
    >>> show_value(0.5, "recall:yes"), show_value(0.9, "auc")
    ('50.0 %', '0.900')
    """
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    word = metric.partition(":")[0]  # "recall:yes" is the recall of one class
    if word in _SHARES:
        return f"{100 * value:.1f} %"
    return f"{value:.3f}" if word in _FROM_ZERO_TO_ONE else f"{value:.4g}"


def show_gain(gain: float, metric: str) -> str:
    """A difference between two values, with its sign: of shares in points, a hundredth each.

    >>> show_gain(0.0314, "accuracy"), show_gain(-0.25, "auc"), show_gain(12.345, "rmse")
    ('+3.1 points', '−0.250', '+12.3')
    >>> show_gain(-0.0001, "accuracy"), show_gain(float("-inf"), "rmse")
    ('0.0 points', '−∞')
    """
    shown, unit = show_value(abs(gain), metric), ""
    if shown.endswith(" %"):
        shown, unit = shown.removesuffix(" %"), " points"
    elif metric.partition(":")[0] not in _FROM_ZERO_TO_ONE and math.isfinite(gain):
        shown = f"{abs(gain):.3g}" if abs(gain) < 1000 else f"{abs(gain):.0f}"
    is_zero = math.isnan(gain) or not any(digit in shown for digit in "123456789∞")
    return ("" if is_zero else "+" if gain > 0 else "−") + shown + unit


def show_ends(low: float, high: float, metric: str) -> str:
    """The ends of the interval of a difference.

    >>> show_ends(-0.01, 0.052, "accuracy")
    '−1.0 to +5.2'
    """
    low_end, high_end = (show_gain(end, metric).removesuffix(" points") for end in (low, high))
    return f"{low_end} to {high_end}"


def amount(bits: float) -> str:
    """A number of bits, in bytes.

    >>> amount(0), amount(8 * 1234), amount(8 * 25e6)
    ('0.00 MB', '1.2 kB', '25.00 MB')
    """
    return f"{bits / 8e6:.2f} MB" if bits == 0 or bits >= 8e5 else f"{bits / 8e3:.1f} kB"


def duration(seconds: float) -> str:
    """A time span, in one or two units.

    >>> duration(0.04), duration(12.34), duration(200), duration(7300)
    ('0.0 s', '12 s', '3 min 20 s', '2 h 1 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
