"""What all steps of a round have in common, computed once."""

from collections.abc import Sequence

from torch.fx import Graph, Node

from idiolect.engines.compiler.graph import drop_unused, is_pure
from idiolect.engines.compiler.linear import SUMS, is_multiple, summands


def split_off_shared(graph: Graph, fixed: Sequence[Node]) -> Graph:
    """Move what depends only on `fixed` into a graph of its own, whose results become further arguments."""
    shared = Graph()
    moved: dict[Node, Node] = {node: shared.placeholder(node.name) for node in fixed}
    for node in graph.nodes:
        inputs = node.all_input_nodes
        if is_pure(node) and inputs and all(source in moved for source in inputs):
            moved[node] = shared.node_copy(node, lambda source: moved[source])
    for node in reversed(list(moved)):
        if is_multiple(node) and any(user not in moved for user in node.users) and _is_only_added(node):
            del moved[node]  # a factor costs nothing in a sum, but a pass here
    needed = [node for node in moved if node not in fixed and any(user not in moved for user in node.users)]
    shared.output([moved[node] for node in needed])
    drop_unused(shared)
    *_, last = (node for node in graph.nodes if node.op == "placeholder")
    for node in reversed(needed):
        with graph.inserting_after(last):
            argument = graph.placeholder(f"shared_{node.name}")
        argument.meta = node.meta
        node.replace_all_uses_with(argument)
    return shared


def _is_only_added(node: Node) -> bool:
    return all(user.target in SUMS and node in summands(user) for user in node.users)
