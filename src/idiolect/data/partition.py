"""Dealing the rows of one labelled data set to clients.

Every scheme takes the labels (int64[rows]) and gives one tensor of row numbers for each client. No row is
ever dealt twice; each docstring says whether all rows are dealt. All are pure functions of their arguments.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from idiolect.core import rng
from idiolect.data.draws import generator
from idiolect.errors import UserError

Scheme = Literal["iid", "shards", "slices", "classes", "unequal", "dirichlet"]


def deal(
    labels: Tensor,
    clients: int,
    *,
    seed: int,
    partition: Scheme,
    per_client: int = 2,
    concentration: float = 1.0,
) -> list[Tensor]:
    """Deal rows by the name of a scheme; `per_client` counts shards, slices or classes."""
    match partition:
        case "iid":
            return iid(labels, clients, seed=seed)
        case "shards":
            return shards(labels, clients, per_client, seed=seed)
        case "slices":
            return slices(labels, clients, per_client)
        case "classes":
            return exact_classes(labels, clients, per_client, seed=seed)
        case "unequal":
            return unequal_classes(labels, clients, per_client, seed=seed)
        case "dirichlet":
            return dirichlet(labels, clients, concentration, seed=seed)


def iid(labels: Tensor, clients: int, *, seed: int) -> list[Tensor]:
    """Equal random parts: ⌊rows / clients⌋ each; the few rows that are left over stay undealt."""
    size = _rows_each(len(labels), clients)
    order = rng.permutation(rng.key(seed, "partition-iid"), len(labels))
    return list(torch.split(order[: size * clients], size))


def shards(labels: Tensor, clients: int, per_client: int, *, seed: int) -> list[Tensor]:
    """McMahan's scheme: sort by label, cut into clients x per_client shards, deal them at random.

    Shards have ⌊rows / (clients x per_client)⌋ rows; the last few rows stay undealt. A client sees few
    labels, though a shard may straddle two of them.
    """
    pieces = _pieces_by_label(labels, clients, per_client)
    order = rng.permutation(rng.key(seed, "partition-shards"), len(pieces))
    return [pieces[chosen].flatten() for chosen in order.reshape(clients, per_client)]


def slices(labels: Tensor, clients: int, per_client: int) -> list[Tensor]:
    """FedTorch's scheme: sort by label; for a = 0, .., per_client - 1 every client takes the next slice.

    Slices are as large as the shards above. Nothing is random: client i gets slices i, clients + i, ...
    With 100 clients, 2 slices and ten equal classes client i holds labels ⌊i/20⌋ and 5 + ⌊i/20⌋, so that
    there are five hidden clusters of 20 clients.
    """
    pieces = _pieces_by_label(labels, clients, per_client)
    return [pieces[client::clients].flatten() for client in range(clients)]


def exact_classes(labels: Tensor, clients: int, per_client: int, *, seed: int) -> list[Tensor]:
    """Exactly `per_client` classes for each client, balanced and disjoint.

    Each client takes the classes that fewest clients have so far (ties at random), hence every class has
    the same number of owners, give or take one. All (client, class) pairs get the same number of rows,
    the largest that the scarcest class allows; the rest stay undealt.
    """
    draw = generator(seed, "partition-classes")
    by_class = _shuffled_by_class(labels, draw)
    _check_per_client(per_client, len(by_class), clients)
    owned = np.zeros(len(by_class), dtype=np.int64)
    chosen = []
    for _ in range(clients):
        classes = np.lexsort((draw.random(len(by_class)), owned))[:per_client]
        owned[classes] += 1
        chosen.append(classes)
    size = min(len(rows) // owners for rows, owners in zip(by_class, owned, strict=True) if owners)
    if size == 0:
        raise UserError(f"clients={clients} is too many: some class has fewer rows than owners")
    taken = np.zeros(len(by_class), dtype=np.int64)
    dealt = []
    for classes in chosen:
        dealt.append(np.concatenate([by_class[c][taken[c] : taken[c] + size] for c in classes]))
        taken[classes] += size
    return _tensors(dealt)


def unequal_classes(labels: Tensor, clients: int, per_client: int = 3, *, seed: int) -> list[Tensor]:
    """Few classes and very unequal sizes: client i gets the classes (i + j) mod C, j < per_client.

    The rows of a class are cut for its u owners one after the other: a cut is uniform on
    [left / (u + 1), left / 2), `left` being what is left of the class, and the last owner takes the rest;
    then the cuts are given to the owners in random order. Every row of a class with owners is dealt.
    """
    draw = generator(seed, "partition-unequal")
    by_class = _shuffled_by_class(labels, draw)
    _check_per_client(per_client, len(by_class), clients)
    hands: list[list[np.ndarray]] = [[] for _ in range(clients)]
    for c, rows in enumerate(by_class):
        owners = [i for i in range(clients) if (c - i) % len(by_class) < per_client]
        if owners:
            cuts = _unequal_cuts(len(rows), len(owners), draw)
            pieces = np.split(rows, np.cumsum(cuts)[:-1])
            for owner, piece in zip(draw.permutation(owners), pieces, strict=True):
                hands[owner].append(piece)
    return _tensors([np.concatenate(hand) for hand in hands])


def dirichlet(labels: Tensor, clients: int, concentration: float, *, seed: int) -> list[Tensor]:
    """Label shares of each client from a symmetric Dirichlet distribution; all clients equally large.

    A client has ⌊rows / clients⌋ rows. It draws its shares q ~ Dirichlet(concentration) and then labels
    from q; when a class has run out, q is renormalised over the classes that have rows left.
    """
    if not concentration > 0:
        raise UserError(f"concentration={concentration} must be above 0")
    size = _rows_each(len(labels), clients)
    draw = generator(seed, "partition-dirichlet")
    by_class = _shuffled_by_class(labels, draw)
    left = np.array([len(rows) for rows in by_class])
    hands: list[np.ndarray] = [np.empty(0, dtype=np.int64)] * clients
    for client in draw.permutation(clients):
        shares = draw.dirichlet(np.full(len(by_class), concentration))
        counts = _draw_labels(shares, left, size, draw)
        hands[client] = np.concatenate(
            [rows[end - n : end] for rows, end, n in zip(by_class, left, counts, strict=True)]
        )
        left = left - counts
    return _tensors(hands)


def by_id(ids: Sequence[object] | np.ndarray | Tensor) -> tuple[list[str], list[Tensor]]:
    """The clients that the data name themselves (writer, speaker, hospital): names and rows, all dealt."""
    values, codes = np.unique(np.asarray(ids), return_inverse=True)
    order = torch.as_tensor(codes).argsort(stable=True)
    return [str(v) for v in values], list(torch.split(order, np.bincount(codes).tolist()))


def _tensors(dealt: Sequence[np.ndarray]) -> list[Tensor]:
    return [torch.as_tensor(rows, dtype=torch.int64) for rows in dealt]


def _rows_each(rows: int, parts: int) -> int:
    if not 1 <= parts <= rows:
        raise UserError(f"clients={parts} must be between 1 and the number of rows or pieces, {rows}")
    return rows // parts


def _pieces_by_label(labels: Tensor, clients: int, per_client: int) -> Tensor:
    """Row numbers sorted by label, cut into equal pieces: int64[clients * per_client, size]."""
    if per_client < 1 or clients * per_client > len(labels) or clients < 1:
        raise UserError(
            f"clients={clients} with per_client={per_client} needs {clients * per_client} pieces, but there "
            f"are {len(labels)} rows"
        )
    count = clients * per_client
    size = len(labels) // count
    return labels.argsort(stable=True)[: count * size].reshape(count, size)


def _shuffled_by_class(labels: Tensor, draw: np.random.Generator) -> list[np.ndarray]:
    """The rows of each class that occurs, in random order."""
    values = labels.numpy()
    return [draw.permutation(np.flatnonzero(values == c)) for c in np.unique(values)]


def _check_per_client(per_client: int, classes: int, clients: int) -> None:
    if not 1 <= per_client <= classes:
        raise UserError(f"per_client={per_client} must be between 1 and the number of classes, {classes}")
    if clients < 1:
        raise UserError(f"clients={clients} must be at least 1")


def _unequal_cuts(total: int, owners: int, draw: np.random.Generator) -> list[int]:
    """Positive sizes that sum to `total`, one for each owner."""
    if total < owners:
        raise UserError(f"a class has {total} rows for {owners} clients: use fewer clients")
    cuts = []
    left = total
    for waiting in range(owners - 1, 0, -1):
        low = max(1, left // (owners + 1))
        high = max(low + 1, left // 2)
        cut = min(int(draw.integers(low, high)), left - waiting)  # leave one row for each who waits
        cuts.append(cut)
        left -= cut
    return [*cuts, left]


def _draw_labels(shares: np.ndarray, left: np.ndarray, size: int, draw: np.random.Generator) -> np.ndarray:
    """How many rows of each class a client gets: `size` in all and never more than there are."""
    counts = np.zeros_like(left)
    while (missing := size - counts.sum()) > 0:
        weights = np.where(counts < left, shares, 0.0)
        if weights.sum() < 1e-12:  # all that the client likes has run out
            weights = (left - counts).astype(float)
        drawn = draw.multinomial(missing, weights / weights.sum())
        counts = np.minimum(counts + drawn, left)
    return counts
