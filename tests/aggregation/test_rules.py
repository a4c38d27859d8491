"""Rules against their definitions, written once more in plain Python, and against liars."""

import numpy as np
import pytest
import torch

from idiolect.aggregation.rules import Clip, Krum, Median, RobustRule, Trimmed
from idiolect.errors import UserError

GENERATOR = torch.Generator().manual_seed(3)
CHANGES = torch.randn(7, 5, generator=GENERATOR, dtype=torch.float64) + torch.arange(5)
WEIGHTS = torch.tensor([0.3, 0.1, 0.05, 0.2, 0.15, 0.12, 0.08], dtype=torch.float64)


@pytest.mark.parametrize("count", [6, 7])
def test_the_median_is_numpys(count: int) -> None:
    found, left_out = Median().combine(CHANGES[:count], WEIGHTS[:count])
    np.testing.assert_allclose(found, np.median(CHANGES[:count], axis=0), rtol=0, atol=1e-14)
    assert not left_out.any()


def test_the_trimmed_mean_is_that_of_the_middle() -> None:
    found, _ = Trimmed(share=0.3).combine(CHANGES, WEIGHTS)
    by_hand = [sorted(column)[2:-2] for column in CHANGES.T.tolist()]
    np.testing.assert_allclose(found, [sum(column) / 3 for column in by_hand], rtol=0, atol=1e-14)


def test_trimming_leaves_somebody_of_few_and_drops_somebody_of_many() -> None:
    one, _ = Trimmed(share=0.49).combine(CHANGES[:1], torch.ones(1).double())
    assert torch.equal(one, CHANGES[0])
    three, _ = Trimmed(share=0.01).combine(CHANGES[:3], torch.full((3,), 1 / 3).double())
    np.testing.assert_allclose(three, np.median(CHANGES[:3], axis=0), rtol=0, atol=1e-14)


@pytest.mark.parametrize("norm", [1.5, None])
def test_clipping_shortens_what_is_longer(norm: float | None) -> None:
    found, _ = Clip(norm=norm).combine(CHANGES, WEIGHTS)
    lengths = np.linalg.norm(CHANGES, axis=1)
    longest = norm or np.sort(lengths)[3]
    by_hand = sum(
        float(a) * min(1, longest / length) * row.numpy()
        for a, length, row in zip(WEIGHTS, lengths, CHANGES, strict=True)
    )
    np.testing.assert_allclose(found, by_hand, rtol=0, atol=1e-13)


def test_clipping_of_what_is_short_enough_changes_nothing() -> None:
    found, _ = Clip(norm=1e6).combine(CHANGES, WEIGHTS)
    assert torch.allclose(found, WEIGHTS @ CHANGES, rtol=0, atol=1e-13)
    silent, _ = Clip(norm=1.0).combine(torch.zeros(2, 3), torch.tensor([0.5, 0.5]))
    assert torch.equal(silent, torch.zeros(3))


@pytest.mark.parametrize(("attackers", "keep"), [(1, None), (2, 3), (0, 1)])
def test_krum_by_its_definition(attackers: int, keep: int | None) -> None:
    found, left_out = Krum(attackers=attackers, keep=keep).combine(CHANGES, WEIGHTS)
    scores = []
    for i in range(7):
        distances = sorted(float(((CHANGES[i] - CHANGES[j]) ** 2).sum()) for j in range(7) if j != i)
        scores.append(sum(distances[: 7 - attackers - 2]))
    kept = np.argsort(scores)[: keep or 7 - attackers]
    assert sorted(kept) == (~left_out).nonzero()[:, 0].tolist()
    weights = WEIGHTS[kept] / WEIGHTS[kept].sum()
    np.testing.assert_allclose(found, weights @ CHANGES[kept], rtol=0, atol=1e-13)


def test_krum_says_how_many_it_needs() -> None:
    with pytest.raises(UserError, match="attackers=5 is too many for 7 uploads: krum needs at least 8"):
        Krum(attackers=5).combine(CHANGES, WEIGHTS)


@pytest.mark.parametrize("rule", [Clip(), Median(), Trimmed(share=0.2), Krum(attackers=1)])
@pytest.mark.parametrize("lie", [-10.0, 1e30, 1e308])
def test_one_liar_moves_a_rule_no_further_than_the_others_go(rule: RobustRule, lie: float) -> None:
    uploads = torch.cat([CHANGES[:6], lie * torch.sign(CHANGES[6:])])
    found, _ = rule.combine(uploads, WEIGHTS)
    assert found.isfinite().all()
    longest = CHANGES[:6].norm(dim=1).max()
    assert found.norm() <= longest * 1.5
