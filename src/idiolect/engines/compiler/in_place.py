"""Recorded steps that write into memory which nothing reads any more."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from idiolect.core.device import CPU
from idiolect.engines.compiler.graph import is_like, output_of, owner, shape

aten = torch.ops.aten

IN_PLACE: dict[Any, Any] = {
    aten.addmm.default: aten.addmm_.default,
    aten.baddbmm.default: aten.baddbmm_.default,
    aten.addcmul.default: aten.addcmul_.default,
    aten.add.Tensor: aten.add_.Tensor,
    aten.sub.Tensor: aten.sub_.Tensor,
    aten.mul.Tensor: aten.mul_.Tensor,
    aten.lerp.Scalar: aten.lerp_.Scalar,
    aten.lerp.Tensor: aten.lerp_.Tensor,
    aten.relu.default: aten.relu_.default,
}
_COMMUTATIVE = {aten.add.Tensor, aten.mul.Tensor}


def give_results_own_memory(graph: Graph, changing: Sequence[Node]) -> None:
    """Copy results that are, or look into, an argument or another result: the next step overwrites them."""
    output = output_of(graph)
    results: list[Node] = list(output.args[0])  # type: ignore[arg-type]
    taken: set[Node] = set()
    for place, (old, result) in enumerate(zip(changing, results, strict=True)):
        memory = owner(result)
        if result is not old and (memory.op != "call_function" or memory in taken):
            with graph.inserting_before(output):
                results[place] = graph.call_function(aten.clone.default, (result,))
                results[place].meta = result.meta
        taken.add(memory)
    output.args = (results,)


def overwrite_what_is_used_up(graph: Graph, changing: Sequence[Node]) -> None:
    """Let operations write into their first argument's memory where nothing reads that afterwards."""
    position = {node: place for place, node in enumerate(graph.nodes)}
    last_use: dict[Node, int] = {}
    for node in graph.nodes:
        for source in node.all_input_nodes:
            last_use[owner(source)] = position[node]

    def is_used_up(node: Any, user: Node) -> bool:
        return (
            is_like(node, user)
            and owner(node) is node
            and (node.op == "call_function" or node in changing)
            and last_use[node] == position[user]
            and [owner(entry) for entry in user.args if isinstance(entry, Node)].count(node) == 1
        )

    overwriting = {}
    for node in graph.nodes:
        if node.target is aten.where.self and shape(node.args[0]).numel() == 1:
            condition, new, old = node.args
            if is_like(new, node) and is_used_up(old, node):
                overwriting[node], node.args = replace_if, (old, condition, new)
        if node.target not in IN_PLACE:
            continue
        if node.target in _COMMUTATIVE and not node.kwargs and is_used_up(node.args[1], node):
            node.args = (node.args[1], node.args[0])
        if is_used_up(node.args[0], node):
            overwriting[node] = IN_PLACE[node.target]
    for node, target in overwriting.items():
        node.target = target


def replace_if(old: Tensor, condition: Tensor, new: Tensor) -> Tensor:
    """where(condition, new, old) for a single condition, in old's memory: no pass at all if it is not met."""
    if condition.device != CPU:  # who asks it for its value waits for all that it was asked before
        return old.copy_(torch.where(condition, new, old))
    return old.copy_(new) if condition else old
