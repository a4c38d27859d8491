"""Sums that hide clients: clip, noise, and who is refused."""

from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import nn

import idiolect
from idiolect.aggregation.outer import Outer
from idiolect.core import tree
from idiolect.core.outer_step import OUTER_STEPS
from idiolect.errors import UserError
from idiolect.methods.apfl import APFL
from idiolect.methods.fedavg import FedAvg
from idiolect.methods.perm import PERM
from idiolect.methods.personal_parts import FedPer
from idiolect.methods.scaffold import Scaffold
from idiolect.participation.sampling import Uniform
from idiolect.privacy.settings import RowPrivacy, SiloPrivacy
from idiolect.privacy.silo_private import SiloPrivate
from idiolect.simulation import Simulation

FEDERATION = idiolect.load("vowels").subset(range(6))
ENGINES: Any = ["sequential", "vectorised"]


def simulation(method: Any, engine: Any = "vectorised", model: Any = None, **options: Any) -> Simulation:
    if model is None:
        torch.manual_seed(0)
        model = nn.Linear(FEDERATION.inputs.shape[1], FEDERATION.task.outputs)
    return Simulation(method, model, FEDERATION, engine=engine, batch_size=8, dtype=torch.float64, **options)


def private(method: Any, *, noise: float = 0.0, clip: float = 1.0) -> SiloPrivate:
    return SiloPrivate(method, SiloPrivacy(noise=noise, clip=clip))


def move(played: Simulation, before: Any) -> torch.Tensor:
    after = played.server.inner.w
    return torch.cat([(after[name] - before[name]).flatten() for name in before])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method", [FedAvg(), APFL(), Scaffold()], ids=lambda method: method.name)
def test_without_noise_and_with_a_long_clip_it_is_the_plain_run(method: Any, engine: Any) -> None:
    plain, hidden = simulation(method, engine).play(3), simulation(private(method, clip=1e9), engine).play(3)
    pairs = zip(tree.leaves(plain.server), tree.leaves(hidden.server.inner), strict=True)
    assert max(float((one - other).abs().max()) for one, other in pairs) < 1e-12


@pytest.mark.parametrize("engine", ENGINES)
def test_the_average_is_of_shortened_changes(engine: Any) -> None:
    method = FedAvg(local_steps=3, learning_rate=0.5)
    one_by_one = simulation(method, "sequential")
    before = one_by_one.server.w
    one_by_one.advance()
    changes = []
    for client in range(6):
        own = tree.row(one_by_one.clients(), client).w
        changes.append(torch.cat([(own[name] - before[name]).flatten() for name in before]))
    lengths = torch.stack([change.norm() for change in changes])
    clip = float(lengths.median())
    assert lengths.min() < clip < lengths.max()
    expected = sum(change * min(1.0, clip / float(change.norm())) for change in changes) / 6
    played = simulation(private(method, clip=clip), engine).play(1)
    assert (move(played, before) - expected).abs().max() < 1e-12


def test_fields_of_an_upload_are_clipped_together() -> None:
    played = simulation(private(Scaffold(), clip=1e-3), "sequential")
    before = played.server.inner
    played.advance()
    after = played.server.inner
    moves = [tree.subtract(a, b) for a, b in zip(after, before, strict=True)]
    assert float(sum(tree.squared_norm(one) for one in moves)) <= 1e-3**2 * (1 + 1e-9)
    assert all(float(tree.squared_norm(one)) > 0 for one in moves)


@pytest.mark.parametrize("engine", ENGINES)
def test_rounding_makes_no_change_longer_than_the_clip(engine: Any) -> None:
    """From 2^24 on there are even numbers only: 2^24 + 1.5 is nearest to 2^24 + 2, which is 2 away."""

    class FarAway(FedAvg):
        def finish(self, work: Any, client: Any, down: Any, site: Any) -> Any:
            client, _ = super().finish(work, client, down, site)
            return client, tree.map_tree(lambda leaf: leaf + 10, down)

    model = nn.Linear(FEDERATION.inputs.shape[1], FEDERATION.task.outputs, bias=False)
    model.weight.data.fill_(2.0**24)
    entries = model.weight.numel()
    for each, expected in ((1.5, 0.0), (3.5, 2.0)):
        method = private(FarAway(local_steps=1), clip=each * entries**0.5)
        played = Simulation(method, model, FEDERATION, engine=engine, batch_size=8, dtype=torch.float32)
        before = played.server.inner.w
        moved = move(played.play(1), before)
        assert moved.unique().tolist() == [expected]


@pytest.mark.parametrize("unit", [RowPrivacy, SiloPrivacy])
@pytest.mark.parametrize("clip", [1e-22, 5e-324, 0.0, -1.0, 1e20, 1e300])
def test_a_clip_whose_square_single_precision_has_not_is_refused(unit: Any, clip: float) -> None:
    """Of 10,000 entries of 2e-23 each square is zero there, so 2e-21 would count as no longer than 1e-22."""
    with pytest.raises(ValidationError, match="clip"):
        unit(noise=1.0, clip=clip)


@pytest.mark.parametrize("replies", [6, 2])
def test_noise_in_the_average_has_the_deviation_of_the_replies_that_came(replies: int) -> None:
    wide = nn.Linear(FEDERATION.inputs.shape[1], FEDERATION.task.outputs)
    draws = []
    for seed in range(8):
        played = simulation(
            private(FedAvg(), noise=2.0, clip=1e-9), model=wide, seed=seed, plan=Uniform(count=replies)
        )
        before = played.server.inner.w
        for _ in range(2):
            draws.append(move(played.play(1), before) / (2.0 * 1e-9 / replies))
            before = played.server.inner.w
    flat = torch.stack(draws)
    # The clipped change itself is at most one half of a deviation, spread over all entries.
    assert flat.std() == pytest.approx(1.0, abs=0.08)
    correlation = torch.corrcoef(flat) - torch.eye(len(flat))
    assert correlation.abs().max() < 6 / flat.shape[1] ** 0.5


def test_uploads_that_are_not_finite_change_nothing() -> None:
    class Broken(FedAvg):
        def finish(self, work: Any, client: Any, down: Any, site: Any) -> Any:
            client, up = super().finish(work, client, down, site)
            return client, tree.map_tree(lambda leaf: leaf * float("nan"), up)

    played = simulation(private(Broken()), "sequential")
    before = played.server.inner.w
    assert move(played.play(1), before).abs().max() < 1e-15


def test_engines_agree_and_a_server_step_follows_the_noise() -> None:
    method = private(Outer(APFL(), OUTER_STEPS["avgm"]()), noise=0.3)
    one, other = (simulation(method, engine).play(3) for engine in ENGINES)
    pairs = zip(tree.leaves(one.server), tree.leaves(other.server), strict=True)
    assert max(float((a - b).abs().max()) for a, b in pairs) < 1e-10


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        (PERM(), "its server needs each upload, and no sum that noise could hide one in"),
        (FedAvg(weighting="samples"), "set method.weighting=uniform"),
        (FedPer(weighting="samples"), "set method.weighting=uniform"),
        (APFL(mixing=0.5, average_offset=1.0), "it sends more than its model"),
    ],
    ids=lambda given: getattr(given, "name", "")[:12],
)
def test_who_tells_more_than_a_sum_of_equals_is_refused(method: Any, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        simulation(private(method))


def test_statistics_that_would_be_sent_as_they_are_are_refused() -> None:
    model = nn.Sequential(nn.Linear(10, 8), nn.BatchNorm1d(8), nn.Linear(8, 11))
    with pytest.raises(UserError, match=r"set statistics=silo, or use group normalisation"):
        simulation(private(FedAvg()), model=model)
    simulation(private(FedAvg()), model=model, statistics="silo").play(1)
