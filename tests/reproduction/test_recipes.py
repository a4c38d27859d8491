"""All recipes of the package can be played, in both sizes, and claim what can be judged."""

import pytest

from idiolect.errors import UserError
from idiolect.reproduction.plan import Place, plans_of
from idiolect.reproduction.recipe import (
    PAPERS,
    SIZES,
    find_recipe,
    read_recipe,
    recipe_names,
)
from idiolect.reproduction.references import refuse_unknown_names
from idiolect.reproduction.reproduce import reproduce_recipes


@pytest.fixture(scope="module", params=recipe_names())
def recipe(request):
    return find_recipe(request.param)


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


@pytest.mark.parametrize("size", SIZES)
def test_every_claim_and_figure_is_of_what_there_is(recipe, size, tmp_path):
    (plan,) = plans_of([recipe], size, None, tmp_path)
    refuse_unknown_names(plan)


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


NAMES = """
panels: {few: {local_steps: 2}, many: {}}
functions: {f: {of: "math:sqrt", start: 0, stop: 1}}
"""


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("claims: [{says: x, higher: APLF personal, than: 0}]", "claim 'x': 'APLF personal' is no model"),
        ("claims: [{says: x, higher: APFL group, than: 0}]", "APFL has no group model; it has global, loc"),
        (
            "claims: [{says: x, higher: APFL personal, than: 0, panels: [fwe]}]",
            "'fwe' .*few",
        ),
        ("claims: [{says: x, higher: APFL personal, than: FedAvg global @ fewest}]", "panel 'fewest'"),
        (
            "claims: [{says: x, higher: APFL personal, than: 0, of: lossy}]",
            "'lossy' .*loss",
        ),
        ("claims: [{says: x, equal: [f, g], within: 0}]", "'g' is no model"),
        (
            "claims: [{says: x, equal: [APFL personal, FedAvg global], within: -1}]",
            "or equal to 0",
        ),
        (
            "figures: [{draw: curves, title: t, models: [APFL global, APFL persona]}]",
            "'t': 'APFL persona'",
        ),
        ("figures: [{draw: curves, title: t, functions: [g]}]", "function 'g'; the functions are f"),
        ("figures: [{draw: curves, title: t, panels: [none]}]", "figure 't' names the panel 'none'"),
        ("numbers: [{metric: accuracy, values: {fw: {APFL personal: 1}}}]", "numbers names the panel 'fw'"),
        ("numbers: [{metric: accuracy, values: {few: {APFL best: 1}}}]", "numbers: 'APFL best' is no model"),
        ("sizes: {small: {panels: [fewer]}}", r"sizes.small names the panel 'fewer' \(did you mean few"),
        ("sizes: {small: {lines: [Ditto]}}", "line 'Ditto'; the lines are FedAvg, APFL"),
        ("judged: {FedAvg: group}", "FedAvg has no group model"),
        ("constants: {c: {of: 'math:pie'}}", "constants.c.of='math:pie' cannot be imported"),
        ("tune: {grid: {lr: []}}", "a value to try for lr"),
    ],
)
def test_a_name_that_stands_for_nothing_is_told_before_anything_is_played(more, said, tmp_path):
    (tmp_path / "mine.yaml").write_text(MINIMAL + NAMES + more)
    with pytest.raises(UserError, match=said):
        reproduce_recipes([str(tmp_path / "mine.yaml")], out=tmp_path / "out", jobs=1)
    assert not (tmp_path / "out").exists()


def test_names_that_stand_for_something_are_let_through(tmp_path):
    claims = """
claims:
  - {says: a, of: megabytes_to:global:0.8, higher: FedAvg, than: APFL @ few}
  - {says: b, of: "recall:hAd", higher: APFL personal, than: f}
  - {says: c, of: squared_distance, higher: APFL, than: 0}
"""
    own = "{settings: {evaluation.metrics: ['idiolect.reproduction.coordinates:squared_distance']}}"
    text = MINIMAL + NAMES + claims + f"sizes: {{small: {own}}}"
    (plan,) = plans_of([read_recipe(text, "apfl-fig0")], "small", None, tmp_path)
    refuse_unknown_names(plan)
