"""An attack: was this row among those that a client trained on?

Clients of one federation are the repetitions: all have the same rows but one, which every second client has
and whose place a row of zeros takes at the others. Of a linear model without bias its gradient is zero, so
two such clients are neighbours. The attacker knows everything but that row's presence and the noise.
"""

import math
from typing import NamedTuple

import pytest
import torch
from scipy.stats import beta
from torch import Tensor, nn

from idiolect.core.task import Task
from idiolect.data.federation import Federation, Rows
from idiolect.methods.local import Local
from idiolect.privacy.accounting import Release, noise_for
from idiolect.privacy.row_private import RowPrivate
from idiolect.privacy.settings import RowPrivacy
from idiolect.simulation import Simulation

CLIENTS, ROWS, FEATURES, STEPS, DELTA = 2000, 6, 8, 4, 1e-5
CONFIDENCE = 0.999


class Attack(NamedTuple):
    """What an attacker sees of those with the row and of those without it: larger speaks for it."""

    members: Tensor
    others: Tensor

    @property
    def advantage(self) -> float:
        """The area under the curve of true over false positives, less what guessing gives: 0 to 1/2."""
        above, equal = self.members[:, None] > self.others, self.members[:, None] == self.others
        return float((above + 0.5 * equal).double().mean()) - 0.5

    def violations(self, epsilon: float, delta: float) -> int:
        """Thresholds at which TPR ≤ e^ε FPR + δ does surely not hold, either way around."""
        found = 0
        for threshold in torch.cat([self.members, self.others]).quantile(torch.linspace(0.02, 0.98, 25)):
            hits, alarms = int((self.members > threshold).sum()), int((self.others > threshold).sum())
            for more, less in ((hits, alarms), (len(self.others) - alarms, len(self.members) - hits)):
                half = CLIENTS // 2
                low = beta.ppf(1 - CONFIDENCE, more, half - more + 1) if more else 0.0
                high = beta.ppf(CONFIDENCE, less + 1, half - less) if less < half else 1.0
                found += low > math.exp(epsilon) * high + delta
        return found


def federation() -> Federation:
    torch.manual_seed(0)
    shared, target = torch.randn(ROWS - 1, FEATURES), 2 * torch.ones(1, FEATURES)
    inputs = torch.cat([shared, target, torch.zeros(1, FEATURES)])
    targets = torch.tensor([0, 1, 0, 1, 0, 1, 1])
    common = list(range(ROWS - 1))
    train = Rows.of_clients(
        [torch.tensor([*common, ROWS - 1 if client % 2 == 0 else ROWS]) for client in range(CLIENTS)]
    )
    none = Rows.of_clients([torch.tensor([], dtype=torch.int64)] * CLIENTS)
    names = tuple(map(str, range(CLIENTS)))
    return Federation(inputs, targets, Task("multiclass", outputs=2), names, train, none, none)


def attacked(noise: float) -> tuple[Attack, Attack]:
    """By the row's loss, and by how far the model went along the row: the likelihood ratio of one step."""
    method = RowPrivate(Local(local_steps=STEPS, learning_rate=1.0), RowPrivacy(noise=noise), None)
    model = nn.Linear(FEATURES, 2, bias=False)
    nn.init.zeros_(model.weight)
    data = federation()
    played = Simulation(method, model, data, batch_size=None, seed=1).play(1)
    models = played.predictors()["personal"]["weight"]  # type: ignore[index]
    outputs = models @ data.inputs[ROWS - 1]
    losses = nn.functional.cross_entropy(outputs, torch.ones(CLIENTS, dtype=torch.int64), reduction="none")
    along = outputs[:, 1] - outputs[:, 0]
    return tuple(Attack(seen[0::2], seen[1::2]) for seen in (-losses, along))  # type: ignore[return-value]


def noise_at(epsilon: float) -> float:
    return noise_for(epsilon, DELTA, lambda noise: {Release(noise): STEPS})


def test_without_noise_the_row_is_found_always() -> None:
    for attack in attacked(0.0):
        assert attack.advantage == 0.5
        assert attack.violations(3.0, DELTA) > 0


@pytest.mark.parametrize("epsilon", [1.0, 3.0, 10.0])
def test_no_attack_does_better_than_epsilon_allows(epsilon: float) -> None:
    for attack in attacked(noise_at(epsilon)):
        assert attack.violations(epsilon, DELTA) == 0


def test_attacks_weaken_as_epsilon_falls() -> None:
    by_loss, along = zip(*(attacked(noise_at(epsilon)) for epsilon in (10.0, 3.0, 1.0, 0.1)), strict=True)
    for attacks in (by_loss, along):
        advantages = [attack.advantage for attack in attacks]
        assert advantages == sorted(advantages, reverse=True)
        assert advantages[0] > 0.2
        assert advantages[-1] < 0.05


def test_the_attack_would_notice_a_fifth_of_the_noise() -> None:
    # The bound is no empty one: with a fifth of the noise that ε = 1 needs, the attack breaks it.
    _, along = attacked(0.2 * noise_at(1.0))
    assert along.violations(1.0, DELTA) > 0
