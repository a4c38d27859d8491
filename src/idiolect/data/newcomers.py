"""Clients that were not there in training, read as those who were: same columns, scales and classes."""

import pandas as pd
import torch
from torch import Tensor

from idiolect.data.federation import Federation
from idiolect.data.partition import by_id
from idiolect.data.preprocessing import Preprocessing, as_numbers, as_text, require_column
from idiolect.data.splits import Fractions, split_clients
from idiolect.data.tables import client_ids, without_missing_targets
from idiolect.errors import UserError


def newcomers_like(
    federation: Federation, frame: pd.DataFrame, *, client: str, seed: int, fractions: Fractions
) -> Federation:
    """A federation of a table's clients, whose rows are transformed as the given federation's were."""
    fitted = federation.preprocessing
    if fitted is None or fitted.target is None:
        raise UserError("newcomers are read from a table, and the run's data did not come from one")
    frame = frame.rename(columns=str)
    require_column(frame, client, "client column")
    require_column(frame, fitted.target, "target")
    frame, notes = without_missing_targets(frame, fitted.target, fitted.missing)
    names, rows = by_id(client_ids(frame[client]))
    if known := sorted(set(names) & set(federation.names)):
        raise UserError(f"client {known[0]!r} took part in the run: its model is there (`idiolect export`)")
    split = split_clients(rows, names, seed=seed, fractions=fractions)
    return Federation(
        inputs=fitted.transform(frame),
        targets=_targets(frame[fitted.target], fitted, federation),
        task=federation.task,
        names=tuple(names),
        train=split.train,
        validation=split.validation,
        test=split.test,
        feature_names=federation.feature_names,
        class_names=federation.class_names,
        notes=tuple(notes),
        preprocessing=fitted,
    )


def _targets(column: "pd.Series[str]", fitted: Preprocessing, federation: Federation) -> Tensor:
    if not federation.task.is_classification:
        return fitted.scale_target(torch.as_tensor(as_numbers(column).to_numpy("float32"))[:, None])
    number = {name: place for place, name in enumerate(federation.class_names)}
    text = as_text(column)
    if unknown := sorted(set(text) - set(number)):
        raise UserError(
            f"the target {column.name!r} holds {unknown[0]!r}; "
            f"the run knows {', '.join(federation.class_names)}"
        )
    return torch.tensor([number[value] for value in text], dtype=torch.int64)
