"""`idiolect datasets`."""

import idiolect
from idiolect.cli.console import print_json, print_table
from idiolect.cli.options import JsonOption


def datasets(json: JsonOption = False) -> None:
    """List the data sets that are known by name.

    Example: idiolect datasets
    """
    cards = idiolect.list_datasets()
    if json:
        print_json(cards)
    else:
        rows = [[card["name"], card["summary"]] for card in cards]
        print_table("data sets", ["name", "what it is"], rows)
