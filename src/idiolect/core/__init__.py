"""The vocabulary of a method: what its file needs, in one import line.

>>> from idiolect.core import Batch, Cohort, Exchange, Method, Site, hyper, tree
"""

from idiolect.core import rng, tree
from idiolect.core.hyper import STRICT, hyper
from idiolect.core.method import (
    ClientState,
    Cohort,
    Epochs,
    Exchange,
    Info,
    LocalWork,
    Message,
    Method,
    Population,
    PredictorKind,
    ServerState,
    Site,
    Work,
)
from idiolect.core.objective import Batch, Mixture, Objective, Predictor
from idiolect.core.optimizer import Optimizer
from idiolect.core.schedule import Clock, Schedule
from idiolect.core.task import Task
from idiolect.core.tree import Params
from idiolect.core.weighting import Weighting, reply_weights

__all__ = [
    "STRICT",
    "Batch",
    "ClientState",
    "Clock",
    "Cohort",
    "Epochs",
    "Exchange",
    "Info",
    "LocalWork",
    "Message",
    "Method",
    "Mixture",
    "Objective",
    "Optimizer",
    "Params",
    "Population",
    "Predictor",
    "PredictorKind",
    "Schedule",
    "ServerState",
    "Site",
    "Task",
    "Weighting",
    "Work",
    "hyper",
    "reply_weights",
    "rng",
    "tree",
]
