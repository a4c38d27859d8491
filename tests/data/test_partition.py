import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from idiolect.data import partition
from idiolect.errors import UserError


def ten_classes(per_class=600, seed=1):
    labels = torch.arange(10).repeat_interleave(per_class)
    return labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))]


def label_counts(labels, dealt, classes=10):
    return np.array([np.bincount(labels[rows].numpy(), minlength=classes) for rows in dealt])


SCHEMES = ["iid", "shards", "slices", "classes", "unequal", "dirichlet"]


@given(
    scheme=st.sampled_from(SCHEMES),
    sizes=st.lists(st.integers(60, 90), min_size=3, max_size=6),
    clients=st.integers(2, 15),
    seed=st.integers(0, 2**40),
)
def test_no_row_is_dealt_twice_and_every_client_has_rows(scheme, sizes, clients, seed):
    labels = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))

    def dealt():
        return partition.deal(labels, clients, seed=seed, partition=scheme, per_client=2, concentration=0.3)

    hands = dealt()
    assert len(hands) == clients
    assert min(map(len, hands)) > 0
    rows = torch.cat(hands)
    assert len(rows.unique()) == len(rows)
    assert int(rows.max()) < len(labels)
    assert all(torch.equal(a, b) for a, b in zip(hands, dealt(), strict=True))
    if scheme in ("iid", "dirichlet"):
        assert {len(hand) for hand in hands} == {len(labels) // clients}
    if scheme in ("shards", "slices"):
        assert {len(hand) for hand in hands} == {2 * (len(labels) // (2 * clients))}
    if scheme == "unequal":
        owned = {(i + j) % len(sizes) for i in range(clients) for j in range(2)}
        assert len(rows) == sum(sizes[c] for c in owned)


def test_slices_of_two_hide_five_clusters_among_100_clients():
    labels = ten_classes()
    counts = label_counts(labels, partition.slices(labels, 100, 2))
    for client in range(100):
        expected = np.zeros(10, dtype=int)
        expected[[client // 20, 5 + client // 20]] = 30
        assert (counts[client] == expected).all()


def test_shards_hold_whole_shards_of_sorted_labels():
    labels = ten_classes()
    counts = label_counts(labels, partition.shards(labels, 20, 3, seed=2))  # 60 shards of 100, 6 a class
    assert (counts % 100 == 0).all()
    assert (counts.sum(1) == 300).all()
    assert (counts.sum(0) == 600).all()
    other = label_counts(labels, partition.shards(labels, 20, 3, seed=3))
    assert not (counts == other).all()


@pytest.mark.parametrize(("clients", "per_client"), [(20, 1), (33, 2), (7, 5), (10, 10)])
def test_exact_classes_are_balanced(clients, per_client):
    labels = ten_classes()
    counts = label_counts(labels, partition.exact_classes(labels, clients, per_client, seed=4))
    assert ((counts > 0).sum(1) == per_client).all()
    assert len(np.unique(counts[counts > 0])) == 1
    owners = (counts > 0).sum(0)
    assert owners.max() - owners.min() <= 1
    assert counts.max() == 600 // owners.max()


def test_three_of_ten_unequal():
    labels = ten_classes(7000)
    counts = label_counts(labels, partition.unequal_classes(labels, 40, 3, seed=0))
    for client in range(40):
        assert set(np.flatnonzero(counts[client])) == {(client + j) % 10 for j in range(3)}
    assert (counts.sum(0) == 7000).all()
    sizes = counts.sum(1)
    assert sizes.max() > 4 * sizes.min()
    assert counts.max() < 3500  # the first cut is below half of the class


def test_dirichlet_shares_have_the_moments_of_the_distribution():
    labels = ten_classes(4000)
    for concentration in (0.1, 1.0, 10.0):
        counts = label_counts(labels, partition.dirichlet(labels, 400, concentration, seed=3))
        shares = counts / counts.sum(1, keepdims=True)
        # each share is Beta(a, 9a) then sampled 100 times; classes run out late, hence the loose bound
        beta_variance = 0.1 * 0.9 / (10 * concentration + 1)
        variance = beta_variance + (0.1 - 0.01 - beta_variance) / 100
        assert shares.var(axis=0).mean() == pytest.approx(variance, rel=0.2)


def test_iid_is_close_to_the_common_mixture():
    labels = ten_classes()
    counts = label_counts(labels, partition.iid(labels, 10, seed=0))
    assert (abs(counts - 60) < 35).all()  # about 4.8 standard deviations


def test_by_id_deals_every_row_to_its_owner():
    names, dealt = partition.by_id(["b", "a", "b", "c", "a", "b"])
    assert names == ["a", "b", "c"]
    assert [rows.tolist() for rows in dealt] == [[1, 4], [0, 2, 5], [3]]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"partition": "iid", "clients": 0}, "clients=0"),
        ({"partition": "iid", "clients": 99999}, "clients=99999"),
        ({"partition": "shards", "clients": 10, "per_client": 0}, "per_client=0"),
        ({"partition": "classes", "clients": 10, "per_client": 11}, "per_client=11"),
        ({"partition": "classes", "clients": 9999, "per_client": 1}, "clients=9999"),
        ({"partition": "unequal", "clients": 5000, "per_client": 2}, "fewer clients"),
        ({"partition": "dirichlet", "clients": 10, "concentration": 0.0}, "concentration=0.0"),
    ],
)
def test_impossible_partitions_are_refused(options, field):
    with pytest.raises(UserError, match=field):
        partition.deal(ten_classes(60), seed=0, **options)
