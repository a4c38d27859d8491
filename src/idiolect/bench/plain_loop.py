"""The control: federated averaging as the popular libraries write it, a module and a loader per client."""

import copy
from collections.abc import Sequence
from itertools import cycle, islice

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from idiolect.core.device import CPU, to_device, wait_for
from idiolect.data.federation import Federation


class PlainLoop:
    """Every client has a copy of the module; a round trains the copies one by one and averages them.

    `local_steps` are those of each client.
    """

    def __init__(
        self,
        module: nn.Module,
        federation: Federation,
        *,
        batch_size: int,
        local_steps: Sequence[int],
        rate: float,
        device: torch.device = CPU,
    ) -> None:
        self.module, self.device = module.to(device), device
        self.copies = [copy.deepcopy(module) for _ in range(len(federation))]
        rows = [federation.train.of(client) for client in range(len(federation))]
        self.data = [
            TensorDataset(*to_device((federation.inputs[r], federation.targets[r]), device)) for r in rows
        ]
        self.batch_size, self.local_steps, self.rate = batch_size, local_steps, rate

    def advance(self) -> None:
        """Play one round."""
        for model, data, steps in zip(self.copies, self.data, self.local_steps, strict=True):
            model.load_state_dict(self.module.state_dict())
            self._train(model, DataLoader(data, self.batch_size, shuffle=True, drop_last=True), steps)
        with torch.no_grad():
            for shared, *own in zip(
                self.module.parameters(), *(model.parameters() for model in self.copies), strict=True
            ):
                shared.copy_(torch.stack(list(own)).mean(0))
        wait_for(self.device)

    def _train(self, model: nn.Module, loader: DataLoader[tuple[torch.Tensor, ...]], steps: int) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=self.rate)
        loss_of = nn.CrossEntropyLoss()
        for inputs, targets in islice((batch for _ in cycle([0]) for batch in loader), steps):
            optimizer.zero_grad()
            loss_of(model(inputs), targets).backward()
            optimizer.step()
