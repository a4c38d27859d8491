"""Claims on what is computed: functions and constants of a recipe, beside each other and beside runs."""

import pytest
import yaml

from idiolect.errors import UserError
from idiolect.reproduction.plan import Plan
from idiolect.reproduction.played import PlayedRecipe
from idiolect.reproduction.recipe import find_recipe, read_recipe
from idiolect.reproduction.reproduce import reproduce_recipes
from idiolect.runs.folder import RunFolder


def judged(tmp_path, claims, **more):
    """The verdicts on claims about y = x and y = 2 and three numbers, without any run."""
    functions = {"x": {"of": "builtins:float", "start": 0, "stop": 4, "points": 41}}
    functions["flat"] = {"of": "builtins:round", "start": 0, "stop": 4, "points": 41, "arguments": {}}
    constants = {"power": {"of": "builtins:pow", "arguments": {"base": 3, "exp": 2}}}
    plain = {"paper": "additive", "item": "none", "title": "none", "functions": functions} | more
    recipe = read_recipe(_yaml(plain | {"constants": constants, "claims": claims}), "made-up")
    return [judgement.verdict for judgement in PlayedRecipe(Plan(recipe, "small", (0,), tmp_path)).judge()]


def _yaml(settings):
    return yaml.safe_dump(settings)


def test_a_function_is_above_another_where_it_is_at_every_x(tmp_path):
    # round(x) is above x from 0.6 to 0.9, below from 0.1 to 0.4, and both between 0.1 and 0.9
    claims = [
        {"says": "above", "higher": "flat", "than": "x", "between": [0.55, 0.95]},
        {"says": "below", "higher": "flat", "than": "x", "between": [0.05, 0.45]},
        {"says": "both", "higher": "flat", "than": "x", "between": [0.05, 0.95]},
        {"says": "lower", "lower": "flat", "than": "x", "between": [0.05, 0.45]},
    ]
    assert judged(tmp_path, claims) == ["confirmed", "contradicted", "inconclusive", "confirmed"]


def test_a_constant_is_near_a_number(tmp_path):
    claims = [
        {"says": "nine", "model": "power", "near": 9.2, "within": 0.25},
        {"says": "not nine", "model": "power", "near": 9.2, "within": 0.15},
    ]
    assert judged(tmp_path, claims) == ["confirmed", "contradicted"]


def test_what_is_no_function_of_the_recipe_is_told(tmp_path):
    claims = [{"says": "unknown", "higher": "x", "than": "y"}]
    assert judged(tmp_path, claims) == ["inconclusive"]


def test_a_recipe_is_like_another_but_for_what_it_says():
    base = find_recipe("additive-fig2")
    like = read_recipe("like: additive-fig2\nitem: Other\nsettings: {rounds: 3}", "other")
    assert (like.name, like.item, like.title) == ("other", "Other", base.title)
    assert like.settings["rounds"] == 3
    assert like.settings["data"] == base.settings["data"]
    assert like.claims == base.claims


def test_a_line_can_be_tuned_by_another_kind_of_model(tmp_path):
    """The shared and the fine-tuned model of one method may want different rates."""
    text = """
paper: field
item: none
title: none
settings:
  data: {name: opposed-signs, clients: 4, samples: 40}
  model: {name: linear, bias: false}
  rounds: 2
lines: {shared: {method: fedavg}, tuned: {method: fedavg}}
judged: {shared: global}
tune: {grid: {lr: [0.01, 1.0]}}
"""
    file = tmp_path / "kinds.yaml"
    file.write_text(text)
    (record,) = reproduce_recipes([str(file)], out=tmp_path, jobs=1, seeds=[0]).records
    judged_kinds = {row["line"]: row["kind"] for row in record["table"] if row["judged"]}
    assert judged_kinds == {"shared": "global", "tuned": "localized"}
    validation = {(line, kind): _scores(tmp_path, kind) for line, kind in judged_kinds.items()}
    for row in record["chosen"]:
        scores = validation[row["line"], judged_kinds[row["line"]]]
        assert scores[row["lr"]] == max(scores.values())


def _scores(root, kind):
    """The validation value of a kind of model, by the rate."""
    runs = [RunFolder(path) for path in (root / "runs").iterdir()]
    rates = [run.config.method["learning_rate"] for run in runs]
    rates = [rate["initial"] if isinstance(rate, dict) else rate for rate in rates]
    return {rate: run.summary()["kinds"][kind]["validation"] for rate, run in zip(rates, runs, strict=True)}


def test_judged_names_lines_that_there_are():
    with pytest.raises(UserError, match="judged has 'FedAvgg'"):
        read_recipe("{paper: field, item: a, title: a, judged: {FedAvgg: global}}", "wrong")
