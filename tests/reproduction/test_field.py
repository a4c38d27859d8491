"""The page over all federations of the field's comparison, from records that are made up."""

import math

import pytest

from idiolect.reproduction.field import field_page, judged_models, mean_ranks

KINDS = {"alone": "personal", "FedAvg": "global", "FedAvg, fine-tuned": "localized", "Ditto": "personal"}


def record(name, reported, best=None, over_seeds=0.0, newcomers=None, verdict="confirmed"):
    rows = []
    for place, (line, value) in enumerate(reported.items()):
        row = {"line": line, "kind": KINDS[line], "judged": True, "metric": "accuracy", "reported": value}
        row |= {
            "best": (best or reported)[line],
            "over_seeds": over_seeds,
            "seeds": 3,
            "worst_tenth": value / 2,
        }
        row |= {"megabytes": 2.0 * place, "seconds": 1.0 + place}
        if newcomers is not None:
            row["newcomers"] = newcomers
        rows += [row, row | {"judged": False, "kind": "another", "reported": 1.0}]
    claims = [{"says": "Ditto is good", "verdict": verdict}]
    return {"name": name, "item": name.upper(), "table": rows, "claims": claims}


FIRST = {"alone": 0.7, "FedAvg": 0.5, "FedAvg, fine-tuned": 0.8, "Ditto": 0.9}
SECOND = {"alone": 0.6, "FedAvg": 0.9, "FedAvg, fine-tuned": 0.95, "Ditto": 0.8}


def test_the_ranks_of_two_federations_are_averaged():
    ranks = mean_ranks([judged_models(record("a", FIRST)), judged_models(record("b", SECOND))])
    # ranks in a: 3, 4, 2, 1; in b: 4, 2, 1, 3
    assert {line: rank.mean for line, rank in ranks.items()} == {
        "FedAvg, fine-tuned": 1.5,
        "Ditto": 2.0,
        "FedAvg": 3.0,
        "alone": 3.5,
    }
    assert next(iter(ranks)) == "FedAvg, fine-tuned"
    # Without noise of seeds a replicate is one of the federations twice, or both.
    assert (ranks["FedAvg"].low, ranks["FedAvg"].high) == (2.0, 4.0)


def test_noise_of_seeds_widens_the_interval_of_a_rank():
    calm = mean_ranks([judged_models(record("a", FIRST))])
    loud = mean_ranks([judged_models(record("a", FIRST, over_seeds=1.0))])
    assert (calm["Ditto"].low, calm["Ditto"].high) == (1.0, 1.0)
    assert loud["Ditto"].high > 1.0


def test_a_method_that_a_federation_has_not_is_left_out():
    fewer = {line: value for line, value in SECOND.items() if line != "Ditto"}
    ranks = mean_ranks([judged_models(record("a", FIRST)), judged_models(record("b", fewer))])
    assert "Ditto" not in ranks
    assert math.isclose(sum(rank.mean for rank in ranks.values()), 1 + 2 + 3)


@pytest.fixture
def page():
    best = FIRST | {"alone": 0.95}  # which makes alone the best of a, and flatters it by 25 points
    records = [record("a", FIRST, best, newcomers=0.25), record("b", SECOND, verdict="contradicted")]
    return field_page(records)


def test_winners_differ_and_verdicts_are_by_federation(page):
    assert "No method wins everywhere: **confirmed**." in page
    assert "A: Ditto; B: FedAvg, fine-tuned." in page
    assert "- Ditto is good: **confirmed** on A; **contradicted** on B." in page
    assert "it lacks 0.0 points to 10.0 points" in page


def test_what_the_best_test_round_adds(page):
    # 25 points of one method out of eight
    assert "by 3.1 points in the mean over methods and federations, at most by 25.0 points" in page
    assert "makes another method the best in 1 of 2 federations" in page


def test_costs_are_relative_to_fedavg_and_newcomers_are_of_those_who_have_them(page):
    costs = page.partition("## What it costs")[2]
    ditto = next(line for line in costs.splitlines() if line.startswith("| Ditto"))
    # megabytes 6 of 2, seconds 4 of 2; the worst tenth is the mean of 0.45 and 0.40
    assert ditto == "| Ditto | 42.5 % | 25.0 % | 3 x | 2 x | 0.0 points |"


def test_a_federation_with_fewer_methods_is_shown_but_not_ranked():
    few = {"alone": 0.2, "FedAvg": 0.1}
    shown = field_page([record("a", FIRST), record("b", few)])
    row = next(line for line in shown.splitlines() if line.startswith("| Ditto | personal"))
    assert row == "| Ditto | personal | 1.0 (1.0 to 1.0) | **90.0 %** | – |"
    row = next(line for line in shown.splitlines() if line.startswith("| alone | personal"))
    assert row == "| alone | personal | 3.0 (3.0 to 3.0) | 70.0 % | **20.0 %** |"
