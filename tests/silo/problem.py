"""A table that silos share, as one simulation sees it and as each silo does."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from idiolect.core import tree
from idiolect.data.tables import from_frame
from idiolect.methods.catalogue import CATALOGUE as METHODS
from idiolect.runs.config import resolve
from idiolect.runs.setup import build_simulation, place_states
from idiolect.runs.signatures import dump
from idiolect.silo.limits import Limits
from idiolect.silo.requests import Unreachable
from idiolect.silo.serve_settings import ServeSettings, serve_settings
from idiolect.silo.served_run import ServedRun
from idiolect.silo.service import Silo
from idiolect.simulation import EngineName, Simulation

SILOS = ("north", "south", "west")
# Small tables, exact numbers: what silos tell is compared with a simulation.
LENIENT = Limits(batch=1, metric_rows=1, metric_digits=17, values=1)
FIVE_SILOS = (*SILOS, "west-bank", "west-end")  # in the order of their names, as a federation has them


def table(silos: Sequence[str] = SILOS) -> pd.DataFrame:
    """Silos of 20, 29, 38, ... rows, each with a rule of its own."""
    random = np.random.default_rng(4)
    frames = []
    for number, name in enumerate(silos):
        rows = 20 + 9 * number
        x = random.normal(0.4 * number, 1 + 0.2 * number, (rows, 3))
        scores = x @ random.normal(size=(3, 3)) + random.normal(scale=0.1, size=(rows, 3))
        frame = pd.DataFrame(x, columns=["age", "dose", "pressure"])
        frame["ward"] = random.choice(["a", "b"], rows)
        frame["outcome"] = np.array(["better", "same", "worse"])[scores.argmax(1)]
        frames.append(frame.assign(hospital=name))
    return pd.concat(frames, ignore_index=True)


def own_rows(name: str) -> pd.DataFrame:
    """What one silo has."""
    frame = table(FIVE_SILOS)
    return frame[frame.hospital == name].drop(columns="hospital").reset_index(drop=True)


def own_rates(name: str) -> dict[str, Any]:
    """A method's own default rates: left open they would suit the rows, of which a coordinator has none."""
    if not METHODS.knows(name):  # one of a package that is yet to be installed
        return {}
    method = METHODS.find(name)()
    defaults = dump(method)
    return {rate: defaults[rate] for rate in method.suited_rates(1.0, 1) if rate in defaults}


def config(method: Mapping[str, Any], rounds: int = 3, **options: Any) -> dict[str, Any]:
    """Settings that a simulation and a deployment share."""
    return {
        "method": {**own_rates(method["name"]), **method},
        "model": {"name": "mlp", "hidden": [4]},
        "rounds": rounds,
        "seed": 5,
        "batch_size": 4,
        "weight_decay": 0.01,
        "dtype": "float64",
        "evaluation": {"every": 2},
        **options,
    }


def simulate(
    settings: Mapping[str, Any],
    engine: EngineName = "sequential",
    silos: Sequence[str] = SILOS,
    data: str = "silos",
) -> Simulation:
    """The whole table in one process."""
    federation = from_frame(table(silos), client="hospital", target="outcome", seed=5)
    resolved = resolve({**settings, "data": {"name": data}, "engine": {"name": engine}})
    return build_simulation(resolved, federation)


def deployed(
    settings: Mapping[str, Any], folder: Path, silos: Sequence[str] = SILOS, **options: Any
) -> ServeSettings:
    """The same settings for a coordinator; the schema is what the simulation fitted."""
    federation = from_frame(table(silos), client="hospital", target="outcome", seed=5)
    assert federation.preprocessing is not None
    (folder / "schema.json").write_text(federation.preprocessing.to_json())
    return serve_settings({**settings, "silos": list(silos), "schema": "schema.json", **options}, folder)


class Direct:
    """A link without a network: silos in this process, answering at once."""

    def __init__(self, silos: Mapping[str, Silo]) -> None:
        self.silos = dict(silos)

    def ask(self, requests: Mapping[str, bytes], seconds: float) -> Iterator[tuple[str, bytes | Unreachable]]:
        for name, message in requests.items():
            yield name, self.silos[name].answer(message)


def silos_in(folder: Path, **options: Any) -> dict[str, Silo]:
    chosen = {"limits": LENIENT, **options}
    return {name: Silo(name, own_rows(name), folder / name, **chosen) for name in SILOS}


def last_saved(run: ServedRun) -> Simulation:
    """The state of the coordinator's last checkpoint, without the clients, who are elsewhere."""
    simulation = build_simulation(run.settings.config, run.folder.federation())
    place_states(simulation, run.settings.config, run.path)
    run.folder.restore(simulation)
    return simulation


def assert_same(ours: Any, theirs: Any) -> None:
    for a, b in zip(tree.leaves(ours), tree.leaves(theirs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def assert_same_metrics(ours: pd.DataFrame, theirs: pd.DataFrame) -> None:
    keys = ["round", "client", "kind", "part", "metric"]
    a = ours.sort_values(keys).reset_index(drop=True)
    b = theirs.sort_values(keys).reset_index(drop=True)
    pd.testing.assert_frame_equal(a, b, rtol=1e-9, atol=1e-12)
