"""A client's own model as a module, and as files that need no pickle.

EXPORT/model.safetensors    the parameters
EXPORT/model.json           how to build the module, how to read a table, what the outputs mean
"""

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from idiolect.core.objective import Mixture, Predictor, in_precision
from idiolect.core.task import Task
from idiolect.core.tree import Params
from idiolect.data.federation import Federation, Rows
from idiolect.data.preprocessing import Preprocessing
from idiolect.errors import UserError, did_you_mean
from idiolect.models import build_model
from idiolect.runs.config import RunConfig
from idiolect.runs.folder import RunFolder
from idiolect.runs.lifecycle import reported_simulation
from idiolect.simulation import Simulation
from idiolect.store.files import new_folder, read_json, read_tensors, write_json, write_tensors

FORMAT = "idiolect-model-1"


class MixedModel(nn.Module):
    """A weighted sum of the outputs of several models."""

    def __init__(self, members: list[nn.Module], weights: Tensor) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.register_buffer("weights", weights)

    def forward(self, inputs: Tensor) -> Tensor:
        """The mixed outputs."""
        outputs = torch.stack([member(inputs) for member in self.members])
        return torch.tensordot(self.weights, outputs, dims=1)


def as_module(predictor: Predictor, module: nn.Module) -> nn.Module:
    """A predictor as a module of its own; `module` is the architecture and is left as it is."""
    if isinstance(predictor, Mixture):
        members = [_with_params(module, params) for params in predictor.members]
        return MixedModel(members, torch.stack([w.detach() for w in predictor.weights]))
    return _with_params(module, predictor)


@dataclass(frozen=True)
class PersonalModel:
    """A client's model together with what is needed to use it on new rows."""

    module: nn.Module
    task: Task
    class_names: tuple[str, ...]
    preprocessing: Preprocessing | None

    def decide(self, inputs: Tensor) -> Tensor:
        """Predicted classes, or numbers, of rows that are inputs already."""
        with torch.no_grad():
            return self.task.decide(self.module(inputs))

    def predict(self, table: pd.DataFrame) -> "pd.Series[Any]":
        """Predicted class names, or numbers in the target's own units, of a table's rows."""
        if self.preprocessing is None:
            raise UserError("this model was not trained on a table: give tensors to its module instead")
        dtype = next(self.module.parameters()).dtype
        decided = self.decide(self.preprocessing.transform(table).to(dtype))
        if self.task.is_classification:
            values: Any = [self.class_names[c] for c in decided.tolist()]
        else:
            values = self.preprocessing.restore_target(decided)[:, 0].numpy()
        return pd.Series(values, index=table.index, name=self.preprocessing.target or "prediction")


class ClientModels:
    """Every client's models, in the state in which a simulation stands."""

    def __init__(self, simulation: Simulation, thresholds: Mapping[str, float] | None = None) -> None:
        self.simulation = simulation
        self.thresholds = thresholds or {}  # by model kind, where they are not one half

    def model(self, client: str, kind: str | None = None) -> nn.Module:
        """A client's model as a module of its own; by default the kind that the method is judged by."""
        _, predictor = chosen_predictor(self.simulation, client, kind)
        return as_module(predictor, self.simulation.engine.setting.objective.module)

    def predict(self, client: str, inputs: Tensor | pd.DataFrame, kind: str | None = None) -> list[Any]:
        """A client's predictions: class names where there are any, class numbers, or numbers.

        `inputs` are rows like those of the federation, or a table like the one it was made of.
        """
        federation = self.simulation.federation
        task = deciding_task(federation.task, kind or self.simulation.method.judged_by, self.thresholds)
        personal = PersonalModel(
            self.model(client, kind), task, federation.class_names, federation.preprocessing
        )
        if isinstance(inputs, pd.DataFrame):
            return personal.predict(inputs).tolist()
        decided: list[Any] = personal.decide(inputs.to(federation.inputs.dtype)).tolist()
        if federation.task.is_classification and federation.class_names:
            return [federation.class_names[c] for c in decided]
        return decided


def thresholds_of(summary: Mapping[str, Any]) -> dict[str, float]:
    """The thresholds that a run reports, by model kind; none where they are one half."""
    kinds: Mapping[str, Mapping[str, float]] = summary["kinds"]
    return {kind: numbers["threshold"] for kind, numbers in kinds.items() if "threshold" in numbers}


def deciding_task(task: Task, kind: str, thresholds: Mapping[str, float]) -> Task:
    """The task with the threshold that a kind of models decides with."""
    return replace(task, threshold=thresholds.get(kind, task.threshold))


def client_number(client: str, names: tuple[str, ...]) -> int:
    """A client's place, from its name."""
    if client not in names:
        known = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        raise UserError(
            f"there is no client {client!r}{did_you_mean(client, names)}; the clients are {known}"
        )
    return names.index(client)


def chosen_predictor(simulation: Simulation, client: str, kind: str | None) -> tuple[str, Predictor]:
    """A client's model of some kind, by default the one that the method is judged by; and the kind."""
    number = client_number(client, simulation.federation.names)
    kinds = simulation.method.kinds
    kind = kind or simulation.method.judged_by
    if kind not in kinds:
        known = ", ".join(kinds)
        raise UserError(f"kind={kind} is not possible: the models of {simulation.method.name} are {known}")
    if kind == "global":  # where clients' states are at silos, it is there nevertheless
        return kind, simulation.global_model()
    return kind, simulation.predictor(number)[kind]


def export_model(run: RunFolder, client: str, target: Path, kind: str | None = None) -> Path:
    """Write the model of one client, in the state that the run reports, to a new folder."""
    thresholds = thresholds_of(run.summary())
    return export_client(reported_simulation(run), run.config, client, target, kind, thresholds)


def export_client(
    simulation: Simulation,
    config: RunConfig,
    client: str,
    target: Path,
    kind: str | None = None,
    thresholds: Mapping[str, float] | None = None,
) -> Path:
    """Write the model that one client has now to a new folder."""
    if target.exists():
        raise UserError(f"out={str(target)!r} exists already; choose another name")
    federation = simulation.federation
    kind, predictor = chosen_predictor(simulation, client, kind)
    module = as_module(predictor, simulation.engine.setting.objective.module)
    row = federation.inputs[:1]
    card = {
        "format": FORMAT,
        "client": client,
        "kind": kind,
        "method": config.method_name,
        "round": simulation.round,
        "model": config.model,
        "dtype": config.dtype,
        "members": len(predictor.members) if isinstance(predictor, Mixture) else 0,
        "input_shape": list(row.shape[1:]),
        # Characters are codes: the model's table of embeddings has a row for each.
        "codes": None if row.is_floating_point() else int(federation.inputs.max()) + 1,
        "task": deciding_task(federation.task, kind, thresholds or {}).plain(),
        "class_names": list(federation.class_names),
        "preprocessing": json.loads(federation.preprocessing.to_json()) if federation.preprocessing else None,
    }
    with new_folder(target) as folder:
        write_tensors(folder / "model.safetensors", module.state_dict())
        write_json(folder / "model.json", card)
    return target


def load_model(path: str | Path) -> PersonalModel:
    """Read what `export_model` wrote."""
    folder = Path(path)
    if not (folder / "model.json").is_file():
        raise UserError(f"{str(path)!r} is not an exported model: it has no model.json")
    card = read_json(folder / "model.json")
    if not isinstance(card, dict) or card.get("format") != FORMAT:
        raise UserError(f"{str(path)!r} is not an exported model of the format {FORMAT}")
    task = Task.from_plain(card["task"])
    options = dict(card["model"])
    module = build_model(options.pop("name"), _stand_in(card, task), **options)
    if card["members"]:
        members = [copy.deepcopy(module) for _ in range(card["members"])]
        module = MixedModel(members, torch.zeros(card["members"]))
    module = in_precision(module, getattr(torch, card["dtype"]))
    try:
        module.load_state_dict(read_tensors(folder / "model.safetensors"))
    except RuntimeError as error:
        raise UserError(f"{str(path)!r} is damaged: its parameters do not fit its model.json") from error
    fitted = card["preprocessing"]
    preprocessing = None if fitted is None else Preprocessing.from_json(json.dumps(fitted))
    return PersonalModel(module.eval(), task, tuple(card["class_names"]), preprocessing)


def _with_params(module: nn.Module, params: Params) -> nn.Module:
    own = copy.deepcopy(module)
    with torch.no_grad():
        for name, parameter in own.named_parameters():
            parameter.copy_(params[name])
    return own


def _stand_in(card: dict[str, Any], task: Task) -> Federation:
    """A federation of one row with the shapes that a model's factory looks at."""
    shape = (1, *card["input_shape"])
    codes = card["codes"]
    inputs = torch.zeros(shape) if codes is None else torch.full(shape, codes - 1, dtype=torch.int64)
    classes = torch.zeros(1, dtype=torch.int64)
    targets = classes if task.is_classification else torch.zeros(1, task.outputs)
    row = Rows.of_clients([classes])
    return Federation(inputs, targets, task, ("stand-in",), row, row, row)
