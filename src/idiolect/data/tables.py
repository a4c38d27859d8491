"""The user's own tables: one file with a client column, or a folder with one file for each client."""

import dataclasses
import re
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from torch import Tensor

from idiolect.data.class_weights import ClassWeights, with_class_weights
from idiolect.data.federation import Federation, Rows
from idiolect.data.partition import by_id
from idiolect.data.preprocessing import Missing, Moments, Preprocessing, as_text, require_column
from idiolect.data.splits import DEFAULT_FRACTIONS, Fractions, TooFew, split_clients
from idiolect.data.targets import TaskChoice, encode_targets
from idiolect.errors import UserError

TABLE_SUFFIXES = (".csv", ".csv.gz", ".parquet")


def from_frame(
    frame: pd.DataFrame,
    *,
    client: str,
    target: str,
    seed: int,
    task: TaskChoice = "auto",
    missing: Missing = "refuse",
    ignore: str | Sequence[str] = (),
    categories: str | Sequence[str] = (),
    scale_target: bool = True,
    fractions: Fractions = DEFAULT_FRACTIONS,
    minimum_rows: int | None = None,
    too_few: TooFew = "refuse",
    shuffle: bool = True,
    class_weights: ClassWeights | None = None,
) -> Federation:
    """A federation from a table whose column `client` says whose row it is.

    All other columns but `target` and `ignore` are features: numbers are standardised, anything else is a
    category with an indicator for each value. Means, scales and categories come from training rows only
    and are kept as `Federation.preprocessing`; what was found and done is in `Federation.notes`.

    missing: "refuse" missing values, or "impute" them by the training mean or the most frequent category
        (rows without a target are then left out).
    categories: columns whose numbers are codes of categories.
    scale_target: standardise the target of a regression, so that losses are in units of its variance;
        `Preprocessing.restore_target` gives the target's own units.
    minimum_rows, too_few, shuffle: see `split_clients`.
    class_weights: see `with_class_weights`.
    """
    frame = frame.rename(columns=str).reset_index(drop=True)
    ignore, categories = _names(ignore), _names(categories)
    features = _feature_columns(frame, client, target, ignore, categories)
    frame, notes = without_missing_targets(frame, target, missing)
    targets = encode_targets(frame[target], task)
    notes.append(targets.note)

    names, rows = by_id(_client_ids(frame[client]))
    split = split_clients(
        rows,
        names,
        seed=seed,
        fractions=fractions,
        minimum_rows=minimum_rows,
        too_few=too_few,
        shuffle=shuffle,
    )
    if dropped := sorted(set(names) - {names[i] for i in split.kept}):
        notes.append(f"clients dropped for too few rows: {_listed(dropped)}")
    names = [names[i] for i in split.kept]

    training = frame.iloc[split.train.index.numpy()]
    mean, deviation = 0.0, 1.0
    if targets.task.is_classification:
        notes += one_class_notes(targets.values, split.train, names)
    elif scale_target:
        mean, deviation = Moments.of(training[target].to_numpy(np.float64)).standard()
        notes.append(
            f"the target {target!r} is standardised: its unit is {deviation:.6g}, its zero {mean:.6g}"
        )
    preprocessing = dataclasses.replace(
        Preprocessing.fit(training, features, categories=categories, missing=missing),
        class_names=targets.class_names,
        target=target,
        target_mean=mean,
        target_scale=deviation,
    )
    notes += _column_notes(frame, preprocessing)
    federation = Federation(
        inputs=preprocessing.transform(frame),
        targets=preprocessing.scale_target(targets.values),
        task=preprocessing.task,
        names=tuple(names),
        train=split.train,
        validation=split.validation,
        test=split.test,
        feature_names=preprocessing.feature_names,
        class_names=targets.class_names,
        notes=tuple(notes),
        preprocessing=preprocessing,
    )
    return with_class_weights(federation, class_weights)


def read_table(path: str | Path) -> pd.DataFrame:
    """A CSV (also gzipped) or Parquet file; what cannot be read is said in one sentence."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"there is no file {str(path)!r}")
    if not _suffix(path):
        raise UserError(f"{str(path)!r} must end in {', '.join(TABLE_SUFFIXES)}")
    try:
        frame = pd.read_parquet(path) if _suffix(path) == ".parquet" else _read_csv(path)
    except pd.errors.EmptyDataError as error:
        raise UserError(f"the file {str(path)!r} is empty") from error
    except (OSError, ValueError, EOFError, pd.errors.ParserWarning) as error:  # pyarrow's are ValueErrors
        raise UserError(f"the file {str(path)!r} cannot be read: {_first_line(error)}") from error
    frame.columns = frame.columns.astype(str).str.strip()
    if repeated := sorted(frame.columns[frame.columns.duplicated()]):
        raise UserError(f"the file {str(path)!r} has the column {repeated[0]!r} twice")
    if frame.empty:
        raise UserError(f"the file {str(path)!r} has no rows")
    return frame


def read_folder(path: str | Path) -> tuple[pd.DataFrame, str]:
    """One table from a folder with a file for each client, and the column that holds the files' names."""
    files = table_files(path)
    if not files:
        raise UserError(f"the folder {str(path)!r} has no files that end in {', '.join(TABLE_SUFFIXES)}")
    frames: dict[str, pd.DataFrame] = {}
    for file in files:
        name = file.name[: -len(_suffix(file))]
        if name in frames:
            raise UserError(f"the folder {str(path)!r} has two files for the client {name!r}; keep one")
        frames[name] = read_table(file)
    first_name, first = next(iter(frames.items()))
    for name, frame in frames.items():
        if different := set(frame.columns) ^ set(first.columns):
            raise UserError(
                f"the files of {first_name!r} and {name!r} differ in columns: {sorted(different)}"
            )
    column = "client"
    while column in first.columns:
        column = f"{column}_"
    joined = pd.concat([frame.assign(**{column: name}) for name, frame in frames.items()], ignore_index=True)
    return joined, column


def table_files(folder: str | Path) -> list[Path]:
    """The CSV and Parquet files of a folder, in the order of their names."""
    return sorted(file for file in Path(folder).iterdir() if file.is_file() and _suffix(file))


def one_class_notes(targets: Tensor, train: Rows, names: Sequence[str]) -> list[str]:
    """Which clients see a single class in training: allowed, but worth knowing."""
    alone = [name for i, name in enumerate(names) if len(targets[train.of(i)].unique()) == 1]
    return [f"clients with one class only in training: {_listed(alone)}"] if alone else []


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


def _read_csv(path: Path) -> pd.DataFrame:
    """A CSV file under its own header: pandas would rename a repeated column and shift ragged ones."""
    header = pd.read_csv(path, header=None, nrows=1, dtype=str).iloc[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        frame = pd.read_csv(path, index_col=False)
    frame.columns = pd.Index(header.where(header.notna(), frame.columns))
    return frame


def _feature_columns(
    frame: pd.DataFrame, client: str, target: str, ignore: Sequence[str], categories: Sequence[str]
) -> list[str]:
    """The columns that are left for features, once all that are named are there."""
    if frame.empty:
        raise UserError("the table has no rows")
    if client == target:
        raise UserError(f"client and target are both {client!r}; they must be two columns")
    roles = [(client, "client column"), (target, "target column")]
    roles += [(name, "column to ignore") for name in ignore]
    roles += [(name, "category column") for name in categories]
    for name, role in roles:
        require_column(frame, name, role)
    features = [name for name in frame.columns if name not in (client, target, *ignore)]
    if not features:
        raise UserError(f"the table has no feature columns besides {client!r}, {target!r} and {list(ignore)}")
    return features


def _client_ids(column: pd.Series) -> np.ndarray:
    if absent := int(column.isna().sum()):
        raise UserError(f"the client column {column.name!r} has {absent} missing values")
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
    if missing == "refuse":
        raise UserError(
            f"the target {target!r} has {int(absent.sum())} missing values; "
            "fill them in, or set missing='impute' to leave these rows out"
        )
    if absent.all():
        raise UserError(f"the target {target!r} has no values")
    kept = frame[~absent].reset_index(drop=True)
    return kept, [f"rows left out because the target {target!r} is missing: {int(absent.sum())}"]


def _column_notes(frame: pd.DataFrame, preprocessing: Preprocessing) -> list[str]:
    notes = []
    for column in preprocessing.columns:
        if column.name.startswith("Unnamed: "):  # pandas' word for a column without a header
            notes.append(f"column {column.name!r} has no name and may be a row number: ignore it if it is")
        if absent := int(frame[column.name].isna().sum()):
            filling = f"{column.mean:.6g}" if column.kind == "number" else repr(column.most_frequent)
            notes.append(f"column {column.name!r}: {absent} missing values replaced by {filling}")
    for name, values in preprocessing.unseen(frame).items():
        notes.append(f"column {name!r}: no training row has {_listed(values)}; such rows get zeros")
    return notes


def _listed(names: Sequence[str], most: int = 8) -> str:
    shown = ", ".join(repr(name) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def _names(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _suffix(path: Path) -> str:
    return next((s for s in TABLE_SUFFIXES if path.name.lower().endswith(s)), "")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
