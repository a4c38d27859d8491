"""Trees: arithmetic leaf by leaf, and a name for every leaf."""

from typing import NamedTuple

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
