"""A model as one file that runs without this package: model.pt2 for torch.export, model.onnx for ONNX.

The file takes inputs as the model does (a table's columns after scaling) and any number of rows, and gives
the model's outputs.
"""

import io
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

from idiolect.errors import UserError
from idiolect.runs.client_model import as_module, chosen_predictor
from idiolect.runs.folder import RunFolder
from idiolect.runs.lifecycle import reported_simulation
from idiolect.store.files import write_bytes


def export_program(run: RunFolder, client: str, target: Path, kind: str | None = None) -> Path:
    """Write the model of one client, in the state that the run reports, to a new file."""
    check_target(target)
    simulation = reported_simulation(run, kind)
    _, predictor = chosen_predictor(simulation, client, kind)
    module = as_module(predictor, simulation.engine.setting.objective.module)
    return write_program(module, simulation.federation.inputs[0], target)


def write_program(module: nn.Module, row: Tensor, target: Path) -> Path:
    """Write a module that takes rows like this one to a new file."""
    write = check_target(target)
    rows = torch.stack([row, row])  # one row would be taken for the only number of rows there is
    with _quiet():
        write_bytes(target, write(module.eval(), rows))
    return target


def check_target(target: Path) -> Callable[[nn.Module, Tensor], bytes]:
    """What makes such a file; a name that is not possible is refused before anything is computed."""
    if target.suffix not in _FORMATS:
        raise UserError(f"--to {target} must end in {' or '.join(_FORMATS)}")
    if target.exists():
        raise UserError(f"--to {target} exists already; choose another name")
    if target.suffix == ".onnx" and any(find_spec(name) is None for name in ("onnx", "onnxscript")):
        raise UserError(f"--to {target} needs ONNX: pip install 'idiolect[onnx]'")
    return _FORMATS[target.suffix]


def _torch_program(module: nn.Module, rows: Tensor) -> bytes:
    buffer = io.BytesIO()
    torch.export.save(torch.export.export(module, (rows,), dynamic_shapes=_any_number_of_rows()), buffer)
    return buffer.getvalue()


def _onnx_program(module: nn.Module, rows: Tensor) -> bytes:
    program = torch.onnx.export(
        module,
        (rows,),
        dynamo=True,
        dynamic_shapes=_any_number_of_rows(),
        input_names=["inputs"],
        output_names=["outputs"],
        verbose=False,
    )
    assert program is not None, "the exporter of torch.export programs returns one"
    content: bytes = program.model_proto.SerializeToString()
    return content


def _any_number_of_rows() -> tuple[dict[int, object]]:
    return ({0: torch.export.Dim("rows")},)


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
