"""How hyper-parameters are declared: pydantic dataclasses, checked when they are built."""

from typing import Any

from pydantic import ConfigDict, Field

# Frozen, no unknown names, and defaults go through the same checks as given values.
STRICT = ConfigDict(
    extra="forbid", validate_default=True, populate_by_name=True, arbitrary_types_allowed=True
)


def hyper(
    default: Any, description: str, *, symbol: str = "", alias: str = "", paper: str = "", **bounds: Any
) -> Any:
    """One hyper-parameter: its default, what it does, the paper's symbol and values, a short alias."""
    return Field(
        default=default,
        description=description,
        validation_alias=alias or None,
        json_schema_extra={"symbol": symbol, "paper": paper, "alias": alias},
        **bounds,
    )
