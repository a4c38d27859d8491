"""The graphs on docs/compiler.md are those that the compiler makes now.

A block of the page names a step and a pass: "text fedavg simplify" is the whole graph after that pass and all
before it, "diff fedavg simplify" what the pass changed. `UPDATE_DOCS=1` rewrites them.
"""

import copy
import difflib
import os
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree

from idiolect.core.method import Method
from idiolect.core.rng import uniform
from idiolect.core.task import Task
from idiolect.data.federation import Federation, Rows
from idiolect.engines.compiler import compiler
from idiolect.engines.compiler.passes import PASSES
from idiolect.engines.compiler.recorder import Arguments, Step, record
from idiolect.methods.apfl import APFL
from idiolect.methods.fedavg import FedAvg
from idiolect.methods.pfedme import PFedMe
from idiolect.methods.scaffold import Scaffold
from idiolect.simulation import Simulation

PAGE = Path(__file__).parents[2] / "docs" / "compiler.md"
BLOCK = re.compile(r"^```(text|diff) (\S+) (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RECORDED = "recorded"  # before all passes
STAGES = (RECORDED, *PASSES)

# A layer that is larger than a batch, for there passes have most to do.
CLIENTS, ROWS, INPUTS, OUTPUTS = 4, 2, 6, 5
METHODS: dict[str, Method] = {
    "fedavg": FedAvg(local_steps=2),
    "apfl": APFL(local_steps=2, learning_rate=0.1),
    "apfl-every-step": APFL(local_steps=2, learning_rate=0.1, mixing_update="step"),
    "pfedme": PFedMe(local_steps=2, inner_steps=2),
    "scaffold": Scaffold(local_steps=2),
}

ONCE, EVERY_STEP = "once in a round:", "in every step:"
WIDTH = 72  # of an operation; the shape of its result comes after it
# Passes may change strides, so what they leave of views is a reshape: the same for a reader.
SAME = {"view": "reshape", "_unsafe_view": "reshape", "_to_copy": "to"}
HIDDEN = {"pin_memory", "memory_format"}  # options that no number depends on


@pytest.mark.skipif(
    not torch.__version__.startswith("2.13."), reason="another torch may record other operations"
)
def test_the_graphs_of_the_page_are_the_compilers() -> None:
    page = PAGE.read_text()
    printed = BLOCK.sub(lambda block: f"{block[0].splitlines()[0]}\n{content(*block.groups()[:3])}```", page)
    if os.environ.get("UPDATE_DOCS"):
        PAGE.write_text(printed)
    assert PAGE.read_text() == printed


def test_the_page_shows_what_each_pass_changes() -> None:
    shown = [(step, stage) for kind, step, stage, _ in BLOCK.findall(PAGE.read_text()) if kind == "diff"]
    assert {stage for _, stage in shown} == PASSES.keys()
    assert all(changes(step, stage) for step, stage in shown)


def content(kind: str, step: str, stage: str) -> str:
    """What a block of the page says."""
    if step == "all":
        lines: Iterable[str] = operation_counts()
    else:
        lines = changes(step, stage) if kind == "diff" else listings(step)[stage]
    return "".join(f"{line}\n" for line in lines)


def operation_counts() -> list[str]:
    """How many operations each step has after each pass; a dot where the pass changed nothing."""
    lines = ["".join([" " * 12, *(f"{name:>17}" for name in METHODS)])]
    for stage in STAGES:
        counts = [
            "·" if stage != RECORDED and not changes(name, stage) else count_of(listings(name)[stage])
            for name in METHODS
        ]
        lines.append("".join([f"{stage:12}", *(f"{count:>17}" for count in counts)]))
    return lines


def count_of(listing: list[str]) -> str:
    """Operations of a step, and those that are done once in a round."""
    operations = [sum(" = " in line for line in part) for part in parts_of(listing)]
    return " + ".join(map(str, operations))


def parts_of(listing: list[str]) -> list[list[str]]:
    """The step, and what is computed once in a round if there is anything."""
    if EVERY_STEP not in listing:
        return [listing]
    place = listing.index(EVERY_STEP)
    return [listing[place:], listing[:place]]


def changes(step: str, stage: str) -> list[str]:
    """What a pass changed in the lines of a step, with the lines around it."""
    before = listings(step)[STAGES[STAGES.index(stage) - 1]]
    lines = list(difflib.unified_diff(before, listings(step)[stage], n=1, lineterm=""))[2:]
    return ["  ..." if line.startswith("@@") else f"{line[0]} {line[1:]}".rstrip() for line in lines][1:]


@cache
def listings(step: str) -> dict[str, list[str]]:
    """A step after each pass, line by line."""
    plain, example, names = recorded_step(METHODS[step])
    shown = {}
    for place, stage in enumerate(STAGES):
        replay = record(plain, example, STAGES[1 : place + 1]).later
        shared, own = (lines_of(part.__self__.graph, names) for part in (replay.share, replay.step))
        shown[stage] = [ONCE, *shared, "", EVERY_STEP, *own] if len(shared) > 1 else own
    return shown


def recorded_step(method: Method) -> tuple[Step, Arguments, dict[str, str]]:
    """A local step as the engine gives it to the compiler, and what its arguments are called."""
    given: list[Any] = []
    plain_step = type(method).step

    def noted_step(self: Any, work: Any, client: Any, down: Any, batches: Any, site: Any) -> Any:
        given.append((work, client, down, batches))
        return plain_step(self, work, client, down, batches, site)

    with (
        mock.patch.object(compiler, "record", wraps=record) as recording,
        mock.patch.object(type(method), "step", noted_step),
    ):
        Simulation(method, nn.Linear(INPUTS, OUTPUTS, bias=False), federation(), batch_size=ROWS).play(1)
    plain, example, _ = recording.call_args.args
    return plain, example, argument_names(example, *given[0])


def federation() -> Federation:
    """Clients with as many rows as a batch has."""
    rows = Rows.of_clients(list(torch.arange(CLIENTS * ROWS).split(ROWS)))
    inputs = uniform(torch.tensor(1), CLIENTS * ROWS, INPUTS)
    targets = uniform(torch.tensor(2), CLIENTS * ROWS, OUTPUTS)
    names = tuple(f"client-{place}" for place in range(CLIENTS))
    return Federation(inputs, targets, Task("regression", OUTPUTS), names, rows, rows, rows)


def argument_names(example: Arguments, work: Any, client: Any, down: Any, batches: Any) -> dict[str, str]:
    """The names of a step's arguments in the graph -> those for a reader."""
    kept = [*_paths("client", client), *_paths("down", down)]
    unnamed = [f"fixed_{place}" for place in range(len(kept), len(example.fixed) - 1)]
    flat = [*_paths("work", work), *kept, *unnamed, "round", *_paths("batch", batches[0]), "step"]
    assert len(flat) == len(example.flat())
    return {f"argument_{place}": name for place, name in enumerate(flat)}


def _paths(root: str, tree: Any) -> list[str]:
    """Where each tensor is; the model has one, which needs no name."""
    paths = [pytree.keystr(path) for path, _ in pytree.tree_flatten_with_path(tree)[0]]
    return [root + path.removesuffix("['weight']") for path in paths]


def lines_of(graph: Graph, names: dict[str, str]) -> list[str]:
    """The operations of a graph that something needs; `names` of values are added to and stay."""
    graph = copy.deepcopy(graph)
    graph.eliminate_dead_code()
    return [_line(node, names) for node in graph.nodes if node.users or node.op == "output"]


def _line(node: Node, names: dict[str, str]) -> str:
    if node.op == "output":
        return f"return {_text(node.args[0], names)}"
    if node.op == "placeholder":
        text = f"given {_name(node, names)}"
    else:
        options = [f"{k}={_text(v, names)}" for k, v in node.kwargs.items() if k not in HIDDEN]
        arguments = ", ".join([*(_text(value, names) for value in node.args), *options])
        text = f"{_name(node, names)} = {_operation(node)}({arguments})"
    return f"{text:{WIDTH}}{_shape(node)}".rstrip()


def _name(node: Node, names: dict[str, str]) -> str:
    """That of its operation with a number, the same after every pass, and where it is computed or shared."""
    known = node.name.removeprefix("shared_")
    if known not in names:
        operation = _operation(node).rstrip("_")
        number = 1 + sum(name.rpartition("_")[0] == operation for name in names.values())
        names[known] = f"{operation}_{number}"
    return names[known]


def _operation(node: Node) -> str:
    name = str(node.target) if isinstance(node.target, str) else node.target.__name__.split(".")[0]
    return SAME.get(name, name)


def _text(value: Any, names: dict[str, str]) -> str:
    if isinstance(value, Node):
        return _name(value, names)
    if isinstance(value, list | tuple):
        return f"[{', '.join(_text(entry, names) for entry in value)}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _shape(node: Node) -> str:
    meta = node.meta.get("tensor_meta")
    return "×".join(map(str, meta.shape)) if meta is not None else ""
