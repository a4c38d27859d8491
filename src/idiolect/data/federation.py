"""A federation: one flat data set and, for each client, its rows."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.inputs import Inputs, in_real_precision
from idiolect.core.task import Task
from idiolect.data.preprocessing import Preprocessing


@dataclass(frozen=True)
class Rows:
    """Row numbers of all clients, end to end; client i owns `index[offsets[i]:offsets[i + 1]]`."""

    index: Tensor  # int64[total]
    offsets: Tensor  # int64[clients + 1]

    @classmethod
    def of_clients(cls, rows: Sequence[Tensor]) -> "Rows":
        """From one tensor of row numbers for each client."""
        sizes = torch.tensor([0, *(len(r) for r in rows)], dtype=torch.int64)
        index = torch.cat([torch.as_tensor(r, dtype=torch.int64) for r in rows]) if rows else sizes[:0]
        return cls(index, sizes.cumsum(0))

    @property
    def sizes(self) -> Tensor:
        """How many rows each client has, int64[clients]."""
        return self.offsets.diff()

    def of(self, client: int) -> Tensor:
        """The row numbers of one client."""
        return self.index[self.offsets[client] : self.offsets[client + 1]]


@dataclass(frozen=True)
class Federation:
    """Names, rows and task of a group of clients whose data lie in flat tensors."""

    inputs: (
        Inputs  # [rows, ...]: real features, or integer codes (characters); or several by name or in order
    )
    targets: Tensor  # [rows] int64 classes, or [rows, outputs] real
    task: Task
    names: tuple[str, ...]
    train: Rows
    validation: Rows
    test: Rows
    feature_names: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    groups: Tensor | None = None  # int64[clients]: the true group of each client where it is known
    notes: tuple[str, ...] = field(default=())  # what was found and done while reading, for the user
    preprocessing: Preprocessing | None = None  # how a table's rows became inputs

    def __len__(self) -> int:
        return len(self.names)

    def to(self, dtype: torch.dtype) -> "Federation":
        """The same federation with its real tensors in another precision."""
        inputs, targets = in_real_precision((self.inputs, self.targets), dtype)
        return replace(self, inputs=inputs, targets=targets)

    def subset(self, clients: Sequence[int]) -> "Federation":
        """The federation of some of the clients (the flat tensors are shared)."""

        def pick(rows: Rows) -> Rows:
            return Rows.of_clients([rows.of(c) for c in clients])

        return replace(
            self,
            names=tuple(self.names[c] for c in clients),
            train=pick(self.train),
            validation=pick(self.validation),
            test=pick(self.test),
            groups=None if self.groups is None else self.groups[torch.as_tensor(clients)],
        )


def upper_class_shares(federation: Federation) -> Tensor | None:
    """The share of each client's training rows that are of the upper half of the classes, float64[clients].

    Of an odd number of classes the middle one is in the lower half. None in a regression.
    """
    classes, train = federation.task.classes, federation.train
    if not classes:
        return None
    is_upper = (2 * federation.targets >= classes).to(torch.float64)
    upper = is_upper.reshape(len(is_upper), -1).mean(1)[train.index]  # of a text: of its characters
    owners = torch.arange(len(federation)).repeat_interleave(train.sizes)
    return torch.zeros(len(federation), dtype=torch.float64).index_add_(0, owners, upper) / train.sizes


def fingerprint(federation: Federation) -> str:
    """A digest of all data: a resumed run must see what it saw before, and noise is for these rows alone."""
    digest = hashlib.sha256("\n".join(federation.names).encode())
    parts = (federation.train, federation.validation, federation.test)
    digest.update("".join(tree.to_named(federation.inputs)).encode())  # nothing if there is one tensor
    inputs = tree.leaves(federation.inputs)
    for tensor in (*inputs, federation.targets, *(t for p in parts for t in (p.index, p.offsets))):
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()
