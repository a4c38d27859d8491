"""A program of ONNX: texts become numbers before the model, and numbers of classes their names after it.

What lies between is the program that torch.export gets too.
"""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from onnxscript import opset20
from torch import Tensor, nn

from idiolect.data.preprocessing import Column, Preprocessing
from idiolect.runs.personal_model import PersonalModel

OPSET, LABELS_OPSET = 20, 3
LABELS = "ai.onnx.ml"  # the part of ONNX that knows texts
CARD = "card"  # the key of the card in the file's metadata

Nodes = list[onnx.NodeProto]
operators: Any = opset20  # its types know no tensor of unknown type


def assemble(program: nn.Module, rows: Tensor, model: PersonalModel, card: str) -> bytes:
    """The program as a file, which has been checked; `rows` are two that it takes."""
    with torch.no_grad():
        answers = list(program(rows))
    columns = model.preprocessing.columns if model.preprocessing else ()
    inside = _prefix([column.name for column in columns])
    whole = onnx.compose.add_prefix(_inner(program, rows, answers), inside)
    _put_in_front(whole.graph, inside, model.preprocessing)
    _put_behind(whole.graph, inside, model)
    whole.opset_import.append(helper.make_opsetid(LABELS, LABELS_OPSET))
    helper.set_model_props(whole, {CARD: card})
    onnx.checker.check_model(whole, full_check=True)
    content: bytes = whole.SerializeToString()
    return content


def _inner(program: nn.Module, rows: Tensor, answers: list[str]) -> onnx.ModelProto:
    exported = torch.onnx.export(
        program,
        (rows,),
        dynamo=True,
        dynamic_shapes=({0: torch.export.Dim("rows")},),
        input_names=["inputs"],
        output_names=answers,
        opset_version=OPSET,
        custom_translation_table={torch.ops.aten.sort.stable: _sorted_stably},
        verbose=False,
    )
    assert exported is not None, "the exporter of torch.export programs returns one"
    proto: onnx.ModelProto = exported.model_proto
    return proto


def _sorted_stably(rows: Any, stable: bool = True, dim: int = -1, descending: bool = False) -> Any:
    """What torch has and its exporter does not know: of equal entries, TopK takes the first first."""
    place: Any = operators.Constant(value_ints=[dim])
    size = operators.Gather(operators.Shape(rows), place)
    return operators.TopK(rows, size, axis=dim, largest=int(descending), sorted=1)


def _prefix(columns: list[str]) -> str:
    """What the names of all tensors inside begin with, and no column's."""
    prefix = "model/"
    while any(column.startswith(prefix) for column in columns):
        prefix = f"_{prefix}"
    return prefix


def _put_in_front(graph: onnx.GraphProto, inside: str, preprocessing: Preprocessing | None) -> None:
    """The inputs as people have them: a vector for each column, or the tensor that the model takes."""
    (taken,) = graph.input
    if preprocessing is None:
        nodes = [helper.make_node("Identity", ["inputs"], [taken.name])]
        given = [_renamed(taken, "inputs")]
    else:
        graph.initializer.append(
            helper.make_tensor(f"{inside}one-column", TensorProto.INT64, dims=[2], vals=[-1, 1])
        )
        places = list(enumerate(preprocessing.columns))
        nodes = [node for place, column in places for node in _numbers_of(column, f"{inside}{place}", inside)]
        stacked = [f"{inside}{place}" for place, _ in places]
        nodes.append(helper.make_node("Concat", stacked, [taken.name], axis=1))
        given = [helper.make_tensor_value_info(c.name, _type(c), ["rows"]) for c in preprocessing.columns]
    _replace(graph.input, given)
    _replace(graph.node, [*nodes, *graph.node])


def _numbers_of(column: Column, result: str, inside: str) -> Nodes:
    """From a column to numbers, float64[rows, 1]: a category's place, -1 for unseen ones, NaN for missing."""
    values, nodes = column.name, []
    if column.kind == "category":
        places = {"": math.nan} | {name: float(place) for place, name in enumerate(column.categories)}
        label = helper.make_node(
            "LabelEncoder",
            [column.name],
            [f"{result}/place"],
            domain=LABELS,
            keys_strings=list(places),
            values_floats=list(places.values()),
            default_float=-1.0,
        )
        values = f"{result}/number"
        nodes = [label, helper.make_node("Cast", [f"{result}/place"], [values], to=TensorProto.DOUBLE)]
    return [*nodes, helper.make_node("Reshape", [values, f"{inside}one-column"], [result])]


def _put_behind(graph: onnx.GraphProto, inside: str, model: PersonalModel) -> None:
    """The outputs under their own names; classes by theirs where they have any."""
    nodes, given = [], []
    taken_names = {each.name for each in graph.input}
    for output in graph.output:
        name = output.name.removeprefix(inside)
        final = name
        while final in taken_names:  # by a column of that name
            final += "_"
        if name == "prediction" and model.task.is_classification and model.class_names:
            # A row without an answer has the class -1, which is the last one: a name that is empty.
            names = np.array([*model.class_names, ""], dtype=object)
            graph.initializer.append(numpy_helper.from_array(names, f"{inside}class-names"))
            nodes.append(helper.make_node("Gather", [f"{inside}class-names", output.name], [final]))
            given.append(helper.make_tensor_value_info(final, TensorProto.STRING, ["rows"]))
        else:
            nodes.append(helper.make_node("Identity", [output.name], [final]))
            given.append(_renamed(output, final))
    _replace(graph.output, given)
    graph.node.extend(nodes)


def _type(column: Column) -> int:
    return int(TensorProto.STRING if column.kind == "category" else TensorProto.DOUBLE)


def _renamed(value: onnx.ValueInfoProto, name: str) -> onnx.ValueInfoProto:
    copy = onnx.ValueInfoProto()
    copy.CopyFrom(value)
    copy.name = name
    return copy


def _replace(field: "Iterable[object]", content: "list[onnx.NodeProto] | list[onnx.ValueInfoProto]") -> None:
    """Put something else into a repeated field."""
    kept = list(content)
    del field[:]  # type: ignore[attr-defined]
    field.extend(kept)  # type: ignore[attr-defined]
