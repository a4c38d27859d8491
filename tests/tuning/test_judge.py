"""When a trial counts as diverged: not because one client's few validation rows fit badly."""

import math

import pandas as pd
import pytest

import idiolect
from idiolect.evaluation.metrics import COLUMNS, measures_of
from idiolect.tuning.trials import _Judge


@pytest.mark.parametrize(
    ("ended", "said"),
    [
        ([0.3, 0.3, 0.3, 120.0], ""),  # two hundred times the first loss of one client; the mean is 30 of 0.6
        ([0.3, 0.3, 0.3, 299.1], "the mean validation loss went from 0.6 to 75"),
        ([0.3, 0.3, math.inf, 0.3], "the loss of client 'c' is not finite after round 5"),
    ],
)
def test_what_has_diverged(ended: list[float], said: str) -> None:
    measures = measures_of(idiolect.load("vowels", seed=0).task)
    judge = _Judge("personal", measures, "validation", lambda round_number, value: None)
    for round_number, losses in ((0, [0.6] * 4), (5, ended)):
        rows = [
            (round_number, client, "personal", "validation", metric, value)
            for client, loss in zip("abcd", losses, strict=True)
            for metric, value in (("loss", loss), (measures.main.name, 0.5))
        ]
        judge.evaluated(round_number, pd.DataFrame(rows, columns=list(COLUMNS)))
    assert judge.diverged == (f"diverged: {said}" if said else "")
