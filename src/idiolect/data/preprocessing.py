"""From a table's columns to a model's inputs, fitted on training rows and kept with the model."""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from idiolect.core.task import Task
from idiolect.data.hints import place, typed
from idiolect.errors import UserError, did_you_mean

Missing = Literal["refuse", "impute", "indicate"]
MOST_CATEGORIES = 100
FORMAT = "idiolect-preprocessing-1"


@dataclass(frozen=True)
class Column:
    """How one column is turned into numbers.

    number: (value - mean) / scale, a missing value counting as the mean;
    category: one indicator for each category, a missing value counting as the most frequent one and a
    category that no training row has giving zeros.
    With an indicator, a further input is 1 where the value is missing and else 0.
    """

    name: str
    kind: Literal["number", "category"]
    mean: float = 0.0
    scale: float = 1.0
    categories: tuple[str, ...] = ()
    most_frequent: str = ""
    indicator: bool = False

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The inputs that this column becomes."""
        own = (self.name,) if self.kind == "number" else tuple(f"{self.name}={c}" for c in self.categories)
        return (*own, f"{self.name} is missing") if self.indicator else own


@dataclass(frozen=True)
class Preprocessing:
    """What has to be done to a table's rows before a model sees them, and what its outputs mean."""

    columns: tuple[Column, ...]
    missing: Missing = "refuse"
    class_names: tuple[str, ...] = ()
    target: str = ""
    target_mean: float = 0.0  # regression: outputs are (target - mean) / scale
    target_scale: float = 1.0
    missing_values: tuple[str, ...] = ("?",)  # texts that stand for a missing value in the table's files

    @classmethod
    def fit(
        cls,
        training: pd.DataFrame,
        features: Sequence[str],
        *,
        categories: Sequence[str] = (),
        missing: Missing = "refuse",
    ) -> "Preprocessing":
        """Means, scales and categories of the feature columns of the training rows.

        categories: columns whose numbers are codes of categories.
        """
        summaries = (summarise_column(training[name], name in categories) for name in features)
        return cls(tuple(summary.fit(missing) for summary in summaries), missing)

    @property
    def task(self) -> Task:
        """Two classes make a binary task, none a regression."""
        if not self.class_names:
            return Task("regression", 1, unit=self.target_scale)
        return Task("binary", 1) if len(self.class_names) == 2 else Task("multiclass", len(self.class_names))

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of the model's inputs, in order."""
        return tuple(name for column in self.columns for name in column.feature_names)

    def transform(self, frame: pd.DataFrame) -> Tensor:
        """The inputs of a table's rows, float32[rows, inputs]; other columns are ignored."""
        for column in self.columns:
            require_column(frame, column.name)
        blocks = [self._transform_column(frame[column.name], column) for column in self.columns]
        return torch.as_tensor(np.concatenate(blocks, axis=1), dtype=torch.float32)

    def scale_target(self, targets: Tensor) -> Tensor:
        """Regression targets in the units of the model's outputs; classes as they are."""
        return targets if self.class_names else (targets - self.target_mean) / self.target_scale

    def restore_target(self, predictions: Tensor) -> Tensor:
        """Regression outputs in the target's own units, float64."""
        # As tensors: in a program of ONNX plain numbers would be rounded to float32.
        mean, scale = (
            torch.tensor(number, dtype=torch.float64) for number in (self.target_mean, self.target_scale)
        )
        return predictions.to(torch.float64) * scale + mean

    def unseen(self, frame: pd.DataFrame) -> dict[str, list[str]]:
        """For each category column, the values that no training row has."""
        found = {}
        for column in self.columns:
            if column.kind == "category":
                values = set(as_text(frame[column.name].dropna())) - set(column.categories)
                if values:
                    found[column.name] = sorted(values)
        return found

    def to_json(self) -> str:
        """A text from which `from_json` makes an equal object."""
        return json.dumps({"format": FORMAT, **dataclasses.asdict(self)}, indent=1, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> "Preprocessing":
        """The object that `to_json` wrote."""
        try:
            content = json.loads(text)
            if content.pop("format") != FORMAT:
                raise UserError(f"the preprocessing is not in the format {FORMAT}")
            columns = tuple(
                Column(**{**column, "categories": tuple(column["categories"])})
                for column in content["columns"]
            )
            lists = {
                name: tuple(content[name]) for name in ("class_names", "missing_values") if name in content
            }
            return cls(**{**content, **lists, "columns": columns})
        except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
            raise UserError(f"the preprocessing cannot be read: {error!r}") from error

    def _transform_column(self, values: pd.Series, column: Column) -> np.ndarray:
        absent = values.isna().to_numpy()
        if absent.any() and self.missing == "refuse":
            raise UserError(
                f"column {column.name!r} has {absent.sum()} missing values, the first in "
                f"{place(values.isna())}; fill them in, or train with data.missing=impute or "
                "data.missing=indicate (between silos schema.missing)"
            )
        if column.kind == "number":
            numbers = as_numbers(values).fillna(column.mean).to_numpy(np.float64)
            inputs = ((numbers - column.mean) / column.scale)[:, None]
        else:
            filled = np.full(len(values), column.most_frequent, dtype=object)
            filled[~absent] = as_text(values[~absent]).to_numpy(object)
            inputs = (filled[:, None] == np.array(column.categories, dtype=object)).astype(np.float64)
        return np.concatenate([inputs, absent[:, None]], axis=1) if column.indicator else inputs


def require_column(frame: pd.DataFrame, name: str, role: str = "column") -> None:
    """Refuse a name that the table does not have, naming the nearest ones."""
    if name not in frame.columns:
        known = [str(column) for column in frame.columns]
        listed = ", ".join(known[:12]) + (", ..." if len(known) > 12 else "")
        raise UserError(f"there is no {role} {name!r}{did_you_mean(name, known)}; the table has {listed}")


def is_number_column(values: pd.Series) -> bool:
    """Whether a column holds numbers rather than categories (true and false are categories)."""
    return pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)


def as_numbers(values: pd.Series) -> "pd.Series[float]":
    """Numbers or missing values; anything else, and the infinite, is refused."""
    numbers = pd.to_numeric(values, errors="coerce").astype(np.float64)
    broken = numbers.isna() & values.notna()
    if broken.any():
        raise UserError(
            f"column {values.name!r} holds {values[broken].iloc[0]!r}, which is not a number "
            f"(in {place(broken)})"
        )
    infinite = numbers.abs() == np.inf
    if infinite.any():
        raise UserError(
            f"column {values.name!r} is infinite in {place(infinite)}; only finite numbers can be used"
        )
    return numbers


def as_text(values: pd.Series) -> "pd.Series[str]":
    """Categories as text without surrounding spaces; whole floats (1.0) read as integers (1)."""
    if pd.api.types.is_float_dtype(values) and not (values % 1).any():
        values = values.astype(np.int64)
    return values.astype(str).str.strip()


@dataclass(frozen=True)
class Moments:
    """What standardising numbers needs to know of them, also when they lie in several tables."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0  # the sum of squared deviations from the mean

    @classmethod
    def of(cls, values: np.ndarray) -> "Moments":
        """The moments of some numbers."""
        mean = values.mean()
        return cls(len(values), float(mean), float(((values - mean) ** 2).sum()))

    @classmethod
    def joined(cls, parts: Sequence["Moments"]) -> "Moments":
        """The moments of all numbers together."""
        count = sum(part.count for part in parts)
        mean = math.fsum(part.count * part.mean for part in parts) / max(count, 1)
        squares = math.fsum(part.squares + part.count * (part.mean - mean) ** 2 for part in parts)
        return cls(count, mean, squares)

    def standard(self) -> tuple[float, float]:
        """Mean and standard deviation; the deviation of a constant (up to rounding) counts as 1."""
        deviation = math.sqrt(self.squares / max(self.count, 1))
        return self.mean, deviation if deviation > 1e-12 * max(1.0, abs(self.mean)) else 1.0


ColumnKind = Literal["number", "category", "empty"]  # empty: there are no values


@dataclass(frozen=True)
class ColumnSummary:
    """What fitting a column needs to know of it, also when it lies in several tables."""

    name: str
    kind: ColumnKind
    moments: Moments = Moments()  # of a number
    counts: Mapping[str, int] = field(default_factory=dict)  # of a category: how often there is which
    has_missing: bool = False

    @classmethod
    def joined(cls, parts: Sequence["ColumnSummary"]) -> "ColumnSummary":
        """The summary of the same column of several tables, of one kind where it is not empty."""
        kinds: list[ColumnKind] = [part.kind for part in parts if part.kind != "empty"]
        counts: dict[str, int] = {}
        for part in parts:
            for category, count in part.counts.items():
                counts[category] = counts.get(category, 0) + count
        moments = Moments.joined([part.moments for part in parts])
        has_missing = any(part.has_missing for part in parts)
        return cls(parts[0].name, kinds[0] if kinds else "empty", moments, counts, has_missing)

    def fit(self, missing: Missing = "refuse") -> Column:
        """How the column is turned into numbers; one that misses values in training can have an indicator."""
        indicator = missing == "indicate" and self.has_missing
        if self.kind == "empty":
            raise UserError(
                f"column {self.name!r} has no value in any training row; leave it out: {_ignore(self.name)}"
            )
        if self.kind == "number":
            mean, scale = self.moments.standard()
            return Column(self.name, "number", mean=mean, scale=scale, indicator=indicator)
        if len(self.counts) > MOST_CATEGORIES:
            raise UserError(
                f"column {self.name!r} has {len(self.counts)} different values, too many for a category "
                f"(at most {MOST_CATEGORIES}); turn it into numbers or leave it out with {_ignore(self.name)}"
            )
        categories = tuple(sorted(self.counts))
        most_frequent = max(categories, key=lambda category: self.counts[category])
        return Column(
            self.name, "category", categories=categories, most_frequent=most_frequent, indicator=indicator
        )


def summarise_column(values: pd.Series, is_category: bool) -> ColumnSummary:
    """The summary of one column of one table; `is_category` if its numbers are codes of categories."""
    name = str(values.name)
    present = values.dropna()
    has_missing = len(present) < len(values)
    if present.empty:
        return ColumnSummary(name, "empty", has_missing=has_missing)
    if is_number_column(values) and not is_category:
        moments = Moments.of(as_numbers(present).to_numpy())
        return ColumnSummary(name, "number", moments=moments, has_missing=has_missing)
    counts = {str(text): int(count) for text, count in as_text(present).value_counts().items()}
    return ColumnSummary(name, "category", counts=counts, has_missing=has_missing)


def _ignore(name: str) -> str:
    """How a column is left out: in a run, and at a silo."""
    return f"{typed('data.ignore', name)} (at a silo --ignore)"
