"""What the privacy of a run costs: planned before it begins, for the noise to follow, and counted as it goes.

How many gradients a batch has part in is not what a method says of itself: one step of one client is played
for it, of which nothing is kept. So a method that looks at rows in another way is refused before a run.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import pandas as pd
import torch

from idiolect.core import tree
from idiolect.core.around import innermost, innermost_method
from idiolect.core.cohort import Cohort, Population
from idiolect.core.device import to_device, to_host
from idiolect.core.exchange import Exchange, Message, ServerState
from idiolect.core.method import Method
from idiolect.data.federation import Federation
from idiolect.engines.engine import Engine, Outcome, Setting, Traffic, combine
from idiolect.engines.private_batches import PrivateBatches
from idiolect.engines.round import rehearse_round
from idiolect.engines.sequential import Assignment, Sequential
from idiolect.errors import UserError
from idiolect.participation.sampling import Plan, in_order
from idiolect.privacy.accounting import Release, Spending, batch_release, epsilon_of, noise_for
from idiolect.privacy.row_gradients import counting_gradients
from idiolect.privacy.row_private import row_privacy_of
from idiolect.privacy.settings import PrivacyChoice, RowPrivacy
from idiolect.privacy.silo_private import silo_privacy_of

if TYPE_CHECKING:
    from idiolect.runs.rounds import Training

ALL = "all"  # in the place of a client, where what is spent is the run's
Counts = Counter[int]  # gradients at one sample -> how many samples
Costs = Mapping[str, Counts]  # by client
P = TypeVar("P", bound=PrivacyChoice)


class Entry(NamedTuple):
    """A line of a run's ledger: so many releases in a round, and ε of the client since the run began."""

    round: int
    client: str
    gradients: int
    releases: int
    epsilon: float


class Prices:
    """What rounds of a run release, and what that costs."""

    def __init__(self, setting: Setting, plan: Plan, privacy: PrivacyChoice) -> None:
        self.setting, self.plan, self.privacy = setting, plan, privacy
        self._known: list[tuple[Exchange, Counts]] = []

    def of_round(self, server: ServerState, round_number: int, *, at_most: bool = False) -> Costs:
        """What a round releases; `at_most`: whomever an exchange that chooses its clients itself asks."""
        setting, costs = self.setting, defaultdict[str, Counts](Counter)
        sizes = setting.federation.train.sizes
        cohort = in_order(self.plan.cohort(setting.seed, round_number, sizes), len(sizes))
        for exchange in setting.method.exchanges(server):
            each = self.of_exchange(exchange, server, round_number)
            if not isinstance(self.privacy, RowPrivacy):
                costs[ALL] += each
            elif each:
                chooses = at_most and type(innermost(exchange)).ask is not Exchange.ask
                asked = (
                    _everybody(setting, exchange)
                    if chooses
                    else setting.prepare(exchange, server, cohort, round_number)
                )
                for client, steps in zip(asked.ids.tolist(), asked.steps.tolist(), strict=True):
                    for gradients, batches in each.items():
                        costs[setting.federation.names[client]][gradients] += steps * batches
        return costs

    def spending(self, client: str, counts: Counts, noise: float) -> Spending:
        """The same as releases."""
        batches, rate, cut = self.setting.batches, 1.0, 0.0
        if isinstance(batches, PrivateBatches):
            place = self.setting.federation.names.index(client)
            rate, cut = float(batches.rates[place]), float(batches.cuts[place])
        spent: Counter[Release] = Counter()
        for gradients, releases in counts.items():
            spent[batch_release(noise, gradients, rate, cut)] += releases
        return spent

    def epsilon(self, client: str, counts: Counts, noise: float) -> float:
        """ε of some work."""
        return epsilon_of(self.spending(client, counts, noise), self.privacy.delta)

    def of_exchange(self, exchange: Exchange, server: ServerState, round_number: int) -> Counts:
        """Gradients at each batch of a step; or the upload, if there is one, that a sum is taken of."""
        for known, counts in self._known:
            if known == exchange:
                return counts
        with counting_gradients() as taken:
            upload = _one_client(self.setting, exchange, server, round_number, steps=1)
        if isinstance(self.privacy, RowPrivacy):
            counts = Counter(Counter(taken).values()) if exchange.local_steps != 0 else Counter()
        else:
            counts = Counter({1: 1}) if tree.leaves(upload) else Counter()
        self._known.append((exchange, counts))
        return counts


class Ledger:
    """Counts what a run has spent, round by round, from where it was before."""

    def __init__(self, prices: Prices, kept: pd.DataFrame, played: int) -> None:
        self.prices = prices
        self._paid = 0  # gradients in the round that was charged last
        self._spent: defaultdict[str, Counts] = defaultdict(Counter)
        # A killed run may have counted rounds that it is about to play again.
        for entry in kept[kept["round"] <= played].itertuples():
            self._spent[str(entry.client)][int(entry.gradients)] += int(entry.releases)  # type: ignore[arg-type]

    def charge(self, server: ServerState, played: int) -> list[Entry]:
        """What the next round costs; a round that would cost more than there is left is refused."""
        privacy, entries = self.prices.privacy, []
        for client, counts in self.prices.of_round(server, played).items():
            spent = self._spent[client] + counts
            epsilon = self.prices.epsilon(client, spent, privacy.multiplier)
            if privacy.epsilon is not None and epsilon > privacy.epsilon:
                raise BudgetSpentError(
                    f"privacy.epsilon={privacy.epsilon:g} is spent: with round {played + 1} it would be "
                    f"{epsilon:.3g}"
                )
            self._spent[client] = spent
            entries += [
                Entry(played + 1, client, gradients, releases, epsilon)
                for gradients, releases in counts.items()
                if releases
            ]
        self._paid = sum(entry.gradients * entry.releases for entry in entries)
        return entries

    @contextmanager
    def witnessing(self, engine: Engine) -> Iterator[None]:
        """Refuse to go on if the round that is played took more gradients than it was charged for.

        Only where clients are computed one after the other is each gradient taken once, and Python can ask
        at each step how many to take.
        """
        with counting_gradients() as taken:
            yield
        if isinstance(engine, Sequential) and len(taken) > self._paid and self._is_of_rows:
            name = self.prices.setting.method.name
            raise UserError(
                f"privacy.unit=row cannot be used with method={name} as it is set: a round took {len(taken)} "
                f"private gradients, and {self._paid} were accounted for, as some of its steps take more "
                "than the first"
            )

    @property
    def _is_of_rows(self) -> bool:
        return isinstance(self.prices.privacy, RowPrivacy)


class BudgetSpentError(Exception):
    """Nothing may be released any more."""


def ledger_of(training: "Training", privacy: PrivacyChoice | None, kept: pd.DataFrame) -> Ledger | None:
    """The ledger of a training from what was kept of it; None if nothing is hidden or can be counted."""
    if privacy is None or (isinstance(privacy, RowPrivacy) and not training.knows_rows):
        return None
    return Ledger(Prices(training.engine.setting, training.plan, privacy), kept, training.round)


def privacy_of(method: Method) -> PrivacyChoice | None:
    """What a method with all that stands around it hides, and how well."""
    private = row_privacy_of(method) or silo_privacy_of(method)
    return None if private is None else private.privacy


def spent_in_all(privacy: PrivacyChoice, ledger: pd.DataFrame) -> dict[str, Any]:
    """What a run has spent, for its summary: ε of whoever spent most, and of whoever spent least."""
    by_client = ledger.groupby("client", sort=False)["epsilon"].max() if len(ledger) else pd.Series([0.0])
    return {
        "unit": privacy.unit,
        "epsilon": finite_or_none(by_client.max()),
        "least_epsilon": finite_or_none(by_client.min()),
        "delta": privacy.delta,
        "noise": privacy.noise,
        "clip": privacy.clip,
    }


def finite_or_none(epsilon: float) -> float | None:
    """For a file, which has no infinity."""
    return float(epsilon) if math.isfinite(epsilon) else None


def privacy_sentence(summary: Mapping[str, Any]) -> str | None:
    """The same in words, where a run hid somebody."""
    told = summary.get("privacy")
    if told is None:
        return None

    def shown(epsilon: float | None) -> str:
        return f"{epsilon:.3g}" if epsilon is not None else "∞"

    most, least = shown(told["epsilon"]), shown(told["least_epsilon"])
    between = most if most == least else f"{least} to {most}"
    if told.get("newcomers_epsilon", 0.0) != 0.0:
        between += f" ({shown(told['newcomers_epsilon'])} of newcomers at most)"
    return (
        f"privacy of each {told['unit']}: ε = {between} spent at δ = {told['delta']:g}, noise "
        f"{told['noise']:.4g} times clip {told['clip']:g}; not for metrics, preprocessing and choices by them"
    )


def with_noise(privacy: P, setting: Setting, plan: Plan, rounds: int) -> tuple[P, str]:
    """The noise that the planned rounds need to cost no more than ε; and what was found, in a sentence."""
    prices = Prices(setting, plan, privacy)
    costs = planned(prices, rounds)
    noise = privacy.noise
    if noise is None:
        assert privacy.epsilon is not None, "one of both is given"
        noise = _noise_for_all(prices, costs, privacy.epsilon)
    dearest, epsilon = max(
        ((client, prices.epsilon(client, counts, noise)) for client, counts in costs.items()),
        key=lambda found: found[1],
        default=(ALL, 0.0),
    )
    if privacy.epsilon is not None and epsilon > privacy.epsilon:
        raise UserError(
            f"privacy.noise={noise:g} is too little for privacy.epsilon={privacy.epsilon:g}: {rounds} rounds "
            f"would cost {epsilon:.3g}; leave one of them out"
        )
    whose = "" if dearest == ALL else f", most of it for the rows of {dearest!r}{_drowned(setting, noise)}"
    return replace(privacy, noise=noise), (
        f"privacy of each {privacy.unit}: noise {noise:g} times clip {privacy.clip:g}, so that {rounds} "
        f"rounds cost ε = {epsilon:.3g} at δ = {privacy.delta:g} at most{whose}"
    )


def _drowned(setting: Setting, noise: float) -> str:
    """Whose gradients noise drowns, if anybody's: |σ C z| ≈ σ C sqrt(parameters) against b C at most."""
    parameters = sum(value.numel() for value in setting.objective.initial_params().values())
    sizes = setting.batches.batch_sizes
    ratio = noise * math.sqrt(parameters) / sizes
    if not (ratio > 1).any():
        return ""
    worst, count = int(ratio.argmax()), int((ratio > 1).sum())
    return (
        f"; noise is longer than all gradients of a batch together can be for {count} of {len(sizes)} "
        f"clients, {float(ratio[worst]):.3g} times for {setting.federation.names[worst]!r}: larger batches, "
        "fewer rounds or smaller models need less"
    )


def planned(prices: Prices, rounds: int) -> Costs:
    """What all rounds release, at most."""
    costs = defaultdict[str, Counts](Counter)
    for number, server in _servers(prices, rounds):
        for client, counts in prices.of_round(server, number, at_most=True).items():
            costs[client] += counts
    return costs


def _noise_for_all(prices: Prices, costs: Costs, epsilon: float) -> float:
    """Noise for the client where it is dearest; found again if another is dearer with that noise."""
    kinds = {_kind(prices, client, counts): (client, counts) for client, counts in costs.items() if counts}
    if not kinds:
        return 0.0
    noise = None
    while True:
        tried = 1.0 if noise is None else noise
        by_cost = {prices.epsilon(*one, tried): one for one in kinds.values()}
        if noise is not None and max(by_cost) <= epsilon:
            return noise
        dearest = by_cost[max(by_cost)]
        noise = noise_for(epsilon, prices.privacy.delta, partial(prices.spending, *dearest))


def _kind(prices: Prices, client: str, counts: Counts) -> tuple[object, ...]:
    """What the cost of some work depends on."""
    return tuple(sorted(prices.spending(client, counts, 1.0).items()))


def _servers(prices: Prices, rounds: int) -> Iterator[tuple[int, ServerState]]:
    """The server before each round: the same, but for methods whose exchanges change with it."""
    setting, plan = prices.setting, prices.plan
    server = setting.found(plan)
    if setting.method.adapts:  # clients look at rows to predict, if they do
        sequential, first = Sequential(setting), torch.tensor([0])
        sequential.survey(setting.method.adapt, server, setting.federation.train, first, 0)
    changes = type(innermost_method(setting.method)).exchanges is not Method.exchanges
    for number in range(rounds):
        yield number, server
        if changes:
            server = rehearse_round(_Rehearsal(setting), plan, server, number).server


class _Rehearsal:
    """An engine whose clients answer without training, all alike."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    def carry_out(
        self, exchange: Exchange, server: ServerState, cohort: Cohort, round_number: int
    ) -> Outcome:
        """Carry out one exchange."""
        cohort = self.setting.prepare(exchange, server, cohort, round_number)
        arrived = cohort.select(cohort.replied)
        upload = _one_client(self.setting, exchange, server, round_number, steps=0)
        replies = combine(exchange, server, [upload] * len(arrived), arrived)
        return Outcome(replies, arrived, Traffic(len(cohort)), cohort.ids)


def _one_client(
    setting: Setting, exchange: Exchange, server: ServerState, round_number: int, steps: int
) -> Message:
    """The upload of the first client after some steps; its state stays as it was."""
    ids = torch.tensor([0])
    down = exchange.down(server, ids)
    client = to_device(tree.row(setting.arrivals(setting.founding, ids), 0), setting.device)
    one = _cohort(setting.federation, ids, torch.tensor([steps]))
    down = to_device(tree.row(down, 0) if exchange.personal_down else down, setting.device)
    return to_host(Sequential(setting).work(Assignment(exchange, down, client, one, round_number))[1])


def _everybody(setting: Setting, exchange: Exchange) -> Cohort:
    """All clients with all their work."""
    ids = torch.arange(len(setting.federation))
    assert exchange.local_steps != 0
    return _cohort(setting.federation, ids, setting.batches.steps(exchange.local_steps, ids))


def _cohort(federation: Federation, ids: torch.Tensor, steps: torch.Tensor) -> Cohort:
    ones = torch.ones(len(ids), dtype=torch.float64)
    sizes = federation.train.sizes
    population = Population(sizes, torch.ones(len(sizes), dtype=torch.bool))
    return Cohort(ids, ones, ones.bool(), ones, population, steps)
