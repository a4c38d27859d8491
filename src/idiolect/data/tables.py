"""The user's own tables: one with a client column, or a folder with one file for each client."""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from idiolect.data.class_weights import ClassWeights, with_class_weights
from idiolect.data.federation import Federation, Rows
from idiolect.data.folders import read_folder
from idiolect.data.hints import listed, names, place, typed
from idiolect.data.partition import by_id
from idiolect.data.preprocessing import Missing, Moments, Preprocessing, as_text, require_column
from idiolect.data.reading import Reading, Table, read_file, read_frame
from idiolect.data.roles import are_dates, are_names, ask_about_mixture, reason_to_leave_out
from idiolect.data.splits import DEFAULT_FRACTIONS, Fractions, TooFew, split_clients
from idiolect.data.targets import MOST_WHOLE_CLASSES, TaskChoice, encode_targets
from idiolect.errors import UserError

WORST_NAMED = 3  # clients that a note on missing values names
Names = str | Sequence[str]


def from_table(
    source: pd.DataFrame | str | Path,
    *,
    target: str,
    client: str | None = None,
    seed: int = 0,
    task: TaskChoice = "auto",
    missing: Missing = "refuse",
    ignore: Names = (),
    keep: Names = (),
    categories: Names = (),
    scale_target: bool = True,
    fractions: Fractions = DEFAULT_FRACTIONS,
    minimum_rows: int | None = None,
    too_few: TooFew = "refuse",
    shuffle: bool = True,
    class_weights: ClassWeights | None = None,
    separator: str = "auto",
    decimal: str = "auto",
    encoding: str = "auto",
    missing_values: Names = ("?",),
    left_out: Sequence[str] = (),
) -> Federation:
    """A federation from a table whose column `client` says whose row it is, or from a folder of tables.

    All other columns but `target` and `ignore` are features: numbers are standardised, anything else is a
    category with an indicator for each value. Dates, row numbers and identifiers are left out unless they are
    in `keep`. Means, scales and categories come from training rows only and are kept as
    `Federation.preprocessing`; what was found and done is in `Federation.notes`.

    missing: "refuse" missing values; "impute" them by the training mean or the most frequent category (rows
        without a target are then left out); or "indicate" them: impute, and add an input that says where.
    ignore, keep, categories: columns as a list or as "a,b"; `categories` are those whose numbers are codes.
    scale_target: standardise the target of a regression, so that losses are in units of its variance;
        `Preprocessing.restore_target` gives the target's own units.
    minimum_rows, too_few, shuffle: see `split_clients`.
    class_weights: see `with_class_weights`.
    separator, decimal, encoding, missing_values: see `Reading`.
    left_out: clients whose rows have no part in means, scales, categories and class weights.
    """
    reading = Reading(separator, decimal, encoding, names(missing_values))
    table, client = _read(source, client, reading)
    frame = table.frame
    columns = {"ignore": ignore, "keep": keep, "categories": categories}
    chosen = {role: names(given, known=frame.columns) for role, given in columns.items()}
    features = _feature_columns(frame, client, target, **chosen)
    table.require_clear([client, target, *features])
    frame, notes = without_missing_targets(frame, target, missing)
    _check_target(frame[target], task, table.missing_values)
    features, useless = _without_useless(
        frame, features, chosen["keep"], chosen["categories"], table.missing_values
    )
    targets = encode_targets(frame[target], task)
    notes = [*table.notes, *useless, *notes, targets.note]

    clients, rows = by_id(client_ids(frame[client]))
    split = split_clients(
        rows,
        clients,
        seed=seed,
        fractions=fractions,
        minimum_rows=minimum_rows,
        too_few=too_few,
        shuffle=shuffle,
    )
    if dropped := sorted(set(clients) - {clients[i] for i in split.kept}):
        notes.append(f"clients dropped for too few rows: {listed(dropped)}")
    clients = [clients[i] for i in split.kept]

    fitted_on = [split.train.of(place) for place, name in enumerate(clients) if name not in left_out]
    training = frame.iloc[torch.cat(fitted_on).numpy()]
    mean, deviation = 0.0, 1.0
    if targets.task.is_classification:
        notes += one_class_notes(targets.values, split.train, clients)
    elif scale_target:
        mean, deviation = Moments.of(training[target].to_numpy(np.float64)).standard()
        notes.append(
            f"the target {target!r} is standardised: its unit is {deviation:.6g}, its zero {mean:.6g}"
        )
    preprocessing = dataclasses.replace(
        Preprocessing.fit(training, features, categories=chosen["categories"], missing=missing),
        class_names=targets.class_names,
        target=target,
        target_mean=mean,
        target_scale=deviation,
        missing_values=reading.missing_values,
    )
    inputs = preprocessing.transform(frame)
    used = frame[as_text(frame[client]).isin(clients)]
    notes += _column_notes(used, preprocessing, used[client])
    federation = Federation(
        inputs=inputs,
        targets=preprocessing.scale_target(targets.values),
        task=preprocessing.task,
        names=tuple(clients),
        train=split.train,
        validation=split.validation,
        test=split.test,
        feature_names=preprocessing.feature_names,
        class_names=targets.class_names,
        notes=tuple(notes),
        preprocessing=preprocessing,
    )
    return with_class_weights(federation, class_weights, left_out)


def from_frame(frame: pd.DataFrame, *, client: str, target: str, seed: int = 0, **options: Any) -> Federation:
    """A federation from a data frame whose column `client` says whose row it is; see `from_table`."""
    return from_table(frame, client=client, target=target, seed=seed, **options)


def one_class_notes(targets: Tensor, train: Rows, names: Sequence[str]) -> list[str]:
    """Which clients see a single class in training: allowed, but worth knowing."""
    alone = [name for i, name in enumerate(names) if len(targets[train.of(i)].unique()) == 1]
    return [f"clients with one class only in training: {listed(alone)}"] if alone else []


def check_names(names: Sequence[str]) -> None:
    """Refuse names that are the same, or differ in spaces and case only."""
    seen: dict[str, str] = {}
    for name in names:
        folded = re.sub(r"\s+", " ", name.strip()).casefold()
        if folded in seen:
            raise UserError(
                f"the client names {seen[folded]!r} and {name!r} are too alike; make them one or two"
            )
        seen[folded] = name


def client_ids(column: pd.Series) -> np.ndarray:
    """Whose row each is; a row of nobody is refused."""
    if (absent := column.isna()).any():
        raise UserError(
            f"the client column {column.name!r} has {int(absent.sum())} missing values, the first in "
            f"{place(absent)}; fill them in, or leave these rows out of the file"
        )
    check_names(list(column.astype(str).unique()))
    numeric = pd.api.types.is_integer_dtype(column)
    return column.to_numpy() if numeric else as_text(column).to_numpy(dtype=str)


def without_missing_targets(
    frame: pd.DataFrame, target: str, missing: Missing
) -> tuple[pd.DataFrame, list[str]]:
    """The rows that have a target, and a note of how many have none; without leave they are refused."""
    absent = frame[target].isna()
    if not absent.any():
        return frame, []
    if absent.all():
        raise UserError(f"the target {target!r} has no values")
    if missing == "refuse":
        raise UserError(
            f"the target {target!r} has {int(absent.sum())} missing values, the first in {place(absent)}; "
            "fill them in, or leave these rows out with data.missing=impute (between silos "
            "schema.missing=impute)"
        )
    return frame[~absent], [f"rows left out because the target {target!r} is missing: {int(absent.sum())}"]


def _read(source: pd.DataFrame | str | Path, client: str | None, reading: Reading) -> tuple[Table, str]:
    """The table, and the column that says whose row it is."""
    if not isinstance(source, pd.DataFrame) and Path(source).is_dir():
        return read_folder(source, reading)
    if client is None:
        raise UserError("data.client is missing: the column that says whose row it is")
    if not isinstance(source, pd.DataFrame):
        return read_file(source, reading), client
    for setting in ("separator", "encoding"):
        if reading.chosen(setting) is not None:
            raise UserError(f"{setting} is for CSV files, and the data is a data frame")
    return read_frame(source, reading), client


def _feature_columns(
    frame: pd.DataFrame,
    client: str,
    target: str,
    ignore: Sequence[str],
    keep: Sequence[str],
    categories: Sequence[str],
) -> list[str]:
    """The columns that are left for features, once all that are named are there."""
    if frame.empty:
        raise UserError("the table has no rows")
    if client == target:
        raise UserError(f"client and target are both {client!r}; they must be two columns")
    roles = [(client, "client column"), (target, "target column")]
    roles += [(name, "column to ignore") for name in ignore]
    roles += [(name, "column to keep") for name in keep]
    roles += [(name, "category column") for name in categories]
    for name, role in roles:
        require_column(frame, name, role)
    features = [name for name in frame.columns if name not in (client, target, *ignore)]
    if not features:
        raise UserError(f"the table has no feature columns besides {client!r}, {target!r} and {list(ignore)}")
    return features


def _check_target(column: pd.Series, task: TaskChoice, missing_values: Sequence[str]) -> None:
    """Refuse a target of dates or names, and ask what texts between its numbers mean."""
    if task == "classification":
        return
    if are_dates(column):
        raise UserError(f"the target {column.name!r} holds dates; turn them into numbers, such as days")
    ask_about_mixture(column, missing_values, is_target=True)
    different = column.nunique()
    many = different > MOST_WHOLE_CLASSES and are_names(different, len(column))
    if many and not pd.api.types.is_numeric_dtype(column):
        raise UserError(
            f"the target {column.name!r} has {different} different texts in {len(column)} rows, as names do; "
            "choose another data.target, or set data.task=classification if they are classes"
        )


def _without_useless(
    frame: pd.DataFrame,
    features: Sequence[str],
    keep: Sequence[str],
    categories: Sequence[str],
    missing_values: Sequence[str],
) -> tuple[list[str], list[str]]:
    """The features without dates, row numbers and identifiers, and a note for each that was left out."""
    kept, notes = [], []
    for name in features:
        if name not in categories:
            ask_about_mixture(frame[name], missing_values)
        reason = None if name in (*keep, *categories) else reason_to_leave_out(frame[name])
        if reason is None:
            kept.append(name)
        else:
            back = "" if reason == "has no values" else f" ({typed('data.keep', name)} takes it back)"
            notes.append(f"column {name!r} was left out: it {reason}{back}")
    if not kept:
        raise UserError(f"the table has no feature columns: {'; '.join(notes)}")
    return kept, notes


def _column_notes(frame: pd.DataFrame, preprocessing: Preprocessing, clients: pd.Series) -> list[str]:
    notes = []
    for column in preprocessing.columns:
        if column.name.startswith("Unnamed: "):
            out = typed("data.ignore", column.name)
            notes.append(f"column {column.name!r} has no name in the file; {out} leaves it out")
        if (absent := frame[column.name].isna()).any():
            filling = f"{column.mean:.6g}" if column.kind == "number" else repr(column.most_frequent)
            said = ", and an input says where" if column.indicator else ""
            notes.append(
                f"column {column.name!r}: {int(absent.sum())} of {len(absent)} values missing, replaced by "
                f"{filling}{said}; {_worst(absent, clients)}"
            )
    for name, values in preprocessing.unseen(frame).items():
        notes.append(f"column {name!r}: no training row has {listed(values)}; such rows get zeros")
    return notes


def _worst(absent: "pd.Series[bool]", clients: pd.Series) -> str:
    """At which clients most is missing."""
    shares = absent.groupby(as_text(clients).to_numpy(), sort=False).agg(["sum", "count"])
    shares["share"] = shares["sum"] / shares["count"]
    worst = shares[shares["sum"] > 0].sort_values(["share", "sum"], ascending=False).head(WORST_NAMED)
    named = ", ".join(f"{name!r} {row['sum']:.0f} of {row['count']:.0f}" for name, row in worst.iterrows())
    return f"most at {named}" if (shares["sum"] > 0).sum() > WORST_NAMED else f"at {named}"
