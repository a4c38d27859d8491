"""A model as one file that runs without this package: model.pt2 for torch.export, model.onnx for ONNX.

The file takes rows of the table as they come, any number of them, and gives answers; how columns become
inputs is inside. A model that was not trained on a table takes inputs as a tensor, or several as one dict or
tuple of tensors (not in ONNX). What there is to know of it is beside the file (model.pt2.card.md), and in it
as JSON.

model.pt2 takes one tensor, float64[rows, columns], because torch knows no text: a category is given as its
place in the card's list (any other number: one that no training row had), a missing value as NaN.
model.onnx takes a vector for each column, under the column's name: numbers, or texts (empty: missing).
"""

import io
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from idiolect.core import tree
from idiolect.core.inputs import Inputs, as_arguments
from idiolect.data.preprocessing import Column, Preprocessing
from idiolect.errors import UserError
from idiolect.runs.client_model import personal_model
from idiolect.runs.folder import RunFolder
from idiolect.runs.lifecycle import reported_simulation
from idiolect.runs.model_card import ModelCard, card_of
from idiolect.runs.personal_model import PersonalModel
from idiolect.runs.run_summary import thresholds_of
from idiolect.store.files import write_bytes
from idiolect.strict_json import to_json

CARD = "card.json"  # in a .pt2: torch.export.load(file, extra_files={"card.json": ""})

Answers = dict[str, Tensor]


def export_program(run: RunFolder, client: str | None, target: Path, kind: str | None = None) -> Path:
    """Write the model of one client, in the state that the run reports, to a new file."""
    check_target(target)
    simulation = reported_simulation(run, kind)
    kind, model = personal_model(simulation, client, kind, thresholds_of(run.summary()))
    card = card_of(simulation, run.config, client, kind, model, run)
    return write_program(model, tree.row(simulation.federation.inputs, 0), card, target)


def write_program(model: PersonalModel, row: Inputs, card: ModelCard, target: Path) -> Path:
    """Write a model whose inputs are like this row to a new file, and its card beside it."""
    write = check_target(target)
    if model.preprocessing is None:
        program: nn.Module = TensorProgram(model)
    else:
        program, row = TableProgram(model), torch.zeros(len(model.preprocessing.columns), dtype=torch.float64)
    rows = tree.stack([row, row])  # one row would be taken for the only number of rows there is
    with _quiet():
        content = write(program.eval(), rows, model, card)
    write_bytes(card_beside(target), card.markdown().encode())
    write_bytes(target, content)
    return target


def card_beside(target: Path) -> Path:
    """Where the card of a file is."""
    return target.with_name(f"{target.name}.card.md")


def check_target(target: Path) -> "Callable[[nn.Module, Inputs, PersonalModel, ModelCard], bytes]":
    """What makes such a file; a name that is not possible is refused before anything is computed."""
    if target.suffix not in _FORMATS:
        raise UserError(f"--to {target} must end in {' or '.join(_FORMATS)}")
    if not target.parent.is_dir():
        raise UserError(f"--to {target}: there is no folder {str(target.parent)!r}; make it first")
    for file in (target, card_beside(target)):
        if file.exists():
            raise UserError(f"--to {target}: {file} exists already; choose another name")
    if target.suffix == ".onnx" and any(find_spec(name) is None for name in ("onnx", "onnxscript")):
        raise UserError(f"--to {target} needs ONNX: pip install 'idiolect[onnx]'")
    return _FORMATS[target.suffix]


class TensorProgram(nn.Module):
    """From inputs to outputs and answers."""

    def __init__(self, model: PersonalModel) -> None:
        super().__init__()
        self.model = model
        self.module = model.module

    def forward(self, inputs: Inputs) -> Answers:
        """The model's outputs, and what they say."""
        arguments, keywords = as_arguments(inputs)
        outputs = self.module(*arguments, **keywords)
        return {"outputs": outputs, **_answers(self.model, outputs)}


class TableProgram(nn.Module):
    """From rows of a table, with numbers in place of categories, to answers.

    Every input of the model is one column's number or one column's category, so all of them are computed at
    once from vectors with an entry for each input.
    """

    column: Tensor
    is_category: Tensor
    is_indicator: Tensor
    category: Tensor
    mean: Tensor
    scale: Tensor
    filling: Tensor

    def __init__(self, model: PersonalModel) -> None:
        super().__init__()
        assert model.preprocessing is not None
        self.model = model
        self.module = model.module
        self.refuses_missing = model.preprocessing.missing == "refuse"
        for name, vector in _encoding(model.preprocessing).items():
            self.register_buffer(name, vector)

    def forward(self, columns: Tensor) -> Answers:
        """What the model says; no class (-1) and no number (NaN) where the row cannot be answered."""
        missing = columns.isnan()
        filled = torch.where(missing, self.filling, columns).index_select(1, self.column)
        scaled = (filled - self.mean) / self.scale
        inputs = torch.where(self.is_category, filled.eq(self.category).to(torch.float64), scaled)
        inputs = torch.where(
            self.is_indicator, missing.index_select(1, self.column).to(torch.float64), inputs
        )
        # Through float32, as the rows were that the model was trained on.
        outputs = self.module(inputs.to(torch.float32).to(self.model.dtype))
        unanswerable = (columns.abs() == torch.inf).any(1)
        if self.refuses_missing:
            unanswerable = unanswerable | missing.any(1)
        answers = _answers(self.model, outputs)
        return {name: _left_out(answer, unanswerable) for name, answer in answers.items()}


class _Input(NamedTuple):
    """One input of the model: a column's number, one of its categories, or whether it is missing."""

    column: int
    mean: float = 0.0
    scale: float = 1.0
    category: float = 0.0
    is_category: bool = False
    is_indicator: bool = False


def _encoding(preprocessing: Preprocessing) -> dict[str, Tensor]:
    """How columns become inputs: `filling` has an entry for each column, the others for each input."""
    inputs = [each for place, column in enumerate(preprocessing.columns) for each in _inputs(column, place)]
    assert len(inputs) == len(preprocessing.feature_names), "one for each input that transform gives"
    vectors = {field: _vector([getattr(each, field) for each in inputs]) for field in _Input._fields}
    return vectors | {"filling": _vector([_filling(column) for column in preprocessing.columns])}


def _vector(entries: list[Any]) -> Tensor:
    return torch.tensor(entries, dtype=torch.float64 if isinstance(entries[0], float) else None)


def _inputs(column: Column, place: int) -> list[_Input]:
    if column.kind == "number":
        inputs = [_Input(place, mean=column.mean, scale=column.scale)]
    else:
        inputs = [_Input(place, category=float(c), is_category=True) for c in range(len(column.categories))]
    return [*inputs, _Input(place, is_indicator=True)] if column.indicator else inputs


def _filling(column: Column) -> float:
    """What a missing value of a column counts as."""
    return column.mean if column.kind == "number" else float(column.categories.index(column.most_frequent))


def _answers(model: PersonalModel, outputs: Tensor) -> Answers:
    answers = {"prediction": model.decide(outputs)}
    if model.task.is_classification:
        answers["probabilities"] = model.task.probabilities(outputs)
    return answers


def _left_out(answers: Tensor, rows: Tensor) -> Tensor:
    nothing = torch.nan if answers.is_floating_point() else -1
    return torch.where(rows if answers.ndim == 1 else rows[:, None], nothing, answers)


def _torch_program(program: nn.Module, rows: Inputs, model: PersonalModel, card: ModelCard) -> bytes:
    buffer = io.BytesIO()
    exported = torch.export.export(program, (rows,), dynamic_shapes=any_number_of_rows(rows))
    torch.export.save(exported, buffer, extra_files={CARD: to_json(card.plain())})
    return buffer.getvalue()


def _onnx_program(program: nn.Module, rows: Inputs, model: PersonalModel, card: ModelCard) -> bytes:
    if not isinstance(rows, Tensor):
        raise UserError("a model of several inputs goes into a .pt2; what is written as .onnx takes one")
    from idiolect.runs.onnx_program import assemble  # what it needs is an extra

    return assemble(program, rows, model, to_json(card.plain()))


def any_number_of_rows(rows: Inputs) -> tuple[Any]:
    """The first axis is of any length."""
    anything = {0: torch.export.Dim("rows")}
    return (tree.map_tree(lambda leaf: anything, rows),)


_FORMATS = {".pt2": _torch_program, ".onnx": _onnx_program}


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's remarks on packages that these models do not need."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        logger.setLevel(level)
