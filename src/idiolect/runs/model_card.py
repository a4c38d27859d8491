"""What one has to know of a model before one uses it: a card that goes with every exported model."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

from idiolect.core.inputs import take_rows
from idiolect.core.objective import Batch
from idiolect.data.preprocessing import Preprocessing
from idiolect.evaluation.intervals import RESAMPLES, Interval, interval_of, interval_of_mean
from idiolect.evaluation.metrics import PARTS, rows_of
from idiolect.runs.config import RunConfig
from idiolect.runs.folder import RunFolder
from idiolect.runs.personal_model import PersonalModel
from idiolect.runs.provenance import versions
from idiolect.simulation import Simulation

FORMAT = "idiolect-card-1"
Lines = list[str]


@dataclass(frozen=True)
class Measured:
    """A metric of the model; of everybody's model it is the mean over clients."""

    part: str
    metric: str
    value: float
    interval: Interval | None  # of 95 %
    rows: int


@dataclass(frozen=True)
class Sent:
    """What crossed between this client (or all of them) and the server, by the messages' named parts."""

    direction: str  # up, down, or brief: sent to predict with
    part: str
    messages: int
    bits: int


@dataclass(frozen=True, kw_only=True)
class ModelCard:
    """What is told of a model: whose it is, what it takes and gives, how good it is, how it was made."""

    client: str | None  # None: everybody's
    kind: str
    round: int
    inputs: list[dict[str, Any]]  # the table's columns, in the order in which a .pt2 takes them
    missing: str | None  # what is done with missing values of a table
    target: str
    task: str
    classes: list[str]
    settings: dict[str, Any]
    data: str
    data_sha256: str | None = None
    clients: int | None = None
    rows: dict[str, int] | None = None  # of the client (or of all), in each part
    metrics: list[Measured] | None = None
    shared: list[Sent] | None = None
    versions: dict[str, str] = dataclasses.field(default_factory=versions)

    def plain(self) -> dict[str, Any]:
        """As plain data."""
        return {"format": FORMAT, **dataclasses.asdict(self)}

    def markdown(self) -> str:
        """As a page for people."""
        whose = "everybody's model" if self.client is None else f"model of client {self.client}"
        blocks = [
            [f"# {whose[0].upper()}{whose[1:]}"],
            [self._what_it_is()],
            ["## Use and limits", "", self._use_and_limits()],
            ["## What it takes and gives", "", *self._inputs(), "", *self._answers()],
            ["## How good it is", "", *self._metrics()],
            ["## Data", "", *self._data()],
            ["## Training", "", *_table(["setting", "value"], _flat(self.settings))],
            ["## What was shared", "", *self._shared()],
            ["## Versions", "", *_table(["package", "version"], self.versions.items())],
        ]
        return "\n\n".join("\n".join(block) for block in blocks) + "\n"

    def _what_it_is(self) -> str:
        method = self.settings["method"]["name"]
        return (
            f"The {self.kind} model of {method} after round {self.round} of {self.settings['rounds']}, "
            f"seed {self.settings['seed']}, trained by personalized federated learning with Idiolect."
        )

    def _use_and_limits(self) -> str:
        of_whom = "the clients that trained it" if self.client is None else self.client
        meant = f"It predicts {self.target or 'the target'} for rows like those of {of_whom}"
        if self.client is not None:
            meant += "; for others' rows nothing is known of it"
        told = [meant]
        if self.rows is not None:
            own = "all clients" if self.client is None else "this client"
            told.append(
                f"Of {own} {self.rows['train']} rows trained it, {self.rows['validation']} were for "
                f"validation and {self.rows['test']} for testing, so mind the intervals below"
            )
        told.append("Categories that no training row has count for nothing" if self.inputs else "")
        told.append("Rows unlike those of training get an answer all the same")
        return ". ".join(sentence for sentence in told if sentence) + "."

    def _inputs(self) -> Lines:
        if not self.inputs:
            return ["Tensors of the shape that it was trained on, which was no table."]
        rows = [(each["column"], each["kind"], ", ".join(each.get("categories", ()))) for each in self.inputs]
        if self.missing == "refuse":
            missing = "A row with a missing value gets no answer."
        else:
            missing = "A missing number counts as the mean, a missing category as the most frequent one."
        return [*_table(["column", "kind", "categories"], rows), "", missing]

    def _answers(self) -> Lines:
        if self.classes:
            return [f"It gives one of the classes {', '.join(self.classes)}, and their probabilities."]
        if self.task == "regression":
            return ["It gives numbers, in the target's own units."]
        return ["It gives a class by its number, and the classes' probabilities."]

    def _metrics(self) -> Lines:
        if not self.metrics:
            return ["No metrics are kept where this model was exported."]
        rows = [
            (m.part, m.metric, _number(m.value), _interval(m.interval), str(m.rows)) for m in self.metrics
        ]
        mean = "Values are means over clients. " if self.client is None else ""
        return [
            *_table(["part", "metric", "value", "95 % interval", "rows"], rows),
            "",
            f"{mean}Intervals are Wilson's for a client's accuracy, and of {RESAMPLES} resamples otherwise.",
        ]

    def _data(self) -> Lines:
        facts = [("data set", self.data)]
        facts += [] if self.clients is None else [("clients", str(self.clients))]
        facts += [(f"{part} rows", str(count)) for part, count in (self.rows or {}).items()]
        facts += [("target", f"{self.target} ({self.task})" if self.target else self.task)]
        facts += [] if self.data_sha256 is None else [("sha256", self.data_sha256)]
        return _table(["", ""], facts)

    def _shared(self) -> Lines:
        codec = self.settings["codec"]
        used = [f"{way}: {codec[way]}" for way in ("up", "down") if codec.get(way)]
        told = f"Codecs that were set: {', '.join(used) or 'none'}."
        if self.shared is None:
            return ["What crossed is not kept where this model was exported.", "", told]
        told += " These are all messages of the method."
        whom = "the clients" if self.client is None else "this client"
        ways = {"up": f"from {whom}", "down": f"to {whom}", "brief": f"to {whom}, to predict with"}
        rows = [(ways[s.direction], s.part, str(s.messages), str(s.bits)) for s in self.shared]
        return [*_table(["direction", "part", "messages", "bits"], rows), "", told]


def describe_inputs(preprocessing: Preprocessing | None) -> list[dict[str, Any]]:
    """The columns of a table that a model takes, in order; none where it was not trained on a table."""
    return [
        {"column": column.name, "kind": column.kind}
        | ({"categories": list(column.categories)} if column.kind == "category" else {})
        for column in (preprocessing.columns if preprocessing else ())
    ]


def bare_card(model: PersonalModel, config: RunConfig, client: str | None, kind: str, at: int) -> ModelCard:
    """What is known of a model wherever it is exported."""
    fitted = model.preprocessing
    settings = config.plain()
    kept = ("model", "rounds", "seed", "batch_size", "weight_decay", "dtype", "participation", "codec")
    return ModelCard(
        client=client,
        kind=kind,
        round=at,
        inputs=describe_inputs(fitted),
        missing=fitted.missing if fitted else None,
        target=fitted.target if fitted else "",
        task=model.task.kind,
        classes=list(model.class_names),
        settings={
            "method": settings["method"] | {"name": config.method_name},
            **{name: settings[name] for name in kept},
        },
        data=config.data_name,
    )


def card_of(
    simulation: Simulation,
    config: RunConfig,
    client: str | None,
    kind: str,
    model: PersonalModel,
    run: RunFolder | None,
) -> ModelCard:
    """The card of a model of a simulation; `run` is None for those who came after it."""
    federation = simulation.federation
    place = None if client is None else federation.names.index(client)
    parts = {"train": federation.train, "validation": federation.validation, "test": federation.test}
    rows = {
        part: int(each.sizes.sum() if place is None else each.sizes[place]) for part, each in parts.items()
    }
    if run is not None and (client is None or config.at_silos):
        metrics = _told(run.metrics(), client, kind, simulation.round, rows)
    else:
        assert place is not None
        metrics = _measured(simulation, config, place, model)
    return dataclasses.replace(
        bare_card(model, config, client, kind, simulation.round),
        data_sha256=None if run is None else run.facts()["data_sha256"],
        clients=len(federation),
        rows=rows,
        metrics=metrics,
        shared=None if run is None else _sent(run.traffic(), client),
        versions=versions() if run is None else run.facts()["versions"],
    )


def _measured(simulation: Simulation, config: RunConfig, place: int, model: PersonalModel) -> list[Measured]:
    """All metrics of a client's model on its own rows."""
    federation, found = simulation.federation, []
    for part in PARTS:
        rows = rows_of(federation, part).of(place)
        if not len(rows):
            continue
        weights = torch.full((len(rows),), 1 / len(rows), dtype=model.dtype)
        batch = Batch(take_rows(federation.inputs, rows), federation.targets[rows], weights)
        outputs = model.outputs(batch.inputs)
        for metric in config.evaluation.measures(federation).metrics:
            value = float(metric(model.task, outputs, batch))
            interval = interval_of(metric, model.task, outputs, batch)
            found.append(Measured(part, metric.name, value, interval, len(rows)))
    return found


def _told(
    metrics: pd.DataFrame, client: str | None, kind: str, at: int, rows: dict[str, int]
) -> list[Measured]:
    """What a run has written down of one client, or of all in the mean."""
    chosen = metrics[(metrics["round"] == at) & (metrics.kind == kind) & metrics.part.isin(PARTS)]
    if client is not None:
        chosen = chosen[chosen.client == client]
    found = []
    for (part, metric), values in chosen.groupby(["part", "metric"], sort=False)["value"]:
        numbers = values.to_numpy(np.float64)
        interval = interval_of_mean(numbers) if client is None else None
        found.append(Measured(str(part), str(metric), float(values.mean()), interval, rows[str(part)]))
    return found


def _sent(traffic: pd.DataFrame, client: str | None) -> list[Sent]:
    if client is not None:
        traffic = traffic[traffic.client == client]
    return [
        Sent(str(direction), str(part), len(bits), int(bits.sum()))
        for (direction, part), bits in traffic.groupby(["direction", "part"])["bits"]
    ]


def _flat(settings: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    found = []
    for name, value in settings.items():
        if isinstance(value, dict):
            found += _flat(value, f"{prefix}{name}.")
        elif value is not None:
            found.append((prefix + name, str(value)))
    return found


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.4g}"


def _interval(interval: Interval | None) -> str:
    return "–" if interval is None else f"{interval[0]:.4g} to {interval[1]:.4g}"


def _table(head: Sequence[str], rows: Any) -> Lines:
    """A table of Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines]
