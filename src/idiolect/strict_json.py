"""JSON as the standard has it: without NaN and infinities, which are written as null."""

import json
import math
from collections.abc import Callable
from typing import Any


def to_json(content: Any) -> str:
    """Content as indented JSON that every reader accepts.

    >>> print(to_json({"mean": float("nan"), "clients": 3}))
    {
      "mean": null,
      "clients": 3
    }
    """
    return json.dumps(_null_for_not_finite(content), indent=2, ensure_ascii=False, allow_nan=False)


def nan_for_null(numbers: Any) -> Any:
    """Numbers in dictionaries and lists as they are computed with: what has no value is NaN."""
    return _with_leaves(numbers, lambda leaf: math.nan if leaf is None else leaf)


def _null_for_not_finite(content: Any) -> Any:
    return _with_leaves(
        content, lambda leaf: None if isinstance(leaf, float) and not math.isfinite(leaf) else leaf
    )


def _with_leaves(content: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(content, dict):
        return {key: _with_leaves(value, change) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_with_leaves(value, change) for value in content]
    return change(content)
