"""The scaled-down study of EFL: MNIST, 100 clients with m classes each, 10 of them asked in a round.

    python -m idiolect.experiments.efl_study results.csv          # or only some seeds: results.csv 0 1

Softmax regression, 10 local steps on batches of 20, 200 rounds, three seeds; rate and elasticity are not
given in the paper and are not tuned here beyond the values listed. Three questions, one table each:

* compression: which fraction q of the entries is kept, with completed steps uniform on {0, .., 10};
* stragglers: clients of the upper half of the digits complete 3 of 10 steps; weights E / s against FedAvg
  that drops incomplete clients;
* elasticity: λ with terms averaged over clients, completed steps uniform on {0, .., 10}.

Accuracy is the clients' mean on their own test rows. "best" is its maximum over the evaluated rounds, as the
paper reports it; "last" is its mean over the last five evaluations.
"""

import csv
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from idiolect.core.method import Method
from idiolect.core.schedule import Constant
from idiolect.core.tree import Params
from idiolect.data.federation import Federation
from idiolect.data.sources.images import mnist
from idiolect.methods.efl import EFL
from idiolect.methods.fedavg import FedAvg
from idiolect.models import build_model
from idiolect.participation import ClientEntry, Participation
from idiolect.participation.work import UniformWork
from idiolect.simulation import Simulation

ROUNDS, EVERY, CLIENTS, ASKED = 200, 10, 100, 10
SEEDS, CLASSES = (0, 1, 2), (10, 5, 2, 1)
RATE, STEPS, BATCH = Constant(0.05), 10, 20
KEPT = (None, 0.1, 0.3, 0.6)
ELASTICITIES = (0.0, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0)
SLOW_WORK = 0.3


class Run(NamedTuple):
    """One line of the study."""

    question: str
    classes: int
    seed: int
    variant: str


class Result(NamedTuple):
    """What a run gave: accuracies, and bits of all rounds and clients by direction and part."""

    best: float
    last: float
    up_delta: int
    down_delta: int
    fisher: int


def runs(seeds: Sequence[int] = SEEDS) -> Iterator[tuple[Run, Method, Participation]]:
    """All runs of the study; participation by names is completed for each federation."""
    random_work = Participation(count=ASKED, work=UniformWork())
    everybody = Participation(count=ASKED)
    for seed in seeds:
        for classes in CLASSES:
            for keep in KEPT:
                yield Run("compression", classes, seed, f"q={keep}"), _efl(keep=keep), random_work
            yield Run("stragglers", classes, seed, "weights E/s"), _efl(keep=None), everybody
            dropping = FedAvg(learning_rate=RATE, local_steps=STEPS, weighting="samples", incomplete="drop")
            yield Run("stragglers", classes, seed, "drop incomplete"), dropping, everybody
        for elasticity in ELASTICITIES:
            method = _efl(keep=None, elasticity=elasticity, fisher_norm="mean", fisher_rows=32)
            yield Run("elasticity", 1, seed, f"lambda={elasticity:g}"), method, random_work


def _efl(**options: Any) -> EFL:
    return EFL(learning_rate=RATE, local_steps=STEPS, **({"elasticity": 0.0} | options))


def play(run: Run, method: Method, participation: Participation, data: Federation) -> Result:
    """Play one run."""
    if run.question == "stragglers":
        participation = _slow_upper_digits(participation, data)
    simulation = Simulation(
        method,
        build_model("linear", data, seed=run.seed),
        data,
        plan=participation.bind(data.names),
        seed=run.seed,
        batch_size=BATCH,
    )
    accuracies, bits = [], {"up": 0, "down": 0, "fisher": 0}
    for number in range(1, ROUNDS + 1):
        result = simulation.advance()
        for direction, parts in (("up", result.up_parts), ("down", result.down_parts)):
            for part, sizes in parts.items():
                bits["fisher" if part == "fisher" else direction] += int(sizes.sum())
        if number % EVERY == 0:
            accuracies.append(client_mean_accuracy(simulation))
    last = sum(accuracies[-5:]) / 5
    return Result(max(accuracies), last, bits["up"], bits["down"], bits["fisher"])


def _slow_upper_digits(participation: Participation, data: Federation) -> Participation:
    """Clients most of whose training rows show 5 to 9 complete only part of their work."""
    upper = [float((data.targets[data.train.of(k)] >= 5).double().mean()) for k in range(len(data))]
    # With all ten classes at every client the shares hardly differ; the larger half is slow all the same.
    order = sorted(range(len(data)), key=lambda k: upper[k])[len(data) // 2 :]
    return Participation(
        count=participation.count, clients={data.names[k]: ClientEntry(work=SLOW_WORK) for k in order}
    )


def client_mean_accuracy(simulation: Simulation) -> float:
    """The mean over clients of the global model's accuracy on each client's test rows."""
    data = simulation.federation
    model: Params = simulation.predictor(0)["global"]  # type: ignore[assignment]
    objective = simulation.engine.setting.objective
    rows = data.test.index
    correct = data.task.decide(objective.predict(model, data.inputs[rows])) == data.targets[rows]
    owner = torch.repeat_interleave(torch.arange(len(data)), data.test.sizes)
    hits = torch.zeros(len(data)).index_add_(0, owner, correct.float())
    return float((hits / data.test.sizes.clamp(min=1)).mean())


def main(path: Path, seeds: Sequence[int]) -> None:
    """Play all runs, one line of the file for each as it ends."""
    torch.set_num_threads(1)
    federations: dict[tuple[int, int], Federation] = {}
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow((*Run._fields, *Result._fields))
        for run, method, participation in runs(seeds):
            key = (run.classes, run.seed)
            if key not in federations:
                federations = {key: mnist(
                    seed=run.seed, clients=CLIENTS, partition="classes", per_client=run.classes,
                    fractions=(0.8, 0.1, 0.1),
                )}  # fmt: skip
            writer.writerow((*run, *play(run, method, participation, federations[key])))
            stream.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(seed) for seed in sys.argv[2:]] or SEEDS)
