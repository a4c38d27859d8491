"""The benchmark: 100 clients, all taking part, 20 local steps, batches of 20."""

import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from pydantic import ValidationError
from rich.console import Group
from rich.table import Table
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from idiolect import models
from idiolect.bench.measure import PeakMemory, interleaved_seconds, ratio
from idiolect.bench.plain_loop import PlainLoop
from idiolect.core.method import Epochs, LocalWork, Method
from idiolect.core.objective import Batch, Objective
from idiolect.core.task import Task
from idiolect.core.tree import Params
from idiolect.data.federation import Federation, Rows
from idiolect.engines.sequential import Sequential
from idiolect.methods.apfl import APFL
from idiolect.methods.catalogue import METHODS
from idiolect.methods.fedavg import FedAvg
from idiolect.simulation import Simulation

BATCH_SIZE = 20
RATE = 0.1  # the default of FedAvg
TARGETS = {
    "fedavg_linear": "at least 12",
    "fedavg_mlp": "at least 4.5",
    "fedavg_cnn": "at least 1",
    "apfl_mlp_over_fedavg": "at most 2.3",
}


def run_bench(
    *, clients: int = 100, local_steps: int = 20, repeats: int = 5, scaling: tuple[int, ...] = (10, 100, 1000)
) -> dict[str, Any]:
    """Measure everything in one run. Speed-ups and costs are ratios of times on this machine, now."""
    rows = local_steps * BATCH_SIZE  # one epoch is the local work
    flat = noise((784,), [rows] * clients)
    images = noise((3, 32, 32), [2 * BATCH_SIZE] * clients)
    uneven = noise((784,), [steps * BATCH_SIZE for steps in uneven_steps(clients, local_steps)])
    linear = speed_up(flat, models.linear, local_steps, repeats)
    mlp = speed_up(flat, models.mlp, local_steps, repeats)
    cnn = speed_up(images, small_cnn, local_steps, max(1, repeats // 3))
    linear_uneven, mlp_uneven = (
        speed_up(uneven, model, Epochs(1), repeats) for model in (models.linear, models.mlp)
    )
    few = flat.subset(range(min(20, clients)))
    costs = method_costs(few, models.mlp, local_steps, repeats)
    costs_of_little = costs_of_little_work(few, local_steps, repeats)
    costs_cnn = cnn_costs(min(5, clients), min(10, local_steps), repeats)
    apfl = apfl_cost(flat, local_steps, repeats)
    return {
        "fedavg_linear": linear["speed_up"],
        "fedavg_mlp": mlp["speed_up"],
        "fedavg_cnn": cnn["speed_up"],
        "apfl_mlp_over_fedavg": apfl,
        "seconds": {"linear": linear, "mlp": mlp, "cnn": cnn},
        "uneven_clients": {"linear": linear_uneven, "mlp": mlp_uneven},
        "scaling": [scale(count, local_steps) for count in scaling],
        "method_costs": costs,
        "method_costs_cnn": costs_cnn,
        "costs_of_little_work": costs_of_little,
        "setting": {
            "clients": clients,
            "local_steps": local_steps,
            "batch_size": BATCH_SIZE,
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
        },
    }


def noise(shape: tuple[int, ...], sizes: Sequence[int]) -> Federation:
    """Clients with random rows of ten classes: what is learned does not matter here."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(sum(sizes), *shape, generator=generator)
    targets = torch.randint(10, (sum(sizes),), generator=generator)
    owned = Rows.of_clients(list(torch.arange(sum(sizes)).split(list(sizes))))
    names = tuple(str(client) for client in range(len(sizes)))
    return Federation(inputs, targets, Task("multiclass", 10), names, owned, owned, owned)


def uneven_steps(clients: int, mean: int) -> list[int]:
    """Steps of an epoch where clients differ as in practice: most have little data, a few have most of it."""
    shares = torch.randn(clients, generator=torch.Generator().manual_seed(0)).exp()
    return (shares / shares.mean() * mean).round().clamp_min(1).int().tolist()


ModelFactory = Callable[[Federation], nn.Module]


def small_cnn(federation: Federation) -> nn.Module:
    """Two 5x5 convolutions of 32 and 64 filters."""
    return models.cnn(federation, filters=(32, 64))


def speed_up(federation: Federation, model: ModelFactory, work: LocalWork, repeats: int) -> dict[str, float]:
    """FedAvg against the plain loop: seconds of a round of each, and how many times faster it is."""
    ours = simulate(FedAvg(local_steps=work), model, federation)
    steps = ours.engine.setting.batches.steps(work, torch.arange(len(federation))).tolist()
    plain = PlainLoop(model(federation), federation, batch_size=BATCH_SIZE, local_steps=steps, rate=RATE)
    seconds = interleaved_seconds({"plain": plain.advance, "ours": ours.advance}, repeats)
    return {
        "plain_loop": statistics.median(seconds["plain"]),
        "vectorised": statistics.median(seconds["ours"]),
        "speed_up": ratio(seconds["plain"], seconds["ours"]),
    }


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
    return Work(counting.gradients / len(simulation.federation), operations.get_total_flops())


class _CountingObjective(Objective):
    """An objective that counts its gradients."""

    def __init__(self, objective: Objective) -> None:
        super().__init__(objective.module, objective.task, objective.weight_decay)
        self.gradients = 0

    def gradient(self, params: Params, batch: Batch) -> Params:
        """The gradient, counted."""
        self.gradients += 1
        return super().gradient(params, batch)


def _with_local_steps(method: type[Method], local_steps: int) -> Method:
    options: dict[str, Any] = {"local_steps": local_steps}
    try:
        return method(**options)
    except ValidationError:  # for some methods the number of steps is part of the definition
        return method()


def simulate(method: Method, model: ModelFactory, federation: Federation) -> Simulation:
    """A simulation whose model starts from the same parameters each time."""
    return Simulation(method, lambda: model(federation), federation, batch_size=BATCH_SIZE)


def render(result: dict[str, Any]) -> Group:
    """The result as tables, to be printed with rich."""
    ratios = Table(
        "measured", "ratio", "target", title="Speed-up over a plain loop; cost of APFL over FedAvg"
    )
    for name, target in TARGETS.items():
        ratios.add_row(name, f"{result[name]:.2f}", target)
    seconds = Table("model", "plain loop [s]", "vectorised [s]", title="Seconds per round of FedAvg (median)")
    for name, row in result["seconds"].items():
        seconds.add_row(name, f"{row['plain_loop']:.3f}", f"{row['vectorised']:.3f}")
    uneven = Table(
        "model", "plain loop [s]", "vectorised [s]", "ratio", title="The same with clients of different sizes"
    )
    for name, row in result["uneven_clients"].items():
        uneven.add_row(name, f"{row['plain_loop']:.3f}", f"{row['vectorised']:.3f}", f"{row['speed_up']:.2f}")
    scaling = Table("clients", "s per round", "ms per client", "peak of a chunk [MB]", title="Scaling, MLP")
    for row in result["scaling"]:
        peak = row["peak_megabytes_of_a_chunk"]
        scaling.add_row(
            str(row["clients"]),
            f"{row['seconds']:.3f}",
            f"{1000 * row['seconds_per_client']:.2f}",
            "unknown" if peak is None else f"{peak:.0f}",
        )
    costs = [
        _costs_table(result[key], model)
        for key, model in (("method_costs", "MLP"), ("method_costs_cnn", "CNN"))
    ]
    little = Table("round of FedAvg", "time", title="FedAvg with little work over itself, MLP")
    for name, cost in result["costs_of_little_work"].items():
        little.add_row(name.replace("_", " "), f"{cost:.2f}")
    return Group(ratios, seconds, uneven, scaling, *costs, little)


def _costs_table(costs: dict[str, dict[str, float]], model: str) -> Table:
    table = Table(
        "method", "time", "arithmetic", "gradients per client", "within 125 % of the arithmetic",
        title=f"One round of each over FedAvg's, {model}",
    )  # fmt: skip
    for name, row in costs.items():
        within = "yes" if row["over_fedavg"] <= 1.25 * row["arithmetic"] else "no"
        table.add_row(
            name, f"{row['over_fedavg']:.2f}", f"{row['arithmetic']:.2f}", f"{row['gradients']:g}", within
        )
    return table
