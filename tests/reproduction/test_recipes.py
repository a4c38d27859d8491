"""All recipes of the package can be played, in both sizes, and claim what can be judged."""

import pytest

from idiolect.errors import UserError
from idiolect.reproduction.plan import Place, plans_of
from idiolect.reproduction.recipe import (
    PAPERS,
    SIZES,
    find_recipe,
    kind_and_line,
    read_recipe,
    recipe_names,
)
from idiolect.runs.config import build_method


@pytest.fixture(scope="module", params=recipe_names())
def recipe(request):
    return find_recipe(request.param)


def kinds_of(plan, line, panel):
    """The models that a line's method gives."""
    return build_method(plan.config_of(Place(panel, line), plan.seeds[0], {}).method).kinds


@pytest.mark.parametrize("size", SIZES)
def test_every_run_has_settings_that_exist(recipe, size, tmp_path):
    (plan,) = plans_of([recipe], size, None, tmp_path)
    assert plan.panels
    for place in plan.places:
        points = recipe.tune.of(place.line) or [{}]
        for point in points:
            plan.config_of(place, plan.seeds[0], point)
    assert set(plan.lines) <= set(recipe.lines)
    assert set(plan.panels) <= set(recipe.panels)


def test_every_claim_and_figure_is_of_models_that_there_are(recipe, tmp_path):
    (plan,) = plans_of([recipe], "small", None, tmp_path)
    named = [
        (model, panel)
        for claim in recipe.claims
        for relation in claim.relations
        for model in (relation.first, relation.second)
        if isinstance(model, str)
        for panel in claim.panels or [plan.panels[0]]
    ]
    named += [
        (model, panel)
        for figure in recipe.figures
        for model in figure.models
        for panel in (figure.panels or plan.panels)[:1]
    ]
    for written, panel in named:
        model, _, at = written.partition(" @ ")
        if model in recipe.theory:
            continue
        line, kind = kind_and_line(model, list(recipe.lines))
        assert (at or panel) in recipe.panels
        assert kind is None or kind in kinds_of(plan, line, at or panel), written
    for numbers in recipe.numbers:
        for panel, values in numbers.values.items():
            assert panel in recipe.panels
            for model in values:
                kind_and_line(model, list(recipe.lines))


def test_a_recipe_says_which_one_it_is(recipe):
    assert recipe.paper == recipe.name.partition("-")[0]
    assert recipe.item
    assert recipe.title
    assert recipe.claims, "a figure that claims nothing shows nothing"


def test_every_paper_has_recipes():
    assert {name.partition("-")[0] for name in recipe_names()} == set(PAPERS)


MINIMAL = """
paper: apfl
item: Figure 0
title: a small one
settings: {data: vowels}
lines:
  FedAvg: {method: fedavg}
  APFL: {method: apfl}
"""


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("claim: []", "claim is not a setting"),
        ("claims: [{says: x}]", "one of higher"),
        ("tune: {grid: {lr: [0.1, 0.2]}, lines: {APFL: {lr: [0.1]}}}", "as many settings for each line"),
        ("tune: {lines: {Ditto: {lr: [0.1]}}}", "none of the lines"),
        ("sizes: {huge: {}}", "sizes"),
    ],
)
def test_what_is_wrong_with_a_recipe_is_said(more, said):
    with pytest.raises(UserError, match=said):
        read_recipe(MINIMAL + more, "apfl-fig0")


def test_settings_of_all_methods_go_to_those_that_have_them(tmp_path):
    text = MINIMAL + "sizes: {small: {settings: {method.mixing: 0.5}}}"
    (plan,) = plans_of([read_recipe(text, "apfl-fig0")], "small", None, tmp_path)
    assert plan.config_of(Place("", "APFL"), 0, {}).method["mixing"] == 0.5
    assert "mixing" not in plan.config_of(Place("", "FedAvg"), 0, {}).method


def test_an_unknown_recipe_names_the_nearest():
    with pytest.raises(UserError, match="additive-fig2"):
        find_recipe("aditive-fig2")
