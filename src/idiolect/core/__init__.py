"""The vocabulary of a method: what its file needs, in one import line.

>>> from idiolect.core import Batch, Cohort, Exchange, Method, Site, hyper, tree
"""

from idiolect.core import rng, tree
from idiolect.core.autodiff import gradient
from idiolect.core.cohort import Cohort, Population
from idiolect.core.exchange import (
    Batches,
    ClientState,
    Epochs,
    Exchange,
    Info,
    LocalWork,
    Message,
    ServerState,
    Site,
    Work,
)
from idiolect.core.hyper import STRICT, hyper
from idiolect.core.messages import LocalModel, Nothing, SharedModel
from idiolect.core.method import Method, PredictorKind, Predictors
from idiolect.core.neighbours import Neighbours, Store
from idiolect.core.newcomer import AdaptedNewcomer, FineTuning, Newcomer, TrainedNewcomer
from idiolect.core.objective import Batch, Mixture, Objective, Pass, Predictor
from idiolect.core.observed import StepAverage
from idiolect.core.optimizer import Optimizer
from idiolect.core.parts import PartChoice, Parts, Patterns, last_layer
from idiolect.core.projection import onto_ball, onto_simplex
from idiolect.core.reply_weights import Weighting, plain_mean, reply_weights
from idiolect.core.schedule import Clock, Constant, PerRound, Schedule
from idiolect.core.task import Task
from idiolect.core.transport import OwnCodec, Scope, Transport
from idiolect.core.tree import Params

__all__ = [
    "STRICT",
    "AdaptedNewcomer",
    "Batch",
    "Batches",
    "ClientState",
    "Clock",
    "Cohort",
    "Constant",
    "Epochs",
    "Exchange",
    "FineTuning",
    "Info",
    "LocalModel",
    "LocalWork",
    "Message",
    "Method",
    "Mixture",
    "Neighbours",
    "Newcomer",
    "Nothing",
    "Objective",
    "Optimizer",
    "OwnCodec",
    "Params",
    "PartChoice",
    "Parts",
    "Pass",
    "Patterns",
    "PerRound",
    "Population",
    "Predictor",
    "PredictorKind",
    "Predictors",
    "Schedule",
    "Scope",
    "ServerState",
    "SharedModel",
    "Site",
    "StepAverage",
    "Store",
    "Task",
    "TrainedNewcomer",
    "Transport",
    "Weighting",
    "Work",
    "gradient",
    "hyper",
    "last_layer",
    "onto_ball",
    "onto_simplex",
    "plain_mean",
    "reply_weights",
    "rng",
    "tree",
]
