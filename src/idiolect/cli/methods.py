"""`idiolect methods`."""

from typing import Annotated, Any

import typer

import idiolect
from idiolect.cli.console import print_json, print_table
from idiolect.cli.options import JsonOption


def methods(
    name: Annotated[str | None, typer.Argument(help="one method, with its hyper-parameters")] = None,
    json: JsonOption = False,
) -> None:
    """List the methods, or the hyper-parameters of one.

    Example: idiolect methods apfl
    """
    cards = idiolect.list_methods(name)
    if json:
        print_json(cards)
    elif name is None:
        columns = ["name", "paper", "models", "stateful", "gradients per step", "what it does"]
        print_table("methods", columns, [_row(card) for card in cards])
    else:
        (card,) = cards
        typer.echo(f"{card['name']}: {card['summary']} {card['paper']}")
        typer.echo(f"models: {', '.join(card['kinds'])}; judged by {card['judged_by']}")
        rows = [
            [p["name"], p["symbol"], str(p["default"]), p["paper"], _tried(p["tune"]), p["description"]]
            for p in card["hyper_parameters"]
        ]
        columns = ["name", "symbol", "default", "in papers", "tune tries", "what it does"]
        print_table("hyper-parameters", columns, rows)


def _tried(values: Any) -> str:
    from idiolect.tuning.space import shown

    return "" if values is None else shown(values)


def _row(card: dict[str, Any]) -> list[str]:
    return [
        card["name"],
        card["paper"],
        ", ".join(card["kinds"]),
        "yes" if card["stateful"] else "no",
        str(card["gradients_per_step"]),
        card["summary"],
    ]
