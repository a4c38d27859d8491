"""Trees: arithmetic leaf by leaf, and a name for every leaf."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from idiolect.core import tree


class State(NamedTuple):
    w: dict[str, Tensor]
    alpha: Tensor
    nothing: tuple[()]


def state(scale: float) -> State:
    return State({"b": torch.tensor([scale, 2.0]), "a": torch.full((2, 3), scale)}, torch.tensor(scale), ())


def test_arithmetic() -> None:
    a, b = state(3.0), state(5.0)
    assert torch.equal(tree.add(a, b).w["a"], torch.full((2, 3), 8.0))
    assert tree.subtract(a, b).alpha == -2
    assert tree.step(a, 0.5, b).alpha == 0.5
    assert tree.interpolate(a, b, 0.25).alpha == pytest.approx(0.25 * 3 + 0.75 * 5)
    assert tree.dot(a, b) == pytest.approx(6 * 15 + 15 + 4 + 15)


def test_names_and_back() -> None:
    named = tree.to_named(state(3.0))
    assert list(named) == ["w/b", "w/a", "alpha"]
    back = tree.from_named(named, state(0.0))
    assert isinstance(back, State)
    assert torch.equal(back.w["b"], torch.tensor([3.0, 2.0]))
    assert back.nothing == ()


def test_from_named_refuses_other_fields() -> None:
    named = tree.to_named(state(3.0))
    named["beta"] = named.pop("alpha")
    with pytest.raises(ValueError, match="alpha, beta"):
        tree.from_named(named, state(0.0))


def test_only_tensors_have_a_place_in_a_state() -> None:
    with pytest.raises(TypeError, match="w/a is a float"):
        tree.to_named({"w": {"a": 1.0}})


def test_flatten_and_back_for_one_and_for_many() -> None:
    one = state(3.0)
    assert torch.equal(tree.flatten(tree.unflatten(tree.flatten(one), one)), tree.flatten(one))
    many = tree.stack([state(1.0), state(2.0)])
    rows = tree.flatten_rows(many)
    assert torch.equal(rows[1], tree.flatten(state(2.0)))
    assert torch.equal(tree.unflatten(rows, one).w["a"], many.w["a"])


def test_weighted_sum_is_over_the_first_axis() -> None:
    many = tree.stack([state(1.0), state(2.0), state(4.0)])
    total = tree.weighted_sum(many, torch.tensor([0.5, 0.25, 2.0], dtype=torch.float64))
    assert total.alpha == pytest.approx(0.5 + 0.5 + 8)


def test_where_broadcasts_its_condition() -> None:
    a, b = tree.stack([state(1.0), state(2.0)]), tree.stack([state(3.0), state(4.0)])
    chosen = tree.where(torch.tensor([True, False]), a, b)
    assert chosen.alpha.tolist() == [1.0, 4.0]
    assert torch.equal(chosen.w["a"][1], torch.full((2, 3), 4.0))


def test_bits_are_those_of_the_elements() -> None:
    assert tree.count_bits(state(1.0)) == 32 * (2 + 6 + 1)
    assert tree.count_bits({"w": torch.zeros(3, dtype=torch.float16)}) == 48


def shuffled(like: State) -> State:
    """The same state with its dict the other way round."""
    return like._replace(w=dict(reversed(like.w.items())))


@pytest.mark.parametrize(
    "combined",
    [
        tree.add,
        tree.subtract,
        lambda a, b: tree.step(a, 0.5, b),
        lambda a, b: tree.add_multiple(a, torch.tensor(0.5), b),
        lambda a, b: tree.interpolate(a, b, 0.25),
        lambda a, b: tree.pull(a, b, 0.25),
        lambda a, b: tree.where(torch.tensor(True), a, b),
        lambda a, b: tree.where(torch.tensor(False), a, b),
        lambda a, b: tree.stack([a, b]),
        lambda a, b: tree.concatenate([tree.stack([a]), tree.stack([b])]),
        tree.dot,
        lambda a, b: tree.flatten(b, like=a),
        lambda a, b: tree.flatten_rows(tree.stack([b]), like=a),
        lambda a, b: tree.unflatten(tree.flatten(b, like=a), a),
        lambda a, b: tree.from_named(tree.to_named(b), a),
        lambda a, b: tree.leaves(b, like=a),
    ],
)
def test_two_trees_are_combined_by_name_and_others_refused(combined: Callable[[State, State], Any]) -> None:
    a, b = state(3.0), state(5.0)
    expected, ours = tree.leaves(combined(a, b)), tree.leaves(combined(a, shuffled(b)))
    assert all(torch.equal(x, y) for x, y in zip(ours, expected, strict=True))
    for odd in (b._replace(w={"b": b.w["b"]}), b._replace(w={"b": b.w["b"], "c": b.w["a"]})):
        with pytest.raises(ValueError, match=r"differ in: .*w/a"):
            combined(a, odd)


def test_results_have_the_order_of_the_first_tree() -> None:
    a, b = state(3.0), shuffled(state(5.0))
    assert list(tree.interpolate(a, b, 0.5).w) == list(tree.where(torch.tensor(False), a, b).w) == ["b", "a"]


def test_a_tree_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="two trees that belong together differ in"):
        tree.add(state(3.0), tuple(state(5.0)))


def test_a_vector_of_another_size_is_no_tree() -> None:
    with pytest.raises(ValueError, match="a vector of 10 entries is no tree of 9"):
        tree.unflatten(torch.zeros(10), state(1.0))
