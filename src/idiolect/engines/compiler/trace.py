"""What a step consists of: the tensor operations below vmap and gradients, as a graph.

`make_fx` gives the same graph in five times as long, for it computes the shape of every result once more.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functionalize
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

aten = torch.ops.aten

# The same numbers, under another name for autograd or for a literal.
_SAME = {aten.detach.default, aten.alias.default, aten.lift_fresh.default}


class TensorMeta(NamedTuple):
    """What passes ask of a result."""

    shape: torch.Size
    dtype: torch.dtype


def trace(function: Callable[..., list[Tensor]], arguments: Sequence[Tensor]) -> GraphModule:
    """The operations of a function of tensors, as a graph without side effects."""
    # Copies: were one tensor given twice, the graph could not tell its two roles apart.
    copies = [argument.clone() for argument in arguments]
    recorder = _Recorder(copies)
    with recorder:
        results = functionalize(function, remove="mutations")(*copies)
    recorder.graph.output([recorder.node_of(result) for result in results])
    return GraphModule(recorder.constants, recorder.graph)


class _Recorder(TorchDispatchMode):
    """Notes every operation and who made which tensor."""

    def __init__(self, arguments: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = Graph()
        self.constants = nn.Module()
        self._nodes: Any = WeakTensorKeyDictionary()
        for place, argument in enumerate(arguments):
            self._note(argument, self.graph.placeholder(f"argument_{place}"))

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        results = operation(*args, **kwargs)
        if operation is torch.ops.prim.device.default:  # a question, which tensors of some kinds are asked so
            return results
        if operation in _SAME:
            self._note(results, self.node_of(args[0]))
            return results
        if _looks_at_values(operation, args, results) and self._has_made_any((args, kwargs)):
            raise RuntimeError(f"{operation} makes what is computed depend on values, not on shapes alone")
        args, kwargs = pytree.tree_map_only(Tensor, self.node_of, (args, kwargs))
        node = self.graph.call_function(operation, args, kwargs)
        if isinstance(results, Tensor):
            self._note(results, node)
        elif isinstance(results, list | tuple):
            for place, result in enumerate(results):
                if isinstance(result, Tensor):
                    self._note(result, self.graph.call_function(operator.getitem, (node, place)))
        return results

    def node_of(self, tensor: Tensor) -> Node:
        """What made a tensor; one that nothing has made is a constant, such as a buffer of the model."""
        if tensor not in self._nodes:
            name = f"constant_{len(list(self.constants.buffers()))}"
            self.constants.register_buffer(name, tensor)
            self._note(tensor, self.graph.get_attr(name))
        return self._nodes[tensor]

    def _has_made_any(self, entries: Any) -> bool:
        return any(entry in self._nodes for entry in pytree.tree_leaves(entries) if isinstance(entry, Tensor))

    def _note(self, tensor: Tensor, node: Node) -> None:
        node.meta.setdefault("tensor_meta", TensorMeta(tensor.shape, tensor.dtype))
        self._nodes[tensor] = node


def _looks_at_values(operation: Any, args: Any, results: Any) -> bool:
    """Whether the shape of a result, or a result that is no tensor, follows from the values of tensors."""
    if operation is aten.index.Tensor:
        return any(index is not None and index.dtype in {torch.bool, torch.uint8} for index in args[1])
    if torch.Tag.dynamic_output_shape in operation.tags or torch.Tag.data_dependent_output in operation.tags:
        return True
    return not all(result is None or isinstance(result, Tensor) for result in pytree.tree_leaves(results))
