"""JSON that every reader accepts."""

import json
import math

from idiolect.strict_json import nan_for_null, to_json


def test_what_is_not_a_finite_number_is_null_wherever_it_stands():
    content = {"a": [1.5, math.nan, (math.inf, "NaN")], "b": {"c": -math.inf, "d": None, "e": True}}
    assert json.loads(to_json(content)) == {
        "a": [1.5, None, [None, "NaN"]],
        "b": {"c": None, "d": None, "e": True},
    }


def test_null_is_read_as_nan_wherever_it_stands():
    read = nan_for_null(json.loads('{"a": [1, null], "b": {"c": null, "d": 0.5}}'))
    assert (read["a"][0], read["b"]["d"]) == (1, 0.5)
    assert math.isnan(read["a"][1])
    assert math.isnan(read["b"]["c"])
