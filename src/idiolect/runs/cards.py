"""What there is to know about methods and data sets without running anything."""

import inspect
from typing import Any

from idiolect.core.method import Method
from idiolect.data.catalogue import CATALOGUE as DATA
from idiolect.data.catalogue import summary
from idiolect.methods.catalogue import CATALOGUE as METHODS
from idiolect.runs.config import AUTO, rates_of
from idiolect.runs.signatures import alias_of, dump, fields_of


def list_methods(name: str | None = None) -> list[dict[str, Any]]:
    """A card for each method, or for one: what it does, its models and its hyper-parameters.

    >>> (card,) = list_methods("apfl")
    >>> card["kinds"], [p["name"] for p in card["hyper_parameters"]][:3]
    (['global', 'localized', 'personal'], ['learning_rate', 'local_steps', 'mixing'])
    """
    kinds = METHODS.entries().values() if name is None else [METHODS.find(name)]
    return [_method_card(kind) for kind in kinds]


def list_datasets() -> list[dict[str, Any]]:
    """A card for each data set that is known by name: what it is, and its options.

    >>> [card["options"] for card in list_datasets() if card["name"] == "vowels"]
    [['seed', 'fractions']]
    """
    cards = []
    for name, loader in DATA.entries().items():
        # Who is left out of statistics follows from `newcomers`, and is no option.
        options = [option for option in inspect.signature(loader).parameters if option != "left_out"]
        cards.append({"name": name, "summary": summary(loader), "options": options})
    return cards


def _method_card(kind: type[Method]) -> dict[str, Any]:
    method = kind()
    defaults = dump(method) | dict.fromkeys(rates_of(method), AUTO)
    return {
        "name": kind.name,
        "aliases": list(kind.aliases),
        "paper": kind.paper,
        "summary": (inspect.getdoc(kind) or "").partition("\n")[0],
        "kinds": list(kind.kinds),
        "judged_by": kind.judged_by,
        "personal": kind.judged_by in ("personal", "group"),
        "stateful": kind.stateful,
        "gradients_per_step": kind.gradients_per_step,
        "hyper_parameters": [
            {
                "name": name,
                "alias": alias_of(field),
                "default": defaults[name],
                "description": field.description,
                "symbol": (field.json_schema_extra or {}).get("symbol", ""),  # type: ignore[union-attr]
                "paper": (field.json_schema_extra or {}).get("paper", ""),  # type: ignore[union-attr]
                "tune": (field.json_schema_extra or {}).get("tune"),  # type: ignore[union-attr]
            }
            for name, field in fields_of(kind).items()
        ],
    }
