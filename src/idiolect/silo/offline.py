"""A silo's own models without a network: from its state folder to predictions and files."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from idiolect.core.fixed import put_weights
from idiolect.engines.local_view import stand_in
from idiolect.errors import UserError
from idiolect.runs.model_card import ModelCard, bare_card
from idiolect.runs.personal_model import PersonalModel, as_module
from idiolect.runs.programs import check_target, write_program
from idiolect.runs.reported import CHOSEN
from idiolect.runs.setup import build_setting
from idiolect.silo.schema import Schema
from idiolect.silo.serve_settings import agreed_config
from idiolect.silo.vault import RunVault


def find_run(folder: Path) -> RunVault:
    """The run in a silo's state folder; of several the user has to choose."""
    found = sorted(path.parent for path in [*folder.glob("run.json"), *folder.glob("**/run.json")])
    found = list(dict.fromkeys(found))
    if not found:
        raise UserError(f"--state {folder} holds no run of this silo")
    if len(found) > 1:
        raise UserError(f"--state {folder} holds several runs; give one of {', '.join(map(str, found))}")
    return RunVault(found[0])


def personal_model(folder: Path, kind: str | None = None) -> PersonalModel:
    """The silo's model of some kind; by default the one that the method is judged by."""
    return _model_and_card(folder, kind)[0]


def export_program(folder: Path, target: Path, kind: str | None = None) -> Path:
    """The silo's model as one file: model.pt2 for torch.export, model.onnx for ONNX."""
    check_target(target)
    model, card = _model_and_card(folder, kind)
    assert model.preprocessing is not None, "silos have tables"
    return write_program(model, torch.zeros(len(model.preprocessing.feature_names)), card, target)


def _model_and_card(folder: Path, kind: str | None) -> tuple[PersonalModel, ModelCard]:
    vault = find_run(folder)
    agreement: Any = vault.agreement
    models, round_number = vault.models()
    schema, config = Schema.from_plain(agreement["schema"]), agreed_config(agreement["config"])
    rows = pd.DataFrame(1, index=["here"], columns=["train", "validation", "test"])
    setting = build_setting(config, stand_in(schema.preprocessing, rows))
    put_weights(setting.objective.module, vault.weights)
    kind = kind or setting.method.judged_by
    if kind == CHOSEN:
        predictor, kept = vault.chosen()
        kind = f"{CHOSEN} ({kept})"
    elif kind in models:
        predictor = models[kind]
    else:
        raise UserError(f"--kind {kind} is not possible: the models are {', '.join((*models, CHOSEN))}")
    client = str(agreement["name"])
    module = as_module(predictor, setting.objective.module, setting.objective.task, f"client {client!r}")
    model = PersonalModel(module, schema.task, schema.preprocessing.class_names, schema.preprocessing)
    card = bare_card(model, config, client, kind, round_number)
    return model, replace(card, clients=int(agreement["clients"]))
