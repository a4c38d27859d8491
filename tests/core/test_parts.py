"""Parts of a model: split by name, joined again in the model's order, and nothing lost on the way."""

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.utils import parametrizations

from idiolect.core import tree
from idiolect.core.parts import Parts, last_layer, last_module, names_by_rule
from idiolect.core.tree import Params
from idiolect.engines.compiler.trace import trace
from idiolect.errors import UserError
from idiolect.models import Perceptron

MODEL = Perceptron(4, 3, (6, 5))
HEAD = {"head": ("output.*",)}


def params() -> Params:
    return {name: p.detach() for name, p in MODEL.named_parameters()}


def parts() -> Parts:
    return Parts.of(params(), HEAD, rest="body")


def test_split_and_join_are_inverses_and_copy_nothing() -> None:
    w = params()
    split = parts().split(w)
    assert list(split) == ["head", "body"]
    assert list(split["head"]) == ["output.weight", "output.bias"]
    assert list(split["body"]) == [f"hidden.{i}.{kind}" for i in range(2) for kind in ("weight", "bias")]
    joined = parts().join(**split)
    assert all(joined[name] is w[name] for name in w)


def test_joining_restores_the_models_own_order() -> None:
    w = params()
    biases = Parts.of(w, {"biases": ("*.bias",)}, rest="weights")
    split = biases.split(dict(reversed(w.items())))
    backwards = {label: dict(reversed(part.items())) for label, part in reversed(split.items())}
    assert list(biases.join(**backwards)) == list(w)


def test_one_part_is_replaced_and_the_others_stay() -> None:
    w = params()
    other = tree.scale(parts().take(w, "head"), 2.0)
    replaced = parts().replace(w, head=other)
    assert list(replaced) == list(w)
    assert replaced["output.bias"] is other["output.bias"]
    assert replaced["hidden.0.bias"] is w["hidden.0.bias"]


def test_parts_of_a_stack_of_clients_inside_and_outside_of_vmap() -> None:
    stacked = tree.stack([params(), tree.scale(params(), 3.0)])

    def with_doubled_head(w: Params) -> Params:
        return parts().replace(w, head=tree.scale(parts().take(w, "head"), 2.0))

    for moved in (vmap(with_doubled_head)(stacked), with_doubled_head(stacked)):
        assert torch.equal(moved["output.weight"], 2 * stacked["output.weight"])
        assert torch.equal(moved["hidden.1.bias"], stacked["hidden.1.bias"])


def test_parts_work_in_recorded_functions() -> None:
    whole = parts()

    def flat(*leaves: Tensor) -> list[Tensor]:
        w = dict(zip(whole.names, leaves, strict=True))
        return tree.leaves(whole.replace(w, body=tree.scale(whole.take(w, "body"), 0.5)))

    leaves = list(params().values())
    recorded = trace(flat, leaves)
    assert all(torch.equal(a, b) for a, b in zip(recorded(*leaves), flat(*leaves), strict=True))
    operations = [node for node in recorded.graph.nodes if node.op == "call_function"]
    assert len(operations) == 4  # one product for each tensor of the body, and nothing for the parts


def test_parts_can_be_keys() -> None:
    assert hash(parts()) == hash(parts())
    assert parts() == parts() != Parts.of(params(), {"head": ("hidden.*",)}, rest="body")


def test_a_part_may_be_empty_if_nobody_asked_for_more() -> None:
    shared = Parts.of(params(), {"head": ()}, rest="body")
    split = shared.split(params())
    assert split["head"] == {}
    assert list(shared.join(**split)) == list(params())
    assert Parts.of(params(), {"head": ("*",)}, rest="body").take(params(), "body") == {}


def test_several_patterns_may_name_one_parameter() -> None:
    twice = Parts.of(params(), {"head": ("output.*", "*.bias")}, rest="body")
    assert twice.names_of("body") == ("hidden.0.weight", "hidden.1.weight")


def test_the_last_layer_is_found_by_its_names() -> None:
    assert last_layer(params()) == ("output.weight", "output.bias")
    assert last_layer(dict(nn.Linear(2, 2).named_parameters())) == ("weight", "bias")


def test_a_head_has_what_it_shares_with_other_layers_and_what_makes_up_its_weight() -> None:
    model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 3), nn.Linear(3, 5))
    model[2].weight = model[0].weight
    assert names_by_rule("head", model) == ("0.weight", "2.bias")
    assert names_by_rule("body", model) == ("1.weight", "1.bias")
    normed = nn.Sequential(nn.Linear(3, 3), parametrizations.weight_norm(nn.Linear(3, 5)))
    assert names_by_rule("body", normed) == ("0.weight", "0.bias")
    assert last_module(normed) == "1"


def test_a_pattern_that_matches_nothing_is_refused_with_what_it_could_mean() -> None:
    message = r"'head' has the pattern 'outptu\.\*'.*did you mean output\.bias.*hidden\.0\.weight, "
    with pytest.raises(UserError, match=message):
        Parts.of(params(), {"head": ("outptu.*",)}, rest="body")
    with pytest.raises(UserError, match=r"layer11\.weight and 8 more$"):
        Parts.of([f"layer{i}.weight" for i in range(20)], HEAD, rest="body")


def test_parts_that_overlap_are_refused() -> None:
    with pytest.raises(UserError, match=r"'head' and 'biases' overlap: both have .*'output\.bias'"):
        Parts.of(params(), {**HEAD, "biases": ("*.bias",)}, rest="body")
    with pytest.raises(UserError, match="rest='head' is a part that has patterns already"):
        Parts.of(params(), HEAD, rest="head")


def test_what_is_missing_or_unknown_is_named() -> None:
    head, body = parts().split(params()).values()
    with pytest.raises(UserError, match="the part 'head' is missing"):
        parts().join(body=body)
    with pytest.raises(UserError, match=r"no part 'haed' \(did you mean head\?\); there are head, body"):
        parts().join(haed=head, head=head, body=body)
    with pytest.raises(UserError, match=r"the part 'head' lacks its parameter 'output\.bias'"):
        parts().join(head={"output.weight": head["output.weight"]}, body=body)
    misspelled = {"output.weight": head["output.weight"], "output.bais": head["output.bias"]}
    with pytest.raises(UserError, match=r"'output\.bais', which is none of its parameters .*output\.bias"):
        parts().join(head=misspelled, body=body)
    with pytest.raises(UserError, match="there is no part 'tail'"):
        parts().take(params(), "tail")
    with pytest.raises(UserError, match=r"the model lacks its parameter 'hidden\.0\.weight'"):
        parts().take(head, "head")
