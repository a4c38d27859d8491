"""What of the server's state a silo needs to predict, found by trying: nothing else is sent to it.

A part of the state is needed if the models of the client change when it is taken away: real numbers become
NaN, integers an empty tensor. Where a part has one row for each client and the client's own row is enough,
only that row is sent.
"""

import math
from typing import Any, Literal

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.method import ClientState, Method, ServerState, Site
from idiolect.core.tree import Tree
from idiolect.errors import UserError

MOST_NUMBERS = 2**31  # that a part may have which is not sent
Need = Literal["whole", "row", "nothing"]


def needs(method: Method, server: ServerState, client: ClientState, site: Site) -> dict[str, Need]:
    """For each named part of the server's state, how much of it the client's models depend on."""
    named = tree.to_named(server)
    number = int(site.client)

    def models(changes: dict[str, Tensor]) -> list[Tensor]:
        changed = tree.from_named({**named, **changes}, server)
        adapted = method.adapt(changed, client, site) if method.adapts else client
        return tree.leaves(method.predictors(changed, adapted, site.client))

    usual = models({})

    def same_with(name: str, value: Tensor) -> bool:
        try:
            return all(torch.equal(a, b) for a, b in zip(models({name: value}), usual, strict=True))
        except Exception:  # whatever goes wrong without it, it is needed
            return False

    def need(name: str, leaf: Tensor) -> Need:
        if not leaf.is_floating_point():
            return "nothing" if same_with(name, leaf.new_zeros(0)) else "whole"
        nothing = torch.full_like(leaf, torch.nan)
        if same_with(name, nothing):
            return "nothing"
        if leaf.ndim and len(leaf) > number:
            nothing[number] = leaf[number]
            if same_with(name, nothing):
                return "row"
        return "whole"

    return {name: need(name, leaf) for name, leaf in named.items()}


def shared_part(server: ServerState, needed: dict[str, Need], number: int) -> tuple[Tree, dict[str, Any]]:
    """The server's state with what is not needed cut away, and a note of what was cut."""
    named, absent = tree.to_named(server), {}
    for name, need in needed.items():
        if need != "whole":
            leaf = named[name]
            absent[name] = {"shape": list(leaf.shape), "row": number if need == "row" else None}
            named[name] = leaf[number].clone() if need == "row" else leaf.new_zeros(0)
    return tree.from_named(named, server), absent


def filled_in(server: Tree, absent: dict[str, Any], most_bytes: int) -> ServerState:
    """The state in its full shape, NaN or 0 where something was cut away.

    Of what was cut away entirely there is one number, repeated without memory; a table of which one row was
    sent takes memory, at most `most_bytes`.
    """
    named = tree.to_named(server)
    for name, note in absent.items():
        sent, shape, row = named[name], note["shape"], note["row"]
        numbers = math.prod(shape)
        if numbers > (MOST_NUMBERS if row is None else most_bytes // sent.element_size()):
            raise UserError(f"a server state with a part of shape {shape} is not admitted here")
        named[name] = sent.new_full((), torch.nan if sent.is_floating_point() else 0).expand(shape)
        if row is not None:
            named[name] = named[name].clone()
            named[name][row] = sent
    return tree.from_named(named, server)
