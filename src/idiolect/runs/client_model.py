"""Clients' own models of a simulation, and as files that need no pickle.

EXPORT/model.safetensors    the parameters
EXPORT/model.json           how to build the module, how to read a table, what the outputs mean, and the card
EXPORT/model-card.md        the card, for people
"""

import copy
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn

from idiolect.core import tree
from idiolect.core.inputs import Inputs, row_shapes
from idiolect.core.neighbours import Store
from idiolect.core.objective import Predictor, in_precision
from idiolect.core.several import Several, architecture_of
from idiolect.core.task import Task
from idiolect.data.federation import Federation, Rows
from idiolect.data.preprocessing import Preprocessing
from idiolect.errors import UserError, did_you_mean
from idiolect.models import CATALOGUE as MODELS
from idiolect.models import build_model
from idiolect.models.preparation import without_preparation
from idiolect.runs.config import RunConfig
from idiolect.runs.folder import RunFolder
from idiolect.runs.lifecycle import reported_simulation
from idiolect.runs.model_card import card_of
from idiolect.runs.personal_model import MixedModel, NeighbourModel, PersonalModel, as_module, require_finite
from idiolect.runs.run_summary import thresholds_of
from idiolect.simulation import Simulation
from idiolect.store.files import new_folder, read_json, read_tensors, write_bytes, write_json, write_tensors

FORMAT = "idiolect-model-1"


class ClientModels:
    """Every client's models, in the state in which a simulation stands."""

    def __init__(self, simulation: Simulation, thresholds: Mapping[str, float] | None = None) -> None:
        self.simulation = simulation
        self.thresholds = thresholds or {}  # by model kind, where they are not one half

    def model(self, client: str, kind: str | None = None) -> nn.Module:
        """A client's model as a module of its own; by default the kind that the method is judged by."""
        return self._personal(client, kind).module

    @contextmanager
    def reported(self, kind: str | None) -> Iterator[Simulation]:
        """The simulation in the state in which a kind of model is reported."""
        yield self.simulation

    def predict(self, client: str, inputs: Inputs | pd.DataFrame, kind: str | None = None) -> list[Any]:
        """A client's predictions: class names where there are any, class numbers, or numbers.

        `inputs` are rows like those of the federation, or a table like the one it was made of.
        """
        model = self._personal(client, kind)
        if isinstance(inputs, pd.DataFrame):
            return model.predict(inputs).tolist()
        return model.name_answers(model.decide(model.outputs(inputs)))

    def predict_proba(
        self, client: str, inputs: Inputs | pd.DataFrame, kind: str | None = None
    ) -> pd.DataFrame:
        """The probability of each class, a column for each; takes what `predict` takes."""
        model = self._personal(client, kind)
        if isinstance(inputs, pd.DataFrame):
            return model.predict_proba(inputs)
        model.require_classes()
        return model.name_probabilities(model.outputs(inputs))

    def _personal(self, client: str, kind: str | None) -> PersonalModel:
        with self.reported(kind) as simulation:
            return personal_model(simulation, client, kind, self.thresholds)[1]


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


def chosen_predictor(simulation: Simulation, client: str | None, kind: str | None) -> tuple[str, Predictor]:
    """A client's model of some kind, by default the one that the method is judged by; and the kind.

    The model of the kind global is everybody's, and needs no client, unless clients keep statistics.
    """
    number = None if client is None else client_number(client, simulation.federation.names)
    kinds = simulation.method.kinds
    kind = kind or simulation.method.judged_by
    if kind not in kinds:
        known = ", ".join(kinds)
        raise UserError(f"kind={kind} is not possible: the models of {simulation.method.name} are {known}")
    if (
        kind == "global" and simulation.method.has_global_model
    ):  # where clients' states are at silos, it is there nevertheless
        return kind, simulation.global_model()
    if number is None:
        raise UserError(f"--client is missing: every client has its own model of the kind {kind}")
    return kind, simulation.predictor(number)[kind]


def personal_model(
    simulation: Simulation,
    client: str | None,
    kind: str | None = None,
    thresholds: Mapping[str, float] | None = None,
) -> tuple[str, PersonalModel]:
    """A client's model with what is needed to use it; and its kind."""
    kind, predictor = chosen_predictor(simulation, client, kind)
    whose = "everybody" if client is None else f"client {client!r}"
    federation = simulation.federation
    task = deciding_task(federation.task, kind, thresholds or {})
    module = as_module(predictor, simulation.engine.setting.objective.module, task, whose)
    return kind, PersonalModel(module, task, federation.class_names, federation.preprocessing)


def export_model(run: RunFolder, client: str | None, target: Path, kind: str | None = None) -> Path:
    """Write the model of one client, in the state that the run reports, to a new folder."""
    thresholds = thresholds_of(run.summary())
    return export_client(reported_simulation(run, kind), run.config, client, target, kind, run, thresholds)


def export_client(
    simulation: Simulation,
    config: RunConfig,
    client: str | None,
    target: Path,
    kind: str | None = None,
    run: RunFolder | None = None,
    thresholds: Mapping[str, float] | None = None,
) -> Path:
    """Write the model that one client has now to a new folder.

    run: what the model's card tells of its training; None for those who came after it.
    """
    if target.exists():
        raise UserError(f"out={str(target)!r} exists already; choose another name")
    federation = simulation.federation
    kind, model = personal_model(simulation, client, kind, thresholds)
    card = card_of(simulation, config, client, kind, model, run)
    content = {
        "format": FORMAT,
        "client": client,
        "kind": kind,
        "method": config.method_name,
        "round": simulation.round,
        # Its weights are in the file beside, adapters merged.
        "model": without_preparation(config.model, MODELS.find(config.model["name"]))[0],
        "architecture": _architecture(simulation, client),
        "dtype": config.dtype,
        "members": len(model.module.members) if isinstance(model.module, MixedModel) else 0,
        "stored_rows": isinstance(model.module, NeighbourModel),
        **_described(federation.inputs),
        "task": model.task.plain(),
        "class_names": list(federation.class_names),
        "preprocessing": json.loads(federation.preprocessing.to_json()) if federation.preprocessing else None,
        "card": card.plain(),
    }
    with new_folder(target) as folder:
        write_tensors(folder / "model.safetensors", model.module.state_dict())
        write_json(folder / "model.json", content)
        write_bytes(folder / "model-card.md", card.markdown().encode())
    return target


def _architecture(simulation: Simulation, client: str | None) -> int | None:
    """Which of several models a client has; None where all have one."""
    module = simulation.engine.setting.objective.module
    if not isinstance(module, Several) or client is None:
        return None
    return architecture_of(client_number(client, simulation.federation.names), len(module.bodies))


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
    if isinstance(module, Several):
        module = module.alone(card["architecture"])
    if card["members"]:
        members = [copy.deepcopy(module) for _ in range(card["members"])]
        module = MixedModel(members, torch.zeros(card["members"]))
    tensors = read_tensors(folder / "model.safetensors")
    try:
        if card.get("stored_rows"):
            module = NeighbourModel(module, Store(*(tensors[name] for name in Store._fields)), task)
        module = in_precision(module, getattr(torch, card["dtype"]))
        module.load_state_dict(tensors)
    except (RuntimeError, KeyError) as error:
        raise UserError(f"{str(path)!r} is damaged: its parameters do not fit its model.json") from error
    require_finite(module, repr(str(path)))
    fitted = card["preprocessing"]
    preprocessing = None if fitted is None else Preprocessing.from_json(json.dumps(fitted))
    return PersonalModel(module.eval(), task, tuple(card["class_names"]), preprocessing)


def _stand_in(card: dict[str, Any], task: Task) -> Federation:
    """A federation of one row with the shapes that a model's factory looks at."""
    inputs = _one_row(card["input_shape"], card["codes"])
    classes = torch.zeros(1, dtype=torch.int64)
    targets = classes if task.is_classification else torch.zeros(1, task.outputs)
    row = Rows.of_clients([classes])
    return Federation(inputs, targets, task, ("stand-in",), row, row, row)


def _described(inputs: Inputs) -> dict[str, Any]:
    """What a model's factory looks at: the shape of a row, and how many codes there are, if any."""
    # Characters are codes: the model's table of embeddings has a row for each.
    codes = tree.map_tree(lambda leaf: None if leaf.is_floating_point() else int(leaf.max()) + 1, inputs)
    return {"input_shape": row_shapes(inputs), "codes": codes}


def _one_row(shapes: Any, codes: Any) -> Inputs:
    """The inverse of `_described`: one row like those of the federation."""
    if isinstance(shapes, dict):
        return {name: _one_row(shapes[name], codes[name]) for name in shapes}
    if isinstance(codes, list):  # several inputs in order
        return tuple(_one_row(*each) for each in zip(shapes, codes, strict=True))
    shape = (1, *shapes)
    return torch.zeros(shape) if codes is None else torch.full(shape, codes - 1, dtype=torch.int64)
