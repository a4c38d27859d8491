"""10,000 clients with a personal model of 200,000 parameters each, 8 GB of state, in under 2 GB of memory."""

import subprocess
import sys
from pathlib import Path

import pytest

# Everybody gets a state on disk, then 100 clients are asked in each round. The peak is of a process alone.
SCRIPT = """
import resource, sys
from pathlib import Path
import torch
from idiolect.core.task import Task
from idiolect.data.federation import Federation, Rows
from idiolect.methods.local import Local
from idiolect.models import build_model
from idiolect.participation.sampling import Uniform
from idiolect.simulation import Simulation
from idiolect.store.disk import DiskStore

clients, rounds = int(sys.argv[2]), int(sys.argv[3])
inputs, targets = torch.randn(2 * clients, 784), torch.randint(10, (2 * clients,))
rows = Rows.of_clients(list(torch.arange(2 * clients).split(2)))
names = tuple(str(client) for client in range(clients))
data = Federation(inputs, targets, Task("multiclass", 10), names, rows, rows, rows)
store = DiskStore(clients, Path(sys.argv[1]))
model = build_model("mlp", data, hidden=(200, 210))
assert sum(p.numel() for p in model.parameters()) >= 200_000
simulation = Simulation(Local(local_steps=1), model, data, plan=Uniform(count=100), store=store)
ids = torch.arange(clients)
for block in ids.split(100):  # everybody has a state of its own on disk before the rounds begin
    store.put(block, simulation.engine.setting.states(block))
simulation.play(rounds)
assert bool(store.known(ids).all())
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, store.path.stat().st_size // 10**6)
"""


def peak_and_file(folder: Path, clients: int, rounds: int) -> tuple[int, int]:
    """The peak memory in MB and the size of the file in MB."""
    command = [sys.executable, "-c", SCRIPT, str(folder), str(clients), str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    megabytes, size = done.stdout.split()
    return int(megabytes), int(size)


@pytest.mark.slow
def test_eight_gigabytes_of_states_in_two_of_memory(tmp_path: Path) -> None:
    try:
        peak, size = peak_and_file(tmp_path, clients=10_000, rounds=5)
    finally:
        for file in tmp_path.iterdir():
            file.unlink()
    assert size >= 8_000
    assert peak < 2_000
