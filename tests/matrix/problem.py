"""Small runs of every method, made once, for all commands that need a finished run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from typer.testing import CliRunner

from idiolect.cli import app
from idiolect.core import Method, Neighbours, Store
from idiolect.data.federation import fingerprint
from idiolect.engines.engine import Setting
from idiolect.methods.afl import AFL
from idiolect.runs.folder import RunFolder

SITES = ("east", "north", "south")
NEWCOMERS = ("bay", "cape", "lake", "moor", "reef")
GUEST = "moor"  # the newcomer who is looked at: of each selection, at another place
Guest = dict[str, list[float]]  # what is known of its model: metrics and parameters
MISTAKE = 2

# Where the defaults would need more rounds to come to what is particular to the method.
OPTIONS: dict[str, dict[str, Any]] = {"perm-two-stage": {"global_rounds": 1}, "pfedkm": {"groups": 2}}


def options(kind: type[Method]) -> dict[str, Any]:
    """Hyper-parameters for a small run: the defaults, with little local work."""
    has_steps = "local_steps" in {f.name for f in fields(kind)} and kind is not AFL  # type: ignore[arg-type]
    return ({"local_steps": 2} if has_steps else {}) | OPTIONS.get(kind.name, {})


def table(sites: Sequence[str]) -> pd.DataFrame:
    """Each site's rows follow from its name alone: 12 or more, with a rule of its own."""
    frames = []
    for site in sites:
        number = sorted({*SITES, *NEWCOMERS}).index(site)
        random = np.random.default_rng(number)
        rows = 12 + 3 * number
        x = random.normal(0.3 * number, 1 + 0.1 * number, (rows, 3))
        scores = x @ random.normal(size=(3, 3)) + random.normal(scale=0.1, size=(rows, 3))
        outcome = np.array(["better", "same", "worse"])[scores.argmax(1)]
        frames.append(pd.DataFrame(x, columns=["age", "dose", "pressure"]).assign(site=site, outcome=outcome))
    return pd.concat(frames, ignore_index=True)


def invoke(*arguments: object, mistake: bool = False) -> str:
    """What a command says; of a user's mistake, its one sentence."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == (MISTAKE if mistake else 0), (result.output, repr(result.exception))
    return result.stderr if mistake else result.stdout


def asked_once(find_rate: Callable[[Setting], float]) -> Callable[[Setting], float]:
    """The same rates, none looked for twice: methods share what rows, seed and model give."""
    found: dict[tuple[Any, ...], float] = {}

    def remembered(setting: Setting) -> float:
        objective = setting.objective
        settled = setting.seed, setting.batches.batch_size, objective.weight_decay, objective.dtype
        key = fingerprint(setting.federation), repr(objective.module), objective.clip, *settled
        if key not in found:
            found[key] = find_rate(setting)
        return found[key]

    return remembered


@dataclass
class Runs:
    """Makes runs in a folder, each once."""

    folder: Path
    made: dict[tuple[str, ...], RunFolder] = field(default_factory=dict)
    guests: dict[str, Guest] = field(default_factory=dict)

    def settings(self, kind: type[Method], *extra: str) -> list[str]:
        """What `idiolect run` is given."""
        data = self.folder / "sites.csv"
        if not data.exists():
            table(SITES).to_csv(data, index=False)
        return [
            f"data={data}",
            "data.client=site",
            "data.target=outcome",
            "model=mlp",
            "model.hidden=[4]",
            "rounds=3",
            "batch_size=all",
            "dtype=float64",
            "engine=sequential",
            "evaluation.every=3",
            "evaluation.choose=last",
            "checkpoint.every=2",
            f"method={kind.name}",
            *(f"method.{name}={value}" for name, value in options(kind).items()),
            *extra,
        ]

    def of(self, kind: type[Method], *extra: str) -> RunFolder:
        """The finished run of a method with these settings."""
        key = (kind.name, *extra)
        if key not in self.made:
            out = self.folder / f"run-{len(self.made)}"
            invoke("run", *self.settings(kind, *extra), f"out={out}")
            self.made[key] = RunFolder(out)
        return self.made[key]

    def new_name(self, suffix: str = "") -> Path:
        """A path that is not there yet."""
        return self.folder / f"{len(list(self.folder.iterdir()))}{suffix}"


def outputs(predictor: dict[str, Any] | Neighbours, inputs: np.ndarray) -> np.ndarray:
    """The network with one hidden layer in plain NumPy, and what stored rows add to what it says."""
    params = predictor.params if isinstance(predictor, Neighbours) else predictor
    w = {name: value.detach().numpy() for name, value in params.items()}
    hidden = np.maximum(inputs @ w["hidden.0.weight"].T + w["hidden.0.bias"], 0)
    result: np.ndarray = hidden @ w["output.weight"].T + w["output.bias"]
    return with_votes(predictor.store, hidden, result) if isinstance(predictor, Neighbours) else result


def with_votes(store: Store, hidden: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    """Logarithms of the model's probabilities mixed with those of the nearest stored rows."""
    taken, share = store.taken.numpy(), float(store.share)
    features, values = store.features.numpy()[taken], store.values.numpy()[taken]
    squares = ((hidden[:, None] - features) ** 2).sum(2)
    mixed = np.exp(outputs) / np.exp(outputs).sum(1, keepdims=True)
    for row, distances in enumerate(squares):
        nearest = distances.argsort(kind="stable")[: int(store.asked)]
        similar = np.exp(-distances[nearest] / float(store.scale))
        mixed[row] = (1 - share) * mixed[row] + share * (similar / similar.sum()) @ values[nearest]
    return np.log(mixed)
