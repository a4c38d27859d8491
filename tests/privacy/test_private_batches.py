"""Batches of private runs: Binomial sizes, equal chances, independent of each other."""

import torch
from scipy.stats import binom

from idiolect.core import rng
from idiolect.data.federation import Federation
from idiolect.engines.private_batches import CUT, SHUFFLE_ROUNDS, Draws, PrivateBatches
from idiolect.testing.problems import uneven_classification

CALLS = torch.arange(4000)


def batches(batch_size: int | None = 4) -> PrivateBatches:
    return PrivateBatches(uneven_classification(), seed=3, batch_size=batch_size)


def members(drawn: PrivateBatches, client: int, round_number: int = 0) -> torch.Tensor:
    """Which of a client's rows are in each call, bool[calls, rows]."""
    ids, train = torch.full_like(CALLS, client), drawn.federation.train
    rows = drawn.draw(ids, round_number, CALLS, int(drawn.widths[client]))
    return (rows[:, :, None] == train.of(client)).any(1)


def test_every_row_has_the_same_chance_and_pairs_are_independent() -> None:
    drawn = batches()
    client = int(drawn.federation.train.sizes.argmax())
    taken = members(drawn, client).double()
    rate = float(drawn.rates[client])
    assert 0 < rate < 1
    error = 5 * (rate * (1 - rate) / len(CALLS)) ** 0.5
    assert (taken.mean(0) - rate).abs().max() < error
    pairs = taken.T @ taken / len(CALLS)
    pairs.fill_diagonal_(rate**2)
    assert (pairs - rate**2).abs().max() < 5 * (rate**2 / len(CALLS)) ** 0.5
    sizes = taken.sum(1)
    rows = taken.shape[1]
    assert abs(sizes.var() - rows * rate * (1 - rate)) < 0.1 * rows * rate * (1 - rate)
    following = (taken[1:] * taken[:-1]).mean(0)  # calls are drawn anew
    assert (following - rate**2).abs().max() < 5 * (rate**2 / len(CALLS)) ** 0.5


def test_no_row_is_twice_in_a_batch_and_rounds_differ() -> None:
    drawn = batches()
    rows = drawn.draw(torch.ones_like(CALLS), 0, CALLS, int(drawn.widths[1]))
    for row in rows[:200]:
        present = row[row >= 0]
        assert len(present.unique()) == len(present)
    assert not torch.equal(members(drawn, 1), members(drawn, 1, round_number=1))


def test_a_client_whose_rows_fit_into_a_batch_has_all_of_them_always() -> None:
    drawn = batches(batch_size=None)
    for client in range(len(drawn.federation)):
        assert members(drawn, client)[:50].all()
    assert (drawn.rates == 1).all()
    assert (drawn.cuts == 0).all()


def test_rows_that_are_not_there_have_no_weight() -> None:
    drawn = batches()
    ids = torch.tensor([0, 1, 2])
    width = int(drawn.widths.max())
    rows = drawn.draw(ids, 0, torch.tensor(7), width)
    batch = drawn.gather(rows, drawn.weights(ids, width), drawn.keys(ids, 0, torch.tensor(7)))
    expected = (rows >= 0) / drawn.batch_sizes[ids][:, None]
    assert torch.allclose(batch.weights, expected.to(batch.weights.dtype))


def test_room_and_what_it_leaves_out_are_those_of_the_binomial() -> None:
    sizes = torch.tensor([1, 7, 33, 250, 5000])
    for batch_size in (1, 5, 20, 128):
        means = sizes.clamp_max(batch_size)
        draws = Draws.of(sizes, means)
        for place, (n, b) in enumerate(zip(sizes.tolist(), means.tolist(), strict=True)):
            width, cut = int(draws.widths[place]), float(draws.cuts[place])
            assert abs(cut - binom.sf(width, n, b / n)) <= 1e-6 * cut
            assert cut <= CUT
            assert width == 0 or binom.sf(width - 1, n, b / n) > CUT


def test_a_part_of_the_federation_draws_the_same() -> None:
    from idiolect.engines.local_view import partial_view

    whole = batches()
    part = PrivateBatches(partial_view(whole.federation, [2, 3]), seed=3, batch_size=4)
    width = int(whole.widths[3])
    calls, ids = CALLS[:20], torch.full((20,), 3)
    everywhere, here = whole.draw(ids, 1, calls, width), part.draw(ids, 1, calls, width)
    assert torch.equal(everywhere >= 0, here >= 0)
    present = everywhere >= 0
    inputs: Federation = whole.federation
    assert torch.equal(
        inputs.inputs[everywhere[present]],  # type: ignore[index]
        part.federation.inputs[here[present]],  # type: ignore[index]
    )


def test_shuffles_have_so_many_rounds_that_no_row_is_drawn_too_often() -> None:
    """Of two rows one stays in its place with the probability 1/2 + 2^-(rounds + 1): a round swaps in 1/4."""
    two, keys = torch.tensor(2), rng.key(5, "places", torch.arange(40_000))
    for rounds in (1, 2, 3, 4):
        stays = (rng.permute(torch.zeros_like(keys), two, keys, rounds) == 0).double().mean()
        assert abs(float(stays) - 0.5 - 2.0 ** -(rounds + 1)) < 5 * 0.5 / len(keys) ** 0.5
    assert 2.0**-SHUFFLE_ROUNDS < CUT
