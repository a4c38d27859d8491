import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from idiolect.data.splits import split_clients
from idiolect.errors import UserError


@given(
    sizes=st.lists(st.integers(3, 40), min_size=1, max_size=6),
    cut=st.tuples(st.integers(1, 8), st.integers(1, 8), st.integers(1, 8)),
    seed=st.integers(0, 2**40),
)
def test_parts_are_a_partition_of_each_clients_rows(sizes, cut, seed):
    fractions = tuple(c / sum(cut) for c in cut)
    rows = list(torch.split(torch.arange(sum(sizes)) * 3, sizes))
    names = [f"c{i}" for i in range(len(sizes))]
    split = split_clients(rows, names, seed=seed, fractions=fractions)
    for client, own in enumerate(rows):
        parts = [part.of(client) for part in (split.train, split.validation, split.test)]
        assert torch.equal(torch.cat(parts).sort().values, own)
        for part, fraction in zip(parts, fractions, strict=True):
            assert len(part) >= 1
            assert abs(len(part) - fraction * len(own)) < 2


def test_a_clients_split_depends_on_seed_and_name_alone():
    rows = [torch.arange(0, 30), torch.arange(30, 70)]
    both = split_clients(rows, ["north", "south"], seed=5)
    alone = split_clients(rows[1:], ["south"], seed=5)
    assert torch.equal(both.train.of(1), alone.train.of(0))
    assert not torch.equal(alone.train.of(0), split_clients(rows[1:], ["south"], seed=6).train.of(0))
    assert not torch.equal(alone.train.of(0), split_clients(rows[1:], ["west"], seed=5).train.of(0))


def test_every_row_has_the_same_chance_to_be_trained_on():
    clients, size = 500, 10
    rows = list(torch.split(torch.arange(clients * size), size))
    split = split_clients(rows, [f"c{i}" for i in range(clients)], seed=1)
    counts = (split.train.index % size).bincount(minlength=size)
    # hypergeometric, standard deviation √(500 · 0.6 · 0.4) = 11
    assert (counts - 0.6 * clients).abs().max() < 4.5 * 11
    together = torch.zeros(size, size)
    for client in range(clients):
        chosen = split.train.of(client) % size
        together[chosen[:, None], chosen] += 1
    pairs = together[~torch.eye(size, dtype=torch.bool)] / clients
    assert (pairs - 6 / 10 * 5 / 9).abs().max() < 4.5 * 0.5 / clients**0.5  # neighbours are not favoured


def test_unshuffled_keeps_the_order_of_time():
    split = split_clients([torch.arange(10)], ["a"], seed=0, fractions=(0.5, 0.2, 0.3), shuffle=False)
    assert split.train.of(0).tolist() == [0, 1, 2, 3, 4]
    assert split.validation.of(0).tolist() == [5, 6]
    assert split.test.of(0).tolist() == [7, 8, 9]


def test_too_few_rows_are_refused_by_name_or_dropped():
    rows = [torch.arange(10), torch.arange(10, 12), torch.arange(12, 20)]
    with pytest.raises(UserError, match=r"client 'tiny' has 2 rows but at least 3"):
        split_clients(rows, ["a", "tiny", "c"], seed=0)
    split = split_clients(rows, ["a", "tiny", "c"], seed=0, too_few="drop")
    assert split.kept == (0, 2)
    assert split.train.sizes.tolist() == [6, 6]
    with pytest.raises(UserError, match="at least 9"):
        split_clients(rows, ["a", "tiny", "c"], seed=0, minimum_rows=9)
    with pytest.raises(UserError, match="no client"):
        split_clients(rows, ["a", "tiny", "c"], seed=0, minimum_rows=99, too_few="drop")


def test_too_few_rows_can_all_be_for_training():
    rows = [torch.arange(10), torch.arange(10, 12), torch.arange(12, 20)]
    split = split_clients(rows, ["a", "tiny", "c"], seed=0, too_few="train")
    assert split.kept == (0, 1, 2)
    assert sorted(split.train.of(1).tolist()) == [10, 11]
    sizes = [part.sizes.tolist() for part in (split.train, split.validation, split.test)]
    assert sizes == [[6, 2, 6], [2, 0, 1], [2, 0, 1]]


@pytest.mark.parametrize(
    "fractions", [(0.5, 0.2, 0.2), (0.0, 0.5, 0.5), (1.2, -0.2, 0.0), (float("nan"), 0.5, 0.5), (0.5, 0.5)]
)
def test_fractions_that_are_not_shares_are_refused(fractions):
    with pytest.raises(UserError, match="fractions="):
        split_clients([torch.arange(10)], ["a"], seed=0, fractions=fractions)
