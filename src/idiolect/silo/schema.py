"""The agreement on what a row is: columns, their scaling, the target and its classes, and the split.

It comes from the coordinator's configuration and is the same for all silos, so that one model fits all. Where
the configuration names the target only, it is a `Search`, and the silos' summaries give the rest.
"""

import dataclasses
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from idiolect.core.task import Task
from idiolect.data.class_weights import BALANCED, ClassWeights, weights_by_name
from idiolect.data.federation import Federation, Rows
from idiolect.data.preprocessing import Column, Missing, Preprocessing, as_numbers, as_text
from idiolect.data.splits import DEFAULT_FRACTIONS, Fractions, Split, check_fractions, split_clients
from idiolect.data.tables import without_missing_targets
from idiolect.data.targets import TaskChoice
from idiolect.engines.local_view import PartialRows
from idiolect.errors import UserError
from idiolect.silo.table_problems import Problem, refuse_problems

_GIVEN = (
    "columns",
    "target",
    "classes",
    "class_weights",
    "target_mean",
    "target_scale",
    "missing",
    "fractions",
)
_SEARCHED = ("target", "task", "classes", "class_weights", "categories", "missing", "fractions")


@dataclass(frozen=True)
class Search:
    """What is known of a schema that is to be found from the silos' summaries."""

    target: str
    task: TaskChoice = "auto"
    classes: tuple[str, ...] = ()  # empty: to be found
    categories: tuple[str, ...] = ()  # columns whose numbers are codes of categories
    missing: Missing = "refuse"
    fractions: Fractions = DEFAULT_FRACTIONS
    split_seed: int = 0
    class_weights: ClassWeights | None = None

    def plain(self) -> dict[str, Any]:
        """As plain data."""
        return {"search": dataclasses.asdict(self)}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Search":
        """The inverse of `plain`; what cannot be one is refused."""
        try:
            search = _SEARCH_READER.validate_python(plain.get("search"))
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise UserError(f"the search for a schema cannot be read: {place}: {first['msg']}") from None
        check_fractions(search.fractions)
        return search


_SEARCH_READER = TypeAdapter(Search)


@dataclass(frozen=True)
class Schema:
    """How each silo turns its table into inputs and targets, and which rows it trains on."""

    preprocessing: Preprocessing
    fractions: Fractions = DEFAULT_FRACTIONS
    split_seed: int = 0
    class_weights: tuple[float, ...] = ()  # of the training loss; empty: all one

    def __post_init__(self) -> None:
        rows = self.preprocessing
        for column in rows.columns:
            _require_scaling(f"schema.columns.{column.name}.", column.mean, column.scale)
        _require_scaling("schema.target_", rows.target_mean, rows.target_scale)

    @property
    def task(self) -> Task:
        """What is predicted."""
        return dataclasses.replace(self.preprocessing.task, class_weights=self.class_weights)

    def plain(self) -> dict[str, Any]:
        """As plain data."""
        rows = json.loads(self.preprocessing.to_json())
        return {
            "rows": rows,
            "fractions": list(self.fractions),
            "split_seed": self.split_seed,
            "class_weights": list(self.class_weights),
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Schema":
        """The inverse of `plain`; what cannot be one is refused."""
        try:
            first, second, third = plain["fractions"]
            fractions = (float(first), float(second), float(third))
            rows = Preprocessing.from_json(json.dumps(plain["rows"]))
            weights = tuple(float(weight) for weight in plain.get("class_weights", ()))
            seed = int(plain["split_seed"])
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise UserError(f"the schema of the run cannot be read: {error!r}") from None
        check_fractions(fractions)
        if weights and (len(weights) != len(rows.class_names) or not all(0 < w < math.inf for w in weights)):
            raise UserError(f"class_weights={list(weights)} do not fit the agreed classes")
        return cls(rows, fractions, seed, weights)

    def read(self, table: pd.DataFrame, name: str, number: int, clients: int) -> Federation:
        """One silo's table as a federation in which only that silo has rows."""
        refuse_problems(self._problems(table))
        table, _ = without_missing_targets(table, self.preprocessing.target, self.preprocessing.missing)
        targets = self._targets(table[self.preprocessing.target])
        split = split_rows(len(table), name, self.fractions, self.split_seed)
        names = tuple(name if client == number else f"silo {client}" for client in range(clients))

        def alone(rows: Rows) -> PartialRows:
            sizes = torch.zeros(clients, dtype=torch.int64)
            sizes[number] = len(rows.index)
            return PartialRows(rows.index, torch.zeros(clients + 1, dtype=torch.int64), sizes)

        return Federation(
            inputs=self.preprocessing.transform(table),
            targets=targets,
            task=self.task,
            names=names,
            train=alone(split.train),
            validation=alone(split.validation),
            test=alone(split.test),
            feature_names=self.preprocessing.feature_names,
            class_names=self.preprocessing.class_names,
            preprocessing=self.preprocessing,
        )

    def _problems(self, table: pd.DataFrame) -> Iterator[Problem]:
        """In what a table differs from the agreement, spelled out."""
        rows = self.preprocessing
        agreed = [column.name for column in rows.columns] + [rows.target]
        found = [str(column) for column in table.columns]
        if missing := sorted(set(agreed) - set(found)):
            told = f"the table's columns differ from the agreed ones, missing: {', '.join(missing)}"
            yield Problem(told, told)
        if extra := sorted(set(found) - set(agreed)):
            told = f"the table's columns differ from the agreed ones, not agreed: {', '.join(extra)}"
            yield Problem(told, told, ",".join(extra))
        for column in rows.columns:
            if column.name in table.columns:
                yield from _column_problems(table[column.name], column, rows.missing)
        if rows.target in table.columns:
            yield from self._target_problems(table[rows.target])

    def _target_problems(self, values: pd.Series) -> Iterator[Problem]:
        name, classes = self.preprocessing.target, self.preprocessing.class_names
        present = values.dropna()
        if present.empty:
            yield Problem(text := f"the target {name!r} has no values", text)
        elif len(present) < len(values) and self.preprocessing.missing == "refuse":
            text = f"the target {name!r} has {len(values) - len(present)} missing values"
            yield Problem(text, text, impute=True)
        if not classes:
            yield from _number_problems(present, f"the target {name!r}")
        elif unknown := sorted(set(as_text(present)) - set(classes)):
            agreed = ", ".join(classes)
            yield Problem(
                f"the target {name!r} holds {unknown[0]!r}; the agreed classes are {agreed}",
                f"the target {name!r} holds what is none of the agreed classes {agreed}",
            )

    def _targets(self, column: pd.Series) -> Tensor:
        classes = self.preprocessing.class_names
        if not classes:
            numbers = torch.tensor(as_numbers(column).to_numpy(np.float32))[:, None]
            return (numbers - self.preprocessing.target_mean) / self.preprocessing.target_scale
        return torch.tensor([classes.index(text) for text in as_text(column)], dtype=torch.int64)


def _column_problems(values: pd.Series, column: Column, missing: Missing) -> Iterator[Problem]:
    if missing == "refuse" and (absent := int(values.isna().sum())):
        text = f"column {column.name!r} has {absent} missing values"
        yield Problem(text, text, impute=True)
    if column.kind == "number":
        yield from _number_problems(values, f"column {column.name!r}")


def _number_problems(values: pd.Series, what: str) -> Iterator[Problem]:
    try:
        as_numbers(values)
    except UserError as error:
        yield Problem(str(error), f"{what} holds what is not a finite number")


def split_rows(count: int, name: str, fractions: Fractions, seed: int) -> Split:
    """Which of a silo's rows are for training, validation and test, as in a simulation of all silos."""
    return split_clients([torch.arange(count)], [name], seed=seed, fractions=fractions)


def schema_from_plain(plain: Mapping[str, Any]) -> Schema | Search:
    """A schema, or what is known of one."""
    return Search.from_plain(plain) if "search" in plain else Schema.from_plain(plain)


def read_schema(section: Any, folder: Path, split_seed: int) -> Schema | Search:
    """The schema of a configuration: a section, or the path of a JSON file relative to it."""
    if isinstance(section, str):
        path = folder / section
        if not path.is_file():
            raise UserError(f"schema={section} is not a file; write columns, target and classes, or a path")
        return Schema(Preprocessing.from_json(path.read_text(encoding="utf-8")), split_seed=split_seed)
    if not isinstance(section, Mapping) or "target" not in section:
        raise UserError(
            "schema must have columns and target (and classes), or target only if the columns are to be "
            "found from the silos' summaries, or be the path of a JSON file"
        )
    known = _GIVEN if "columns" in section else _SEARCHED
    if odd := sorted(str(key) for key in section.keys() - set(known)):
        raise UserError(f"schema.{odd[0]} is not a setting; the settings there are {', '.join(known)}")
    classes = tuple(str(name) for name in _entries(section, "classes"))
    if section.get("class_weights") == BALANCED:
        raise UserError(
            "schema.class_weights=balanced is not possible: silos do not tell how often each class occurs; "
            "give the weights, as {no: 1, yes: 5}"
        )
    missing = _choice(section, "missing", get_args(Missing))
    fractions = tuple(_entries(section, "fractions") or DEFAULT_FRACTIONS)
    check_fractions(fractions)
    if "columns" not in section:
        return Search(
            str(section["target"]),
            _choice(section, "task", get_args(TaskChoice)),
            classes,
            tuple(str(name) for name in _entries(section, "categories")),
            missing,
            fractions,
            split_seed,
            section.get("class_weights"),
        )
    columns = section["columns"]
    if not isinstance(columns, Mapping) or not columns:
        raise UserError(
            f"schema.columns={columns} is not possible: give one or more, as age: {{mean: 54, scale: 12}}"
        )
    rows = Preprocessing(
        tuple(_column(str(name), options or {}, missing) for name, options in columns.items()),
        missing,
        classes,
        str(section["target"]),
        target_mean=section.get("target_mean", 0.0),
        target_scale=section.get("target_scale", 1.0),
    )
    return Schema(rows, fractions, split_seed, agreed_weights(section.get("class_weights"), classes))


def agreed_weights(chosen: ClassWeights | None, classes: Sequence[str]) -> tuple[float, ...]:
    """The weights of classes that a schema's section asks for."""
    if chosen is None:
        return ()
    if not classes:
        raise UserError(f"schema.class_weights={chosen} is not possible: a regression has no classes")
    return weights_by_name(chosen, classes)


def _entries(section: Mapping[str, Any], key: str, where: str = "schema.") -> Sequence[Any]:
    """A list of the section; empty if it is not there."""
    value = section.get(key, ())
    if not isinstance(value, list | tuple):
        raise UserError(f"{where}{key}={value} is not possible: it must be a list, as [a, b]")
    return value


def _choice(section: Mapping[str, Any], key: str, choices: Sequence[str]) -> Any:
    """One of some words; the first is the default."""
    value = section.get(key, choices[0])
    if value not in choices:
        raise UserError(f"schema.{key}={value} is not possible: it is one of {', '.join(choices)}")
    return value


def _column(name: str, options: Any, missing: Missing) -> Column:
    if not isinstance(options, Mapping) or odd_options(options):
        raise UserError(
            f"schema.columns.{name}={options} is not possible: give {{mean: 0, scale: 1}} for a number or "
            "{categories: [a, b]} for a category"
        )
    indicator = missing == "indicate"  # nobody has looked which columns miss values
    if "categories" in options:
        categories = tuple(
            str(category) for category in _entries(options, "categories", f"schema.columns.{name}.")
        )
        if len(set(categories)) < max(len(categories), 1):
            raise UserError(
                f"schema.columns.{name}.categories={list(categories)} is not possible: give one or more "
                "different ones"
            )
        return Column(
            name, "category", categories=categories, most_frequent=categories[0], indicator=indicator
        )
    mean, scale = options.get("mean", 0.0), options.get("scale", 1.0)
    return Column(name, "number", mean=mean, scale=scale, indicator=indicator)


def _require_scaling(where: str, mean: Any, scale: Any) -> None:
    """Refuse what numbers cannot be shifted and divided by, whoever wrote it."""
    if not _is_finite(mean):
        raise UserError(f"{where}mean={mean} is not possible: it must be a number")
    if not _is_finite(scale) or scale <= 0:
        raise UserError(f"{where}scale={scale} is not possible: it must be a number above 0")


def _is_finite(value: Any) -> bool:
    """Whether it is a number that a float can hold."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def odd_options(options: Mapping[str, Any]) -> set[str]:
    """Options of a column that there are none of."""
    return set(options) - ({"categories"} if "categories" in options else {"mean", "scale"})
