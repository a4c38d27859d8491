"""Who is computed together: chunks of clients with different work and different amounts of data."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from idiolect.engines.chunks import ROW_BYTES, padded_size, padded_width, similar_size, similar_work, stages

AMOUNT, ROW_SIZE = st.integers(1, 60), st.integers(1, 2**23)
AMOUNTS = st.lists(AMOUNT, min_size=1, max_size=70).map(torch.tensor)
LARGE_MODEL = 2**20


@given(AMOUNTS, st.sampled_from([1, 2**14, LARGE_MODEL]))
def test_a_client_is_at_work_in_each_of_its_steps_and_in_no_other(steps: Tensor, client_bytes: int) -> None:
    steps = steps.sort(descending=True).values
    done = torch.zeros_like(steps)
    plan = stages(steps, client_bytes)
    for stage, following in zip(plan, [*plan[1:], None], strict=True):
        done[: stage.active] += len(stage.steps)
        assert stage.staying == (following.active if following else 0)
        assert stage.active <= stage.stack
    assert done.equal(steps)


@given(AMOUNTS)
def test_stacks_of_large_models_follow_the_clients_at_work_in_few_sizes(steps: Tensor) -> None:
    plan = stages(steps.sort(descending=True).values, LARGE_MODEL)
    assert all(stage.stack <= 2 * stage.active for stage in plan)
    assert len({stage.stack for stage in plan}) <= len(steps).bit_length() + 1


@given(AMOUNTS)
def test_stacks_of_small_models_stay_as_they_are(steps: Tensor) -> None:
    assert {stage.stack for stage in stages(steps.sort(descending=True).values, 1)} == {len(steps)}


@given(st.lists(st.tuples(AMOUNT, AMOUNT), min_size=1, max_size=70), st.integers(1, 20), ROW_SIZE)
def test_chunks_hold_every_client_once_in_order(
    clients: list[tuple[int, int]], most: int, row_bytes: int
) -> None:
    steps, sizes = torch.tensor(clients).unbind(1)
    by_work = list(similar_work(steps, sizes, most, row_bytes))
    by_size = list(similar_size(sizes, most, row_bytes))
    for chunks in (by_work, by_size):
        assert torch.cat(chunks).sort().values.equal(torch.arange(len(clients)))
        assert max(map(len, chunks)) <= most
    in_order = [clients[place] for place in torch.cat(by_work).tolist()]
    assert in_order == sorted(clients, reverse=True)
    assert sizes[torch.cat(by_size)].equal(sizes.sort(descending=True).values)


@given(st.lists(st.tuples(AMOUNT, AMOUNT), min_size=1, max_size=70), ROW_SIZE)
def test_the_rows_of_a_chunk_are_bounded(clients: list[tuple[int, int]], row_bytes: int) -> None:
    steps, sizes = torch.tensor(clients).unbind(1)
    for chunks in (similar_work(steps, sizes, 1000, row_bytes), similar_size(sizes, 1000, row_bytes)):
        for chunk in chunks:
            assert len(chunk) == 1 or len(chunk) * int(sizes[chunk].max()) * row_bytes <= ROW_BYTES


@pytest.mark.parametrize(("clients", "most"), [(100, 20), (30, 20), (31, 20), (7, 3), (1, 5)])
def test_equal_clients_are_divided_evenly(clients: int, most: int) -> None:
    alike = torch.full((clients,), 20)
    sizes = [len(chunk) for chunk in similar_work(alike, alike, most, 1)]
    assert len(sizes) == -(-clients // most)
    assert max(sizes) - min(sizes) <= 1


def test_batches_have_few_widths_and_their_own_size_where_it_is_common() -> None:
    assert padded_width(torch.tensor([3, 20]), batch_size=20) == 20
    for widest in range(1, 5000):
        assert widest <= padded_width(torch.tensor([1, widest]), None) <= 1.25 * widest
    assert len({padded_width(torch.tensor([widest]), None) for widest in range(1, 5000)}) <= 50


@pytest.mark.parametrize("count", [1, 2, 31, 32, 33, 63, 100, 127, 129, 1000])
def test_padding_wastes_little_and_leaves_few_sizes(count: int) -> None:
    assert count <= padded_size(count) <= count * (17 / 16 if count >= 32 else 6 / 5)
    assert len({padded_size(n) for n in range(1, 32)}) <= 16
    assert len({padded_size(n) for n in range(1, 257)}) <= 80
