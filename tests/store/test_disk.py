"""The disk store: the same states as in memory, and exactly a checkpoint's states after a crash."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from idiolect.core import tree
from idiolect.errors import UserError
from idiolect.store.disk import DiskStore
from idiolect.store.memory import MemoryStore

CLIENTS = 6


class State(NamedTuple):
    w: dict[str, Tensor]
    seen: Tensor
    flag: Tensor
    nothing: tuple[()]


def states(ids: list[int], version: int) -> State:
    """Different for every client and version, of several types."""
    stamp = torch.tensor(ids) + 100 * version
    w = {"a": stamp[:, None, None] * torch.arange(6.0).reshape(2, 3), "b": stamp.double()}
    return State(w, stamp, stamp % 2 == 0, ())


def assert_same(a: Any, b: Any) -> None:
    for x, y in zip(tree.leaves(a), tree.leaves(b), strict=True):
        assert x.dtype == y.dtype
        assert torch.equal(x, y)


def content(store: Any) -> dict[int, list[Tensor]]:
    ids = torch.arange(CLIENTS)
    ids = ids[store.known(ids)]
    if not len(ids):
        return {}
    return {int(i): tree.leaves(tree.row(store.get(ids), place)) for place, i in enumerate(ids)}


def assert_same_content(store: Any, expected: dict[int, list[Tensor]]) -> None:
    actual = content(store)
    assert actual.keys() == expected.keys()
    assert_same(list(actual.values()), list(expected.values()))


def test_it_keeps_what_memory_keeps(tmp_path: Path) -> None:
    disk, memory = DiskStore(CLIENTS, tmp_path), MemoryStore(CLIENTS)
    for version, ids in enumerate([[0, 3], [3, 5], [1, 0, 4], [3]]):
        for store in (disk, memory):
            store.put(torch.tensor(ids), states(ids, version))
    chosen = torch.tensor([5, 0, 3])
    assert_same(disk.get(chosen), memory.get(chosen))
    assert disk.known(torch.arange(CLIENTS)).tolist() == [True, True, False, True, True, True]


# What happens to a store: clients get states, or a checkpoint is made.
events = st.lists(
    st.one_of(
        st.lists(st.integers(0, CLIENTS - 1), min_size=1, max_size=4, unique=True),
        st.just("checkpoint"),
    ),
    max_size=25,
)


@settings(max_examples=40, deadline=None)
@given(before=events, after=events)
def test_after_a_crash_at_any_moment_the_last_checkpoint_is_there(
    tmp_path_factory: pytest.TempPathFactory, before: list[Any], after: list[Any]
) -> None:
    """The last checkpoint, and the one before it, in case the last never got its name."""
    folder = tmp_path_factory.mktemp("store")
    store = DiskStore(CLIENTS, folder)
    saved: list[tuple[Path, dict[int, list[Tensor]]]] = []
    for version, event in enumerate([*before, "checkpoint", *after]):
        if event == "checkpoint":
            checkpoint = folder / str(version)
            checkpoint.mkdir()
            store.save(checkpoint)
            saved.append((checkpoint, content(store)))
        else:
            store.put(torch.tensor(event), states(event, version))
    for checkpoint, expected in saved[-2:]:
        restored = DiskStore(CLIENTS, folder)  # as a new process would
        restored.load(checkpoint, states([0], 0))
        assert_same_content(restored, expected)


def test_a_restored_store_does_not_overwrite_its_checkpoint(tmp_path: Path) -> None:
    store = DiskStore(CLIENTS, tmp_path)
    store.put(torch.tensor([0, 1]), states([0, 1], 1))
    (tmp_path / "c").mkdir()
    store.save(tmp_path / "c")
    expected = content(store)
    for _ in range(2):
        store = DiskStore(CLIENTS, tmp_path)
        store.load(tmp_path / "c", states([0], 0))
        assert_same_content(store, expected)
        for version in range(5):
            store.put(torch.tensor([1, 0]), states([1, 0], 7 + version))


def test_the_file_stays_bounded(tmp_path: Path) -> None:
    """Slots are used again: at most the present states, two checkpoints and one write in progress."""
    store = DiskStore(CLIENTS, tmp_path)
    everybody = list(range(CLIENTS))
    row = 6 * 4 + 8 + 8 + 1
    for version in range(40):
        store.put(torch.tensor(everybody), states(everybody, version))
        if version % 3 == 0:
            store.save(tmp_path)
    assert store.path.stat().st_size <= (3 * CLIENTS + 1) * row


def test_rows_that_do_not_belong_to_the_checkpoint_are_refused(tmp_path: Path) -> None:
    store = DiskStore(CLIENTS, tmp_path / "a")
    store.put(torch.tensor([0, 1]), states([0, 1], 1))
    store.save(tmp_path)
    with pytest.raises(UserError, match="does not hold the client states of the checkpoint"):
        DiskStore(CLIENTS, tmp_path / "b").load(tmp_path, states([0], 0))


def test_a_state_that_changes_its_type_is_refused(tmp_path: Path) -> None:
    store = DiskStore(CLIENTS, tmp_path)
    store.put(torch.tensor([0]), states([0], 1))
    changed = states([1], 1)._replace(seen=torch.tensor([1.0]))
    with pytest.raises(TypeError, match=r"changed from torch\.int64"):
        store.put(torch.tensor([1]), changed)


class Stateless(NamedTuple):
    nothing: tuple[()]


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_states_without_tensors_are_kept_too(kind: str, tmp_path: Path) -> None:
    """Who has a state is remembered although there is nothing to write of it."""

    def fresh() -> Any:
        return MemoryStore(CLIENTS) if kind == "memory" else DiskStore(CLIENTS, tmp_path / "states")

    before, ids = fresh(), torch.tensor([1, 4])
    before.put(ids, Stateless(()))
    (tmp_path / "checkpoint").mkdir()
    before.save(tmp_path / "checkpoint")
    after = fresh()
    after.load(tmp_path / "checkpoint", Stateless(()))
    for store in (before, after):
        assert store.known(torch.arange(CLIENTS)).tolist() == [False, True, False, False, True, False]
        assert store.get(ids) == Stateless(())


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_a_store_in_which_nobody_has_a_state_is_saved_and_read(kind: str, tmp_path: Path) -> None:
    def fresh() -> Any:
        return MemoryStore(CLIENTS) if kind == "memory" else DiskStore(CLIENTS, tmp_path / "states")

    before = fresh()
    before.put(torch.tensor([], dtype=torch.int64), states([], 0))
    (tmp_path / "checkpoint").mkdir()
    before.save(tmp_path / "checkpoint")
    after = fresh()
    after.load(tmp_path / "checkpoint", states([0], 0))
    assert not after.known(torch.arange(CLIENTS)).any()
    after.put(torch.tensor([2]), states([2], 1))
    assert_same(after.get(torch.tensor([2])), states([2], 1))


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_states_are_kept_by_name(kind: str, tmp_path: Path) -> None:
    store: Any = MemoryStore(CLIENTS) if kind == "memory" else DiskStore(CLIENTS, tmp_path)
    store.put(torch.tensor([0]), states([0], 1))
    later = states([1], 2)
    store.put(torch.tensor([1]), later._replace(w=dict(reversed(later.w.items()))))
    assert_same(store.get(torch.tensor([1])), later)
    with pytest.raises(ValueError, match="differ in: w/a, w/c"):
        store.put(torch.tensor([2]), later._replace(w={"b": later.w["b"], "c": later.w["a"]}))
