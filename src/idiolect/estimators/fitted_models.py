"""All clients' models of one kind, and the shared one, as tensors and plain data that can be pickled."""

from dataclasses import dataclass

import torch
from torch import nn

from idiolect.core import tree
from idiolect.core.objective import Predictor
from idiolect.core.task import Task
from idiolect.data.hints import listed
from idiolect.data.preprocessing import Preprocessing
from idiolect.errors import UserError, did_you_mean
from idiolect.result import Result
from idiolect.runs.client_model import chosen_predictor, deciding_task
from idiolect.runs.personal_model import PersonalModel, as_module


@dataclass(frozen=True)
class FittedModels:
    """The models that predict clients' rows, at the rounds that are reported for them."""

    names: tuple[str, ...]
    own: Predictor  # stacked: a model for each client
    task: Task
    shared: Predictor | None  # for everybody else, where the method has one
    shared_task: Task
    architecture: nn.Module
    class_names: tuple[str, ...]
    preprocessing: Preprocessing
    method: str

    @classmethod
    def of_result(cls, result: Result, kind: str | None) -> "FittedModels":
        """Those that a training reports; by default of the kind that the method is judged by."""
        federation, kinds = result.simulation.federation, result.simulation.method.kinds
        assert federation.preprocessing is not None, "it was made from a table"
        with result.reported(kind) as simulation:
            kind, _ = chosen_predictor(simulation, federation.names[0], kind)
            stacked: dict[str, Predictor] = {str(k): models for k, models in simulation.predictors().items()}
        shared = None
        if "global" in kinds and result.simulation.method.has_global_model:
            with result.reported("global") as simulation:
                shared = simulation.global_model()
        return cls(
            federation.names,
            stacked[kind],
            deciding_task(federation.task, kind, result.thresholds),
            shared,
            deciding_task(federation.task, "global", result.thresholds),
            result.simulation.engine.setting.objective.module,
            federation.class_names,
            federation.preprocessing,
            result.simulation.method.name,
        )

    def of(self, client: str | None, dtype: torch.dtype | None = None) -> PersonalModel:
        """The model of a client; of somebody else, and of nobody where there are several, the shared one."""
        if client is None and len(self.names) == 1:
            client = self.names[0]
        if client in self.names:
            predictor, task = tree.row(self.own, self.names.index(client)), self.task
        elif self.shared is not None:
            predictor, task = self.shared, self.shared_task
        else:
            raise UserError(self._nobody(client))
        whose = "everybody" if client is None else f"client {client!r}"
        module = as_module(predictor, self.architecture, task, whose).to(dtype)
        return PersonalModel(module, task, self.class_names, self.preprocessing)

    def _nobody(self, client: str | None) -> str:
        clients = f"{self.method} has no shared model, and the clients are {listed(self.names)}"
        if client is None:
            return f"groups is missing, which says whose row each is: {clients}"
        return f"there is no client {client!r}{did_you_mean(client, self.names)}: {clients}"
