"""Who is computed together: chunks of clients with different work and different amounts of data."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from idiolect.engines.chunks import ROW_BYTES, padded_size, similar_size, similar_work, stages

AMOUNTS = st.lists(st.integers(1, 60), min_size=1, max_size=70).map(torch.tensor)
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


@given(AMOUNTS, st.integers(1, 20), st.integers(1, 2**23))
def test_chunks_hold_every_client_once(amounts: Tensor, most: int, row_bytes: int) -> None:
    for places in (list(similar_work(amounts, most)), list(similar_size(amounts, most, row_bytes))):
        assert torch.cat(places).sort().values.equal(torch.arange(len(amounts)))
        assert max(map(len, places)) <= most
        for chunk in places:
            assert (amounts[chunk].diff() <= 0).all()


@given(AMOUNTS, st.integers(1, 2**23))
def test_rows_that_are_looked_at_together_are_bounded(sizes: Tensor, row_bytes: int) -> None:
    for chunk in similar_size(sizes, 1000, row_bytes):
        assert len(chunk) == 1 or len(chunk) * int(sizes[chunk].max()) * row_bytes <= ROW_BYTES


@pytest.mark.parametrize("count", [1, 2, 31, 32, 33, 63, 100, 127, 129, 1000])
def test_padding_wastes_little_and_leaves_few_sizes(count: int) -> None:
    assert count <= padded_size(count) <= count * (17 / 16 if count >= 32 else 6 / 5)
    assert len({padded_size(n) for n in range(1, 32)}) <= 16
    assert len({padded_size(n) for n in range(1, 257)}) <= 80
