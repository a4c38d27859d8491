"""How hyper-parameters are declared: pydantic dataclasses, checked when they are built."""

from typing import Any

from pydantic import ConfigDict, Field

# Frozen, no unknown names, and defaults go through the same checks as given values.
STRICT = ConfigDict(
    extra="forbid", validate_default=True, populate_by_name=True, arbitrary_types_allowed=True
)


# What `idiolect tune` tries: from a number to another one, on a logarithmic scale, or one of some values.
Tunable = tuple[float, float] | list[Any]


def hyper(
    default: Any,
    description: str,
    *,
    symbol: str = "",
    alias: str = "",
    paper: str = "",
    tune: Tunable | None = None,
    **bounds: Any,
) -> Any:
    """One hyper-parameter: its default, what it does, the paper's symbol and values, a short alias.

    tune: what `idiolect tune` tries: (smallest, largest), on a logarithmic scale, or a list of values.
    """
    told: Any = {"symbol": symbol, "paper": paper, "alias": alias, "tune": tune}
    return Field(
        default=default,
        description=description,
        validation_alias=alias or None,
        json_schema_extra=told,
        **bounds,
    )
