"""A federation as one place sees it: everybody keeps its number, but only some clients' rows are there.

Batches, keys and learning-rate clocks depend on clients' numbers and sizes, so a worker or a silo that keeps
them computes what the whole federation would.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pandas as pd
import torch
from torch import Tensor

from idiolect.core.inputs import take_rows
from idiolect.data.federation import Federation, Rows
from idiolect.data.preprocessing import Preprocessing


@dataclass(frozen=True)
class PartialRows(Rows):
    """Rows of some clients; the sizes are those of all."""

    all_sizes: Tensor  # int64[clients]

    @property
    def sizes(self) -> Tensor:
        """How many rows each client has, here or elsewhere."""
        return self.all_sizes


def partial_view(federation: Federation, clients: Sequence[int]) -> Federation:
    """The same federation with the rows of some clients only; to ask for others' rows is a mistake."""
    parts = (federation.train, federation.validation, federation.test)
    needed = torch.cat([part.of(client) for part in parts for client in clients]).unique()

    def restrict(part: Rows) -> PartialRows:
        own = [part.of(client) for client in clients]
        starts = torch.tensor([0, *(len(rows) for rows in own)]).cumsum(0)[:-1]
        offsets = torch.zeros_like(part.offsets)
        offsets[torch.as_tensor(clients)] = starts
        return PartialRows(torch.searchsorted(needed, torch.cat(own)), offsets, part.sizes)

    train, validation, test = map(restrict, parts)
    return replace(
        federation,
        inputs=take_rows(federation.inputs, needed),
        targets=federation.targets[needed],
        train=train,
        validation=validation,
        test=test,
    )


def stand_in(preprocessing: Preprocessing, clients: pd.DataFrame) -> Federation:
    """A federation whose rows are all elsewhere: names and sizes, and in place of every row the same zeros.

    `clients` has the rows of each client in each part, indexed by client.
    """

    def rows(part: str) -> PartialRows:
        sizes = torch.tensor(clients[part].to_numpy("int64"))
        zeros = torch.zeros(max(1, int(sizes.max())), dtype=torch.int64)
        return PartialRows(zeros, torch.zeros(len(clients) + 1, dtype=torch.int64), sizes)

    task = preprocessing.task
    return Federation(
        inputs=torch.zeros(1, len(preprocessing.feature_names)),
        targets=torch.zeros(1, dtype=torch.int64) if task.is_classification else torch.zeros(1, 1),
        task=task,
        names=tuple(map(str, clients.index)),
        train=rows("train"),
        validation=rows("validation"),
        test=rows("test"),
        feature_names=preprocessing.feature_names,
        class_names=preprocessing.class_names,
        preprocessing=preprocessing,
    )
