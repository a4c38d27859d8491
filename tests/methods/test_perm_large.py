"""PERM with 10,000 clients on one machine: gradients, weights and visits, in a process of its own."""

import json
import subprocess
import sys
from typing import Any

import pytest

# Clients of 20 groups, each group with a linear rule of its own; then the weights of the first epoch and some
# rounds of visits, an evaluation and a checkpoint. Peak memory is that of the whole process.
SCRIPT = """
import json, resource, sys, tempfile, time
from pathlib import Path
import torch
from idiolect import method
from idiolect.core.task import Task
from idiolect.data.federation import Federation
from idiolect.data.splits import split_clients
from idiolect.evaluation.metrics import evaluate
from idiolect.models import build_model
from idiolect.participation import Participation
from idiolect.runs.checkpoint import load_checkpoint, newest_checkpoint, save_checkpoint
from idiolect.simulation import Simulation

torch.set_num_threads(1)
name, clients, rounds, rate = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
rows, features, groups, before = 100, 20, 20, 5
draw = torch.Generator().manual_seed(0)
group = torch.randint(groups, (clients,), generator=draw)
rules = torch.randn(groups, features, generator=draw)
inputs = torch.randn(clients, rows, features, generator=draw)
targets = (torch.einsum("crf,cf->cr", inputs, rules[group]) > 0).long()
names = tuple(str(client) for client in range(clients))
split = split_clients(list(torch.arange(clients * rows).split(rows)), names, seed=0)
data = Federation(
    inputs.flatten(0, 1), targets.flatten(), Task("binary", 1), names, *split[:3], groups=group
)
first = {"perm": "warmup_rounds", "perm-two-stage": "global_rounds"}[name]
simulation = Simulation(
    method(name, local_steps=10, **{first: before}),
    build_model("linear", data, bias=False),
    data,
    plan=Participation(rate=rate).bind(names),
    batch_size=10,
)


def seconds(what):
    start = time.perf_counter()
    what()
    return time.perf_counter() - start


seconds_before = seconds(lambda: simulation.play(before))
seconds_weights = seconds(simulation.advance)
mixing = simulation.server.mixing
model, helper = mixing.places // clients, mixing.places % clients
inside = group[model] == group[helper]
sums = torch.zeros(clients, dtype=torch.float64).index_add(0, model, mixing.weights.double())
seconds_visits = seconds(lambda: simulation.play(rounds - 1))
tables = []
seconds_evaluation = seconds(lambda: tables.append(evaluate(simulation)))
with tempfile.TemporaryDirectory() as folder:
    seconds_saving = seconds(lambda: save_checkpoint(simulation, Path(folder)))
    load_checkpoint(simulation, newest_checkpoint(Path(folder)))
table = tables[0]
accuracy = table[(table.metric == "accuracy") & (table.part == "test")].groupby("kind")["value"].mean()
print(json.dumps({
    "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    "weights": len(mixing.places),
    "inside": float(mixing.weights[inside].sum() / mixing.weights.sum()),
    "rows_with_weights": int((sums > 0).sum()),
    "largest_deviation_from_one": float((sums[sums > 0] - 1).abs().max()),
    "accuracy": accuracy.to_dict(),
    "seconds": {
        "before": seconds_before, "weights": seconds_weights, "visits": seconds_visits,
        "evaluation": seconds_evaluation, "saving": seconds_saving,
    },
}))
"""


def train(name: str, clients: int, rounds: int, rate: float = 1.0) -> dict[str, Any]:
    """What the script found."""
    command = [sys.executable, "-c", SCRIPT, name, str(clients), str(rounds), str(rate)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("name", "rate"), [("perm", 1.0), ("perm", 0.2), ("perm-two-stage", 1.0)])
def test_ten_thousand_clients_learn_from_their_group_in_less_than_two_gigabytes(name, rate):
    clients = 10_000
    found = train(name, clients, rounds=300, rate=rate)
    assert found["megabytes"] < 2000
    assert found["inside"] > 0.99
    heard = 1 - (1 - rate) ** 6  # the part of the clients that is asked in one of the first six rounds
    assert found["rows_with_weights"] == pytest.approx(clients * heard, rel=0.02)
    assert found["largest_deviation_from_one"] < 1e-4
    assert found["accuracy"]["personal"] > found["accuracy"]["global"]
