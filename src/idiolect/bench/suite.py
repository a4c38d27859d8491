"""The benchmark: FedAvg against a plain loop on models of every kind; with `full`, everything else too."""

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from pydantic import ValidationError
from torch.utils.flop_counter import FlopCounterMode

from idiolect import models
from idiolect.bench.measurement import PeakMemory, interleaved_seconds, ratio
from idiolect.bench.plain_loop import PlainLoop
from idiolect.bench.subjects import (
    BATCH_SIZE,
    ModelFactory,
    Subject,
    noise,
    small_cnn,
    subjects,
    uneven_steps,
)
from idiolect.core.device import CPU, find_device
from idiolect.core.exchange import Epochs, LocalWork
from idiolect.core.method import Method
from idiolect.core.objective import Batch, Objective
from idiolect.core.tree import Params
from idiolect.data.federation import Federation
from idiolect.engines.compiler.compiler import Compiler
from idiolect.engines.sequential import Sequential
from idiolect.methods.apfl import APFL
from idiolect.methods.catalogue import METHODS
from idiolect.methods.fedavg import FedAvg
from idiolect.simulation import Simulation

RATE = 0.1  # the default of FedAvg
ROUNDS_OF_A_RUN = 50


def benchmark(
    *,
    full: bool = False,
    clients: int = 100,
    local_steps: int = 20,
    repeats: int = 5,
    scaling: tuple[int, ...] = (10, 100, 1000),
    device: str = "cpu",
) -> dict[str, Any]:
    """Measure in one run. Speed-ups and costs are ratios of times on this machine, now.

    device: where both sides of a speed-up compute; what `full` adds is measured on the CPU.
    """
    where = find_device(device)
    measured = subjects(clients, local_steps)
    seconds = {
        name: speed_up(federation, model, steps, repeats, where)
        for name, (model, federation, steps) in measured.items()
    }
    flat = measured["mlp"].federation
    return {
        **{f"fedavg_{name}": row["speed_up"] for name, row in seconds.items()},
        "apfl_mlp_over_fedavg": apfl_cost(flat, local_steps, repeats),
        "seconds": seconds,
        "compiler": {name: compiler_price(measured[name]) for name in ("linear", "mlp", "transformer")},
        **(everything_else(flat, local_steps, repeats, scaling) if full else {}),
        "setting": {
            "clients": clients,
            "local_steps": local_steps,
            "batch_size": BATCH_SIZE,
            "threads": torch.get_num_threads(),
            "device": str(where),
            "torch": torch.__version__,
        },
    }


def everything_else(
    flat: Federation, local_steps: int, repeats: int, scaling: tuple[int, ...]
) -> dict[str, Any]:
    """Clients of different sizes, many clients, and what every method costs: half an hour."""
    clients = len(flat)
    uneven = noise((784,), [steps * BATCH_SIZE for steps in uneven_steps(clients, local_steps)])
    few = flat.subset(range(min(20, clients)))
    return {
        "uneven_clients": {
            name: speed_up(uneven, model, Epochs(1), repeats)
            for name, model in (("linear", models.linear), ("mlp", models.mlp))
        },
        "scaling": [scale(count, local_steps) for count in scaling],
        "method_costs": method_costs(few, models.mlp, local_steps, repeats),
        "method_costs_cnn": cnn_costs(min(5, clients), min(10, local_steps), repeats),
        "costs_of_little_work": costs_of_little_work(few, local_steps, repeats),
    }


def speed_up(
    federation: Federation, model: ModelFactory, work: LocalWork, repeats: int, device: torch.device = CPU
) -> dict[str, Any]:
    """FedAvg against the plain loop: seconds of a round of each, how many times faster it is, and its way."""
    ours = simulate(FedAvg(local_steps=work), model, federation, device)
    steps = ours.engine.setting.batches.steps(work, torch.arange(len(federation))).tolist()
    plain = PlainLoop(
        model(federation), federation, batch_size=BATCH_SIZE, local_steps=steps, rate=RATE, device=device
    )
    seconds = interleaved_seconds({"plain": plain.advance, "ours": ours.advance}, repeats)
    ratios = [theirs / own for theirs, own in zip(seconds["plain"], seconds["ours"], strict=True)]
    return {
        "plain_loop": statistics.median(seconds["plain"]),
        "vectorised": statistics.median(seconds["ours"]),
        "speed_up": ratio(seconds["plain"], seconds["ours"]),
        "least": min(ratios),
        "most": max(ratios),
        "way": str(ours.way),
    }


def compiler_price(subject: Subject) -> dict[str, float]:
    """The time of recording, in ordinary rounds, and of comparisons with plain steps, as a share of a run."""
    few = subject.federation.subset(range(min(20, len(subject.federation))))
    simulation = simulate(FedAvg(local_steps=subject.local_steps), subject.model, few)
    seconds = []
    with _timed("_record") as recording, _timed("vouch") as here, _timed("vouch_elsewhere") as elsewhere:
        for _ in range(ROUNDS_OF_A_RUN):
            start = time.perf_counter()
            simulation.advance()
            seconds.append(time.perf_counter() - start)
    return {
        "recording_in_rounds": recording.seconds / statistics.median(seconds),
        "checking_share": (here.seconds + elsewhere.seconds) / sum(seconds),
    }


class _Stopwatch:
    seconds = 0.0


@contextmanager
def _timed(name: str) -> Iterator[_Stopwatch]:
    """How long one of the compiler's functions takes in all."""
    function, watch = getattr(Compiler, name), _Stopwatch()

    def timed(*arguments: Any) -> Any:
        start = time.perf_counter()
        try:
            return function(*arguments)
        finally:
            watch.seconds += time.perf_counter() - start

    setattr(Compiler, name, timed)
    try:
        yield watch
    finally:
        setattr(Compiler, name, function)


def apfl_cost(federation: Federation, local_steps: int, repeats: int) -> float:
    """A round of APFL over a round of FedAvg, with the MLP."""
    fedavg = simulate(FedAvg(local_steps=local_steps), models.mlp, federation)
    apfl = simulate(APFL(local_steps=local_steps), models.mlp, federation)
    seconds = interleaved_seconds({"fedavg": fedavg.advance, "apfl": apfl.advance}, repeats)
    return ratio(seconds["apfl"], seconds["fedavg"])


def scale(clients: int, local_steps: int) -> dict[str, float | None]:
    """Seconds and memory of a round of FedAvg with the MLP, all clients taking part."""
    federation = noise((784,), [2 * BATCH_SIZE] * clients)
    simulation = simulate(FedAvg(local_steps=local_steps), models.mlp, federation)
    simulation.advance()  # the states of all clients are there from now on
    with PeakMemory() as peak:
        (seconds,) = interleaved_seconds({"round": simulation.advance}, 2).values()
    return {
        "clients": clients,
        "seconds": min(seconds),
        "seconds_per_client": min(seconds) / clients,
        "peak_megabytes_of_a_chunk": peak.megabytes,
    }


def method_costs(
    federation: Federation, model: ModelFactory, local_steps: int, repeats: int
) -> dict[str, dict[str, float]]:
    """A round of every method over a round of FedAvg: its time, and the work that its definition asks for.

    It is always the same round: some methods ask other clients, or do something else, in the next one.
    """
    fedavg = FedAvg(local_steps=local_steps)
    least = work_of_a_round(simulate(fedavg, model, federation))
    costs = {}
    for kind in METHODS:
        ours = simulate(_with_local_steps(kind, local_steps), model, federation).play(1)
        theirs = simulate(fedavg, model, federation)
        seconds = interleaved_seconds({"ours": _next_round(ours), "fedavg": _next_round(theirs)}, repeats)
        work = work_of_a_round(ours)
        costs[kind.name] = {
            "over_fedavg": ratio(seconds["ours"], seconds["fedavg"]),
            "arithmetic": work.operations / least.operations,
            "gradients": work.gradients,
        }
    return costs


def cnn_costs(clients: int, local_steps: int, repeats: int) -> dict[str, dict[str, float]]:
    """The same with a model whose gradients, not the passes over its parameters, take the time."""
    images = noise((3, 32, 32), [local_steps * BATCH_SIZE] * clients)
    return method_costs(images, small_cnn, local_steps, repeats)


def costs_of_little_work(federation: Federation, local_steps: int, repeats: int) -> dict[str, float]:
    """FedAvg over itself with the MLP: what a round costs for methods that take few gradients in one."""
    quarter = federation.subset(range(max(1, len(federation) // 4)))
    rounds = {
        "all": simulate(FedAvg(local_steps=local_steps), models.mlp, federation),
        "one_local_step": simulate(FedAvg(local_steps=1), models.mlp, federation),
        "quarter_of_the_clients": simulate(FedAvg(local_steps=local_steps), models.mlp, quarter),
    }
    seconds = interleaved_seconds({name: play.advance for name, play in rounds.items()}, repeats)
    whole = seconds.pop("all")
    return {name: ratio(some, whole) for name, some in seconds.items()}


def _next_round(simulation: Simulation) -> Callable[[], object]:
    """Plays the next round each time that it is called: the server stays before it (the clients do not)."""
    server, number = simulation.server, simulation.round

    def play() -> None:
        simulation.advance()
        simulation.server, simulation.round = server, number

    return play


class Work(NamedTuple):
    """What a round consists of: gradients of each client, and operations in matrix products."""

    gradients: float
    operations: int


def work_of_a_round(simulation: Simulation) -> Work:
    """Count in the next round, on the sequential engine, which does what the definition says and no less."""
    setting = simulation.engine.setting
    setting.objective = counting = _CountingObjective(setting.objective)
    simulation.engine = Sequential(setting)
    with FlopCounterMode(display=False) as operations:
        simulation.advance()
    return Work(counting.counted["gradients"] / len(simulation.federation), operations.get_total_flops())


class _CountingObjective(Objective):
    """An objective that counts its gradients."""

    def __init__(self, objective: Objective) -> None:
        super().__init__(objective.module, objective.task, objective.weight_decay, objective.clip)
        self.counted: Counter[str] = Counter()  # the same one in copies of the objective

    def gradient(self, params: Params, batch: Batch, **options: Any) -> Params:
        """The gradient, counted."""
        self.counted["gradients"] += 1
        return super().gradient(params, batch, **options)


def _with_local_steps(method: type[Method], local_steps: int) -> Method:
    options: dict[str, Any] = {"local_steps": local_steps}
    try:
        return method(**options)
    except ValidationError:  # for some methods the number of steps is part of the definition
        return method()


def simulate(
    method: Method, model: ModelFactory, federation: Federation, device: torch.device = CPU
) -> Simulation:
    """A simulation whose model starts from the same parameters each time."""
    return Simulation(method, lambda: model(federation), federation, batch_size=BATCH_SIZE, device=device)
