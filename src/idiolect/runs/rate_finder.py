"""A step size for models whose smoothness is not known, found on training rows.

Some clients, drawn by the run's seed, train together from the run's first model: a few rounds of FedAvg at
each rate of a grid, from small to large, until a rate is clearly worse than a smaller one. The rate with the
smallest loss of the shared model on these clients' training rows is taken, and halved: what a few rounds bear
can be too much for many. Validation and test rows are not looked at. Where clients have different
architectures, each is tried alone, and the smallest rate is taken.
"""

import math

import torch
from torch import nn

from idiolect.core import rng
from idiolect.core.exchange import ClientState, Message, Site
from idiolect.core.schedule import Constant
from idiolect.core.several import Several
from idiolect.data.federation import Federation
from idiolect.engines.engine import Setting
from idiolect.methods.fedavg import FedAvg
from idiolect.participation.sampling import Uniform
from idiolect.simulation import Simulation

RATES = tuple(10 ** (exponent / 2) for exponent in range(-6, 3))  # 0.001, 0.003, ... 3, 10
CLIENTS = 8
ROUNDS = 3
LOCAL_STEPS = 10
_WORSE = 1.1  # times the best loss: larger rates need not be tried


def find_rate(setting: Setting) -> float:
    """The rate for plain steps on the clients' losses."""
    module = setting.objective.module
    if isinstance(module, Several):
        return min(_rate_of(module.alone(number), setting) for number in range(len(module.bodies)))
    return _rate_of(module, setting)


def _rate_of(module: nn.Module, setting: Setting) -> float:
    """The rate for a model that all clients share."""
    federation = _some_clients(setting.federation, setting.seed)
    best_rate, best_loss = RATES[0], math.inf
    for rate in RATES:
        loss = _loss_after(rate, module, setting, federation)
        if loss < best_loss:
            best_rate, best_loss = rate, loss
        elif not loss <= _WORSE * best_loss:
            break
    return best_rate / 2


def _some_clients(federation: Federation, seed: int) -> Federation:
    """A few clients, the same for all methods."""
    keys = rng.key(seed, "rate finder", torch.arange(len(federation)))
    return federation.subset(keys.argsort()[:CLIENTS].sort().values.tolist())


def _loss_after(rate: float, module: nn.Module, setting: Setting, federation: Federation) -> float:
    """The mean training loss of the shared model after the rounds."""
    objective = setting.objective
    simulation = Simulation(
        FedAvg(learning_rate=Constant(rate), local_steps=LOCAL_STEPS),
        module,
        federation,
        plan=Uniform(),
        seed=setting.seed,
        batch_size=setting.batches.batch_size,
        weight_decay=objective.weight_decay,
        dtype=objective.dtype,
        clip=objective.clip,
        device=setting.device,
    ).play(ROUNDS)

    def look(client: ClientState, brief: Message, site: Site) -> torch.Tensor:
        return site.objective.data_loss(simulation.method.predictors(client, brief)["global"], site.all_rows)

    losses = simulation.survey(look, federation.train)
    return float(losses.double().mean())
