"""What a silo admits: limits that it sets itself, whatever the coordinator asks for."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from idiolect.errors import UserError

MOST_CLIENTS = 1_000_000


@dataclass(frozen=True)
class Limits:
    """The most that a run may ask of a silo."""

    methods: tuple[str, ...] = ()  # empty: all that are installed
    models: tuple[str, ...] = ()  # models of its own (package.module:factory) that may be imported
    rounds: int = 1000
    steps: int = 10_000  # local steps in one exchange
    megabytes: float = 512.0  # of one message

    @property
    def most_bytes(self) -> int:
        """The largest message."""
        return int(self.megabytes * 2**20)

    def admit(self, config: Mapping[str, Any]) -> None:
        """Refuse a configuration outside of the limits."""
        method, model, rounds = config["method"]["name"], config["model"]["name"], config["rounds"]
        if self.methods and method not in self.methods:
            raise UserError(f"method={method} is not admitted here; admitted are {', '.join(self.methods)}")
        if ":" in model and model not in self.models:
            raise UserError(f"model={model} would import code; allow it with --allow-model {model}")
        if rounds > self.rounds:
            raise UserError(f"rounds={rounds} is more than the {self.rounds} that are admitted here")

    def admit_run(self, clients: int, number: int) -> None:
        """Refuse a place that cannot be, in a run of more silos than anybody has."""
        if not 0 <= number < clients <= MOST_CLIENTS:
            raise UserError(f"client {number} of {clients} is not admitted here")

    def admit_model(self, outline: nn.Module, dtype: torch.dtype) -> None:
        """Refuse a model that would not fit into a message, by an outline that has no numbers yet."""
        size = sum(parameter.numel() for parameter in outline.parameters()) * dtype.itemsize
        if size > self.most_bytes:
            raise UserError(f"a model of {size} bytes is larger than the {self.most_bytes} that are admitted")

    def admit_steps(self, steps: int) -> None:
        """Refuse too much local work."""
        if steps > self.steps:
            raise UserError(f"{steps} local steps are more than the {self.steps} that are admitted here")
