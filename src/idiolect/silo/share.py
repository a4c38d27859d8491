"""What of the server's state a silo needs to predict, found by trying: nothing else is sent to it.

A part of the state is needed if the models of the client change to NaN when the part is NaN. Where it has
one row for each client and the client's own row is enough, only that row is sent.
"""

import math
from typing import Any, Literal

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.method import ClientState, Method, ServerState, Site
from idiolect.core.tree import Tree
from idiolect.errors import UserError

MOST_NUMBERS = 2**31  # that a few bytes of a message may make a silo allocate
Need = Literal["whole", "row", "nothing"]


def needs(method: Method, server: ServerState, client: ClientState, site: Site) -> dict[str, Need]:
    """For each named real part of the server's state, how much of it the client's models depend on."""
    named = tree.to_named(server)
    number = int(site.client)

    def touched(name: str, value: Tensor) -> bool:
        changed = tree.from_named({**named, name: value}, server)
        adapted = method.adapt(changed, client, site) if method.adapts else client
        models = method.predictors(changed, adapted, site.client)
        return any(bool(leaf.isnan().any()) for leaf in tree.leaves(models))

    def need(name: str, leaf: Tensor) -> Need:
        nothing = torch.full_like(leaf, torch.nan)
        if not touched(name, nothing):
            return "nothing"
        if leaf.ndim and len(leaf) > number:
            nothing[number] = leaf[number]
            if not touched(name, nothing):
                return "row"
        return "whole"

    return {name: need(name, leaf) for name, leaf in named.items() if leaf.is_floating_point()}


def shared_part(server: ServerState, needed: dict[str, Need], number: int) -> tuple[Tree, dict[str, Any]]:
    """The server's state with what is not needed cut away, and a note of what was cut."""
    named, absent = tree.to_named(server), {}
    for name, need in needed.items():
        if need != "whole":
            leaf = named[name]
            absent[name] = {"shape": list(leaf.shape), "row": number if need == "row" else None}
            named[name] = leaf[number].clone() if need == "row" else leaf.new_zeros(0)
    return tree.from_named(named, server), absent


def filled_in(server: Tree, absent: dict[str, Any]) -> ServerState:
    """The state in its full shape, NaN where something was cut away: to use it would show."""
    named = tree.to_named(server)
    for name, note in absent.items():
        sent = named[name]
        if math.prod(note["shape"]) > MOST_NUMBERS:
            raise UserError(f"a server state with a part of shape {note['shape']} is not admitted")
        named[name] = sent.new_full(note["shape"], torch.nan)
        if note["row"] is not None:
            named[name][note["row"]] = sent
    return tree.from_named(named, server)
