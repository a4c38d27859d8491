"""Groups of clients: k-means on their models, labels that keep their meaning, agreement of labels."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from idiolect import core
from idiolect.core import Params, tree
from idiolect.core.tree import Tree
from idiolect.errors import UserError, require_finite

MOST_ITERATIONS = 300
_COLUMNS = 8192  # of all points, that are worked on at a time
TIED = 1e-9  # squared distances that agree to this part of the largest one count as equal


class GroupModels(NamedTuple):
    """To a client that chooses its group: the models of all."""

    models: Params


NEVER = -1  # the round of a client that was never heard


class LastUploads(NamedTuple):
    """Every client's last upload and the round that it came in; of absentees they may still count."""

    kept: Any  # stacked over all clients; nothing where only uploads of the same round count
    heard: Tensor  # int64[clients]: the round, or NEVER

    @classmethod
    def begin(cls, upload: Tree, clients: int, *, keeps: bool) -> "LastUploads":
        """Nobody was heard yet; `upload` is any of them, for its shapes."""
        kept = tree.map_tree(lambda leaf: leaf.new_zeros(clients, *leaf.shape), upload) if keeps else ()
        return cls(kept, torch.full((clients,), NEVER))

    def after(self, replies: Tree, cohort: core.Cohort, now: Tensor) -> "LastUploads":
        """With the replies of a round."""
        kept = self.kept
        if kept:
            kept = tree.map_tree(lambda old, new: old.index_copy(0, cohort.ids, new), kept, replies)
        return LastUploads(kept, self.heard.index_fill(0, cohort.ids, int(now)))

    def counted(self, replies: Tree, cohort: core.Cohort, now: Tensor, age: int | None) -> tuple[Tensor, Any]:
        """Whose uploads count, and these: the round's, or those of all heard `age` rounds ago or later."""
        if not self.kept:
            return cohort.ids, replies
        fresh = self.heard != NEVER if age is None else self.heard >= now - age
        ids = (fresh & (self.heard != NEVER) & cohort.population.present).nonzero()[:, 0]
        return ids, tree.select(self.kept, ids)


def moved_to_means(models: Params, uploads: Params, labels: Tensor, counts: Tensor, step: float) -> Params:
    """Each group's model moved towards the mean of its members' uploads, weighted by counts.

    By differences, so that groups whose uploads equal their model stay bitwise as they are; an empty one too.
    """
    moved = []
    for group in range(len(tree.leaves(models)[0])):
        model, members = tree.row(models, group), labels == group
        if members.any():
            changes = tree.subtract(tree.select(uploads, members), model)
            shares = counts[members].double()
            change = tree.weighted_sum(changes, shares / shares.sum())
            model = tree.advance(model, step, change)
        moved.append(model)
    return tree.stack(moved)


class Partition(NamedTuple):
    """Points in clusters, and how the clusters were found."""

    labels: Tensor  # int64[points]: 0 .. clusters - 1, in no particular order
    inertia: Tensor  # the sum of squared distances to the mean of the own cluster
    iterations: Tensor  # of Lloyd's algorithm, in the run that won
    mean_distance: Tensor  # between two points, over all pairs


class Grouping(NamedTuple):
    """Labels under the names of the groups that there were, and what is worth logging about them."""

    labels: Tensor
    info: dict[str, Tensor]


def regroup(
    points: Tree, uploads: Params, models: Params, previous: Tensor, seed: int, restarts: int
) -> Grouping:
    """Cluster clients by their points, and name each cluster after the group model nearest to its uploads.

    `points` and `uploads` are stacked by client, `models` by group; `previous` are the clients' labels.
    """
    old = tree.flatten_rows(models)
    places, matrix = (tree.flatten_rows(rows, like=models) for rows in (points, uploads))
    for rows in (old, places, matrix.sum(0)):  # a sum is finite only if all are, and so is then their mean
        require_finite(rows, "the models of clients or groups, which are to be compared,")
    partition = k_means(places, old, seed, restarts)
    clusters = range(int(partition.labels.max()) + 1)
    centres = torch.stack([matrix[partition.labels == cluster].mean(0) for cluster in clusters])
    labels = align(partition.labels, centres, old, previous)
    info = {
        "inertia": partition.inertia,
        "lloyd_iterations": partition.iterations,
        "model_distance": partition.mean_distance,
        "label_agreement": (labels == previous).double().mean(),
        "label_rand_index": adjusted_rand_index(labels, previous),
    }
    return Grouping(labels, info)


def k_means(points: Tensor, start: Tensor, seed: int, restarts: int) -> Partition:
    """The best of Lloyd's runs: one from the rows of `start`, if they differ, and some from k-means++.

    There are as many clusters as `start` has rows, or as there are distinct points if these are fewer; they
    are numbered in the order of their first points.
    Equal points count as one with a weight, so that no rounding can separate them.
    """
    first, copies = _distinct(points)
    embedded = embed(torch.cat([points[first], start]))
    points, start = embedded[: len(first)], embedded[len(first) :]
    distances = torch.pdist(points[copies])
    mean_distance = distances.mean() if len(distances) else distances.sum()
    if len(points) <= len(start):
        return Partition(copies, torch.zeros_like(mean_distance), torch.tensor(0), mean_distance)
    best = _lloyd(points, torch.bincount(copies), start, seed, restarts)
    _, labels = _distinct(torch.as_tensor(best.labels_, dtype=torch.int64)[:, None])
    inertia = torch.as_tensor(best.inertia_, dtype=torch.float64)
    return Partition(labels[copies], inertia, torch.tensor(best.n_iter_), mean_distance)


def _lloyd(points: Tensor, counts: Tensor, start: Tensor, seed: int, restarts: int) -> Any:
    """The fitted k-means of lowest inertia; the run from `start` wins ties."""
    try:
        from sklearn.cluster import KMeans
        from threadpoolctl import threadpool_limits
    except ImportError:
        raise UserError("clustering needs scikit-learn: pip install 'idiolect[cluster]'") from None
    seeding = {"init": "k-means++", "n_init": restarts, "random_state": seed % 2**32}
    starts: list[dict[str, Any]] = [seeding]
    if len(torch.unique(start, dim=0)) == len(start):
        starts.insert(0, {"init": start.numpy(), "n_init": 1})
    # One thread: with more, the order of the sums would depend on the machine.
    with threadpool_limits(limits=1):
        fits = [
            KMeans(len(start), max_iter=MOST_ITERATIONS, tol=0.0, **options).fit(
                points.numpy(), sample_weight=counts.numpy()
            )
            for options in starts
        ]
    return min(fits, key=lambda fit: fit.inertia_)


def embed(points: Tensor) -> Tensor:
    """Points with the same distances, in float64 and in no more dimensions than there are points.

    The triangular factor R of X = RᵀQᵀ is the Cholesky factor of the Gram matrix XXᵀ = RᵀR, found without
    forming it, which would halve the digits. It is made of the factors of some columns of X at a time, which
    stay in the cache: the points are never all in float64.
    """
    few, many = points.shape
    if many <= few:
        return _centred(points)
    blocks = points.split(max(_COLUMNS, 4 * few), dim=1)
    factors = [torch.linalg.qr(_centred(block).T, mode="r").R for block in blocks]
    return torch.linalg.qr(torch.cat(factors), mode="r").R.T


def _centred(points: Tensor) -> Tensor:
    # The mean as rounded as the points are: distances stay, whatever is subtracted.
    return points.to(torch.float64, copy=True).sub_(points.mean(0))


def _distinct(points: Tensor) -> tuple[Tensor, Tensor]:
    """Where each distinct point occurs first, and for every point which distinct point it is."""
    seen: dict[bytes, int] = {}
    copies = torch.tensor([seen.setdefault(row.tobytes(), len(seen)) for row in points.numpy()])
    first = torch.tensor([int((copies == number).nonzero()[0]) for number in range(len(seen))])
    return first, copies


def align(labels: Tensor, centres: Tensor, models: Tensor, previous: Tensor) -> Tensor:
    """New labels, renamed so that each cluster is called after the group model nearest to its centre.

    Hungarian matching with squared distances as cost; of equal ones, the pairs with more common members,
    then the first names for the clusters of the first clients, so that rounding decides nothing.
    """
    try:
        from scipy.optimize import linear_sum_assignment
    except ImportError:
        raise UserError("clustering needs scikit-learn: pip install 'idiolect[cluster]'") from None
    exact = "donot_use_mm_for_euclid_dist"
    cost = torch.cdist(centres.double(), models.double(), compute_mode=exact).square()
    common = torch.bincount(labels * len(models) + previous, minlength=cost.numel()).reshape(cost.shape)
    tie = TIED * (cost.max() if cost.max() > 0 else 1.0)
    seniority = float(len(models)) ** -torch.arange(1.0, 1 + len(cost), dtype=torch.float64)
    later_names = seniority[:, None] * torch.arange(len(models)) / 2  # less than one half in total
    _, names = linear_sum_assignment((cost + tie * (later_names - common) / len(labels)).numpy())
    return torch.as_tensor(names, dtype=torch.int64)[labels]


def adjusted_rand_index(a: Tensor, b: Tensor) -> Tensor:
    """How far two labellings agree, whatever the labels are called: 1 if wholly, 0 as by chance."""

    def pairs(counts: Tensor) -> Tensor:
        return (counts * (counts - 1) / 2).sum()

    a, b = a.unique(return_inverse=True)[1], b.unique(return_inverse=True)[1]
    together = pairs(torch.bincount(a * (b.max() + 1) + b).double())
    in_a, in_b = pairs(torch.bincount(a).double()), pairs(torch.bincount(b).double())
    by_chance = in_a * in_b / pairs(torch.tensor([float(len(a))], dtype=torch.float64)).clamp_min(1)
    most = (in_a + in_b) / 2
    return (together - by_chance) / (most - by_chance) if most > by_chance else torch.ones_like(most)


def best_group(objective: core.Objective, models: Params, rows: core.Batch) -> Tensor:
    """The number of the group model with the least loss on some rows."""
    groups = len(next(iter(models.values())))
    return torch.stack([objective.loss(tree.row(models, k), rows) for k in range(groups)]).argmin()
