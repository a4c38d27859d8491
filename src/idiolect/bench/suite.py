"""The benchmark: FedAvg against a plain loop on models of every kind, what methods cost, how rounds scale."""

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from pydantic import ValidationError
from torch import Tensor
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
    with_batch_norm,
)
from idiolect.core.device import CPU, DeviceName, find_device
from idiolect.core.exchange import Epochs, LocalWork
from idiolect.core.method import Method
from idiolect.core.objective import Batch, Objective
from idiolect.core.tree import Params
from idiolect.data.federation import Federation
from idiolect.engines.compiler.compiler import Compiler
from idiolect.engines.sequential import Sequential
from idiolect.errors import UserError, did_you_mean
from idiolect.methods.apfl import APFL
from idiolect.methods.catalogue import METHODS
from idiolect.methods.fedavg import FedAvg
from idiolect.methods.personal_parts import FedBN, SiloBN
from idiolect.simulation import Simulation

RATE = 0.1  # the default of FedAvg
ROUNDS_OF_A_RUN = 50
FIRST_ROUNDS = 2  # in which a method may do what it does once
ABOUT_BATCH_NORM = (FedBN, SiloBN)  # without it they are FedAvg


class Size(NamedTuple):
    """How much is measured, and where."""

    clients: int
    local_steps: int
    repeats: int
    scaling: tuple[int, ...]
    device: torch.device

    @property
    def flat(self) -> Federation:
        """Rows for the MLP."""
        return noise((784,), [self.local_steps * BATCH_SIZE] * self.clients)


def benchmark(
    keys: Sequence[str] = (),
    *,
    full: bool = False,
    clients: int = 100,
    local_steps: int = 20,
    repeats: int = 5,
    scaling: tuple[int, ...] = (10, 100, 1000),
    device: DeviceName = "cpu",
) -> dict[str, Any]:
    """Measure in one run. Speed-ups and costs are ratios of times on this machine, now.

    keys: what to measure, of `MEASUREMENTS`; none: those of three minutes, and with `full` all.
    device: where both sides of a speed-up compute; everything else is measured on the CPU.
    """
    size = Size(clients, local_steps, repeats, scaling, find_device(device))
    measured = {key: MEASUREMENTS[key](size) for key in _chosen(keys, full)}
    return {
        **{f"fedavg_{name}": row["speed_up"] for name, row in measured.get("seconds", {}).items()},
        **measured,
        "setting": {
            "clients": clients,
            "local_steps": local_steps,
            "batch_size": BATCH_SIZE,
            "threads": torch.get_num_threads(),
            "device": str(size.device),
            "torch": torch.__version__,
        },
    }


def _chosen(keys: Sequence[str], full: bool) -> Sequence[str]:
    if keys and full:
        raise UserError(f"--full measures everything; leave it out to measure {' and '.join(keys)} alone")
    for key in keys:
        if key not in MEASUREMENTS:
            raise UserError(
                f"{key} is nothing that is measured{did_you_mean(key, MEASUREMENTS)}; "
                f"there are {', '.join(MEASUREMENTS)}"
            )
    return list(dict.fromkeys(keys)) or list(MEASUREMENTS if full else QUICK)


def speed_ups(size: Size) -> dict[str, dict[str, Any]]:
    """FedAvg against the plain loop, on models of every kind."""
    return {
        name: speed_up(federation, model, steps, size.repeats, size.device)
        for name, (model, federation, steps) in subjects(size.clients, size.local_steps).items()
    }


def uneven_clients(size: Size) -> dict[str, dict[str, Any]]:
    """The same with clients of different sizes."""
    steps = uneven_steps(size.clients, size.local_steps)
    uneven = noise((784,), [count * BATCH_SIZE for count in steps])
    return {
        name: speed_up(uneven, model, Epochs(1), size.repeats)
        for name, model in (("linear", models.linear), ("mlp", models.mlp))
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


def compiler_prices(size: Size) -> dict[str, dict[str, float]]:
    """What recorded steps cost, with three models."""
    measured = subjects(size.clients, size.local_steps)
    return {name: compiler_price(measured[name]) for name in ("linear", "mlp", "transformer")}


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


def apfl_cost(size: Size) -> float:
    """A round of APFL over a round of FedAvg, with the MLP."""
    federation = size.flat
    fedavg = simulate(FedAvg(local_steps=size.local_steps), models.mlp, federation)
    apfl = simulate(APFL(local_steps=size.local_steps), models.mlp, federation)
    seconds = interleaved_seconds({"fedavg": fedavg.advance, "apfl": apfl.advance}, size.repeats)
    return ratio(seconds["apfl"], seconds["fedavg"])


def scales(size: Size) -> list[dict[str, float | None]]:
    """How a round grows with the number of clients."""
    return [scale(clients, size.local_steps) for clients in size.scaling]


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


def mlp_costs(size: Size) -> dict[str, dict[str, float]]:
    """What every method costs with the MLP."""
    return method_costs(_few(size), models.mlp, size.local_steps, size.repeats)


def cnn_costs(size: Size) -> dict[str, dict[str, float]]:
    """The same with a model whose gradients, not the passes over its parameters, take the time."""
    steps = min(10, size.local_steps)
    images = noise((3, 32, 32), [steps * BATCH_SIZE] * min(5, size.clients))
    return method_costs(images, small_cnn, steps, size.repeats)


def method_costs(
    federation: Federation, model: ModelFactory, local_steps: int, repeats: int
) -> dict[str, dict[str, float]]:
    """A round of every method over a round of FedAvg: its time, and the work that its definition asks for.

    It is always the same round, after those in which a method does something for the first time: some methods
    ask other clients, or do something else, in the next one. Methods about batch normalisation are measured,
    as is FedAvg beside them, with a model that has it.
    """
    fedavg, normalised = FedAvg(local_steps=local_steps), with_batch_norm(model)
    least = {used: work_of_a_round(simulate(fedavg, used, federation)) for used in (model, normalised)}
    costs = {}
    for kind in METHODS:
        used = normalised if kind in ABOUT_BATCH_NORM else model
        ours = simulate(_with_local_steps(kind, local_steps), used, federation).play(FIRST_ROUNDS)
        theirs = simulate(fedavg, used, federation)
        seconds = interleaved_seconds({"ours": _next_round(ours), "fedavg": _next_round(theirs)}, repeats)
        work = work_of_a_round(ours)
        costs[kind.name] = {
            "over_fedavg": ratio(seconds["ours"], seconds["fedavg"]),
            "arithmetic": work.operations / least[used].operations,
            "gradients": work.gradients,
        }
    return costs


def costs_of_little_work(size: Size) -> dict[str, float]:
    """FedAvg over itself with the MLP: what a round costs for methods that take few gradients in one."""
    federation, local_steps = _few(size), size.local_steps
    quarter = federation.subset(range(max(1, len(federation) // 4)))
    rounds = {
        "all": simulate(FedAvg(local_steps=local_steps), models.mlp, federation),
        "one_local_step": simulate(FedAvg(local_steps=1), models.mlp, federation),
        "quarter_of_the_clients": simulate(FedAvg(local_steps=local_steps), models.mlp, quarter),
    }
    seconds = interleaved_seconds({name: play.advance for name, play in rounds.items()}, size.repeats)
    whole = seconds.pop("all")
    return {name: ratio(some, whole) for name, some in seconds.items()}


def _few(size: Size) -> Federation:
    return size._replace(clients=min(20, size.clients)).flat


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

    def gradient_and_loss(self, params: Params, batch: Batch, **options: Any) -> tuple[Params, Tensor]:
        """The gradient, counted, and the loss."""
        self.counted["gradients"] += 1
        return super().gradient_and_loss(params, batch, **options)


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


QUICK: Mapping[str, Callable[[Size], Any]] = {
    "seconds": speed_ups,
    "apfl_mlp_over_fedavg": apfl_cost,
    "compiler": compiler_prices,
}
MEASUREMENTS: Mapping[str, Callable[[Size], Any]] = {
    **QUICK,
    "uneven_clients": uneven_clients,
    "scaling": scales,
    "method_costs": mlp_costs,
    "method_costs_cnn": cnn_costs,
    "costs_of_little_work": costs_of_little_work,
}
