"""k-means, the names of its clusters and the agreement of labellings, by what defines them."""

from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score
from torch import Tensor

from idiolect.methods.groups import adjusted_rand_index, align, embed, k_means


def points_of(seed: int, count: int, dimension: int, copies: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(count, dimension, generator=generator, dtype=torch.float64)
    twins = torch.randint(count, (copies,), generator=generator)
    return torch.cat([points, points[twins]])


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 12),
    copies=st.integers(0, 4),
    groups=st.integers(1, 5),
    dimension=st.sampled_from([2, 40]),
)
def test_k_means_ends_at_a_fixed_point_of_lloyd(
    seed: int, count: int, copies: int, groups: int, dimension: int
) -> None:
    points = points_of(seed, count, dimension, copies)
    start = points_of(seed + 1, groups, dimension)
    found = k_means(points, start, seed, restarts=3)
    clusters = int(found.labels.max()) + 1
    assert clusters == min(groups, count)
    centres = torch.stack([points[found.labels == c].mean(0) for c in range(clusters)])
    distances = torch.cdist(points, centres).square()
    own = distances.gather(1, found.labels[:, None])[:, 0]
    assert (own <= distances.min(1).values + 1e-9).all()
    assert torch.isclose(found.inertia, own.sum(), atol=1e-9)
    same = torch.cdist(points, points) == 0
    assert (found.labels[:, None] == found.labels)[same].all()
    expected = torch.pdist(points).mean() if len(points) > 1 else torch.tensor(0.0).double()
    assert torch.isclose(found.mean_distance, expected, atol=1e-9)


def test_k_means_prefers_the_better_of_warm_start_and_seeding() -> None:
    """Two far pairs: a warm start that splits one of them is a fixed point, yet not the best one."""
    points = torch.tensor([[0.0, 0.0], [0.0, 1.0], [10.0, 0.0], [10.0, 1.0]]).double()
    wide = torch.tensor([[5.0, 0.0], [5.0, 1.0]]).double()  # Lloyd stays here, with inertia 100
    found = k_means(points, wide, seed=0, restarts=5)
    assert found.inertia == pytest.approx(1.0)
    assert found.labels[0] == found.labels[1] != found.labels[2]


def test_k_means_starts_at_the_group_models_where_they_differ() -> None:
    """From the exact centres Lloyd needs no move: at most two iterations, also among many points."""
    points = torch.cat([points_of(3, 40, 2) + 30 * k for k in range(4)])
    centres = torch.stack([points[40 * k : 40 * (k + 1)].mean(0) for k in range(4)])
    assert k_means(points, centres, seed=1, restarts=1).iterations <= 2


@given(seed=st.integers(0, 10**6), count=st.integers(2, 8))
def test_embedding_keeps_all_distances(seed: int, count: int) -> None:
    points = points_of(seed, count, 50)
    small = embed(points)
    assert small.shape == (count, count)
    assert torch.allclose(torch.pdist(small), torch.pdist(points), rtol=1e-12)


def test_embedding_goes_through_many_columns_in_blocks() -> None:
    """The last block has fewer columns than there are points."""
    points = points_of(3, 30, 2 * 8192 + 7) * torch.linspace(0.1, 3, 2 * 8192 + 7)
    small = embed(points)
    assert small.shape == (30, 30)
    assert torch.allclose(torch.pdist(small), torch.pdist(points), rtol=1e-12)


def test_embedding_separates_points_that_the_gram_matrix_could_not() -> None:
    base = points_of(0, 1, 50)
    points = torch.cat([base, base + 1e-11 * points_of(1, 1, 50), base + points_of(2, 1, 50)])
    assert torch.allclose(torch.pdist(embed(points))[0], torch.pdist(points)[0], rtol=1e-3)


@st.composite
def labelled(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Labels in which every cluster occurs, their centres, group models, and the labels before."""
    groups = draw(st.integers(1, 4))
    clusters = draw(st.integers(1, groups))
    extra = draw(st.lists(st.integers(0, clusters - 1), max_size=8))
    labels = torch.tensor([*range(clusters), *extra])
    previous = torch.tensor(
        draw(st.lists(st.integers(0, groups - 1), min_size=len(labels), max_size=len(labels)))
    )
    seed = draw(st.integers(0, 10**6))
    return labels, points_of(seed, clusters, 3), points_of(seed + 1, groups, 3), previous


@settings(max_examples=60, deadline=None)
@given(labelled())
def test_alignment_is_the_cheapest_of_all_renamings(case: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
    labels, centres, models, previous = case
    renamed = align(labels, centres, models, previous)
    cost = torch.cdist(centres, models).square()
    clusters = len(centres)
    names = [int(renamed[labels == c][0]) for c in range(clusters)]
    assert len(set(names)) == clusters
    assert all((renamed[labels == c] == names[c]).all() for c in range(clusters))
    cheapest = min(
        sum(float(cost[c, name]) for c, name in enumerate(choice))
        for choice in permutations(range(len(models)), clusters)
    )
    assert sum(float(cost[c, name]) for c, name in enumerate(names)) == pytest.approx(cheapest, rel=1e-6)


@settings(max_examples=60, deadline=None)
@given(labelled(), st.randoms(use_true_random=False))
def test_km8_alignment_forgets_what_the_clusters_were_called(case, random) -> None:
    labels, centres, models, previous = case
    order = list(range(len(centres)))
    random.shuffle(order)
    shuffled = torch.tensor(order)
    back = torch.empty_like(shuffled)
    back[shuffled] = torch.arange(len(order))
    renamed = align(back[labels], centres[shuffled], models, previous)
    assert torch.equal(renamed, align(labels, centres, models, previous))


def test_ties_of_the_alignment_go_to_the_larger_overlap() -> None:
    labels = torch.tensor([0, 0, 0, 1, 1, 2])
    previous = torch.tensor([2, 2, 1, 0, 0, 1])
    equal = torch.zeros(3, 4).double()
    assert torch.equal(align(labels, points_of(5, 3, 4), equal, previous), torch.tensor([2, 2, 2, 0, 0, 1]))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=2, max_size=30))
def test_adjusted_rand_index_is_scikit_learns(pairs: list[tuple[int, int]]) -> None:
    a, b = torch.tensor(pairs).unbind(1)
    assert adjusted_rand_index(a, b) == pytest.approx(adjusted_rand_score(a.numpy(), b.numpy()), abs=1e-12)
    assert adjusted_rand_index(a, 7 - a) == 1
