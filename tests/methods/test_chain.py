"""Sub-models: which parameters a client holds, derived by hand for a perceptron and a convolution."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from idiolect.core.tree import Params
from idiolect.errors import UserError
from idiolect.methods.submodels.chain import Chain, average_of_holders, client_ratios
from idiolect.methods.submodels.held_only import held_bits
from idiolect.models import CharLSTM, Convolutional, ElementwiseProduct, Linear, Perceptron


def params(module: nn.Module) -> Params:
    return {name: p.detach() for name, p in module.named_parameters()}


def kept(module: nn.Module, ratio: float) -> Params:
    chain = Chain.of(params(module))
    return chain.masks(chain.first_units(torch.tensor(ratio)))


def test_a_linear_model_is_always_whole():
    masks = kept(Linear(7, 3), 0.01)
    assert all(mask.all() for mask in masks.values())


def test_a_perceptron_keeps_weights_between_kept_units():
    masks = kept(Perceptron(7, 3, (8, 5)), 0.5)
    first, second = torch.arange(8) < 4, torch.arange(5) < 2
    assert torch.equal(masks["hidden.0.weight"].expand(8, 7), first[:, None].expand(8, 7))
    assert torch.equal(masks["hidden.0.bias"], first)
    assert torch.equal(masks["hidden.1.weight"], second[:, None] & first)
    assert torch.equal(masks["output.weight"].expand(3, 5), second.expand(3, 5))
    assert masks["output.bias"].all()


def test_units_of_a_convolution_are_channels_also_where_it_is_flattened():
    module = Convolutional((1, 16, 16), 3, filters=(4, 6), hidden=10)
    whole = params(module)
    sub = Chain.of(whole).restrict(whole, Chain.of(whole).first_units(torch.tensor(0.5)))
    assert sub["first.weight"][:2].ne(0).all()
    assert sub["first.weight"][2:].eq(0).all()
    assert sub["second.weight"][:3, :2].ne(0).all()
    assert sub["second.weight"][:3, 2:].eq(0).all()
    # What the sub-model computes is what a network with half of the channels and units would compute.
    small = Convolutional((1, 16, 16), 3, filters=(2, 3), hidden=5)
    cut = {name: sub[name][tuple(slice(n) for n in p.shape)] for name, p in params(small).items()}
    images = torch.randn(4, 1, 16, 16, generator=torch.Generator().manual_seed(1))
    ours = torch.func.functional_call(module, sub, (images,))
    assert torch.allclose(ours, torch.func.functional_call(small, cut, (images,)), atol=1e-6)


@given(st.integers(2, 30), st.integers(0, 100), st.integers(0, 2**40), st.floats(0.5, 1))
def test_every_selection_keeps_the_same_number_of_units(units, offset, key, ratio):
    chain = Chain.of(params(Perceptron(2, 2, (units,))))
    expected = int(ratio * units + 1e-9)
    for selection in ("static", "rolling", "random"):
        (chosen,) = chain.units(
            torch.tensor(ratio, dtype=torch.float64), selection, offset, torch.tensor(key)
        )
        assert int(chosen.sum()) == expected


@pytest.mark.parametrize("selection", ["static", "rolling", "random"])
def test_units_of_a_stack_are_those_of_each_client(selection):
    chain = Chain.of(params(Perceptron(2, 2, (9, 4))))
    ratios, keys = torch.tensor([0.5, 1.0, 0.25], dtype=torch.float64), torch.tensor([5, 77, 8])
    stacked = chain.units(ratios, selection, 3, keys)
    for client in range(3):
        alone = chain.units(ratios[client], selection, 3, keys[client])
        assert all(torch.equal(a[client], b) for a, b in zip(stacked, alone, strict=True))


def test_the_rolling_window_wraps_around():
    chain = Chain.of(params(Perceptron(2, 2, (5,))))
    (chosen,) = chain.units(torch.tensor(0.6), "rolling", 4, torch.tensor(0))
    assert chosen.nonzero()[:, 0].tolist() == [0, 1, 4]


def test_a_ratio_that_falls_just_short_of_a_unit_in_floating_point_keeps_it():
    chain = Chain.of(params(Perceptron(2, 2, (100,))))
    (chosen,) = chain.first_units(torch.tensor(0.29, dtype=torch.float64))
    assert int(chosen.sum()) == 29


def test_averages_are_over_holders():
    module = Perceptron(2, 2, (4,))
    whole, chain = params(module), Chain.of(params(module))
    ratios = client_ratios((1.0, 0.5, 0.5), torch.arange(3))
    units = chain.first_units(ratios)
    weights = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    values = torch.tensor([1.0, 2.0, 5.0])
    subs = [
        chain.restrict({n: torch.full_like(p, float(v)) for n, p in whole.items()}, (units[0][i],))
        for i, v in enumerate(values)
    ]
    total = {n: sum(w * s[n] for w, s in zip(weights, subs, strict=True)).float() for n in whole}
    mean = average_of_holders(total, chain, units, weights, whole)
    assert torch.allclose(mean["hidden.0.bias"], torch.tensor([2.1, 2.1, 1.0, 1.0]))
    alone = (units[0][1:],)
    total = {n: sum(0.5 * s[n] for s in subs[1:]) for n in whole}
    mean = average_of_holders(total, chain, alone, torch.tensor([0.5, 0.5], dtype=torch.float64), whole)
    assert torch.allclose(mean["hidden.0.bias"][:2], torch.tensor([3.5, 3.5]))
    assert torch.equal(mean["hidden.0.bias"][2:], whole["hidden.0.bias"][2:])  # nobody held these


@pytest.mark.parametrize(
    ("large", "small"),
    [
        (Perceptron(7, 3, (8, 4)), Perceptron(7, 3, (4, 2))),
        (
            Convolutional((2, 16, 16), 3, filters=(4, 6), hidden=10),
            Convolutional((2, 16, 16), 3, filters=(2, 3), hidden=5),
        ),
    ],
)
def test_bits_are_those_of_the_small_network(large, small):
    sizes = [32 * sum(p.numel() for p in module.parameters()) for module in (large, small)]
    assert held_bits(params(large), torch.tensor([1.0, 0.5])).tolist() == sizes


@pytest.mark.parametrize(
    "module",
    [
        CharLSTM(5, 5, 2, 3, 1),
        ElementwiseProduct(3),
        nn.Sequential(nn.Linear(3, 4), nn.Linear(5, 2)),
        nn.Sequential(nn.Linear(3, 4), nn.Linear(8, 2)),
        nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2)),
    ],
    ids=["lstm", "product", "broken chain", "multiple of a linear layer", "norm"],
)
def test_what_is_not_a_chain_of_layers_is_refused(module):
    with pytest.raises(UserError, match="sub-models need a chain"):
        Chain.of(params(module))


def test_a_capacity_that_leaves_no_units_is_refused():
    with pytest.raises(
        UserError, match=r"capacity 0.1 leaves none of the 8 units of 'hidden.0.weight'.*0.125"
    ):
        Chain.of(params(Perceptron(3, 2, (8,)))).refuse_empty_layers((1.0, 0.1))
