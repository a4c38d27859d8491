"""The contract of a method as checks that any method, also a user's own, can be put through."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

from idiolect.codecs.choice import CodecConfig, with_own_codec
from idiolect.core import tree
from idiolect.core.method import Method, PredictorKind
from idiolect.core.objective import members_of
from idiolect.core.observed import observed
from idiolect.core.tree import Tree
from idiolect.errors import UserError
from idiolect.participation.sampling import Plan, Uniform
from idiolect.simulation import Simulation
from idiolect.testing.contract import (
    EQUAL,
    ROUNDS,
    Clause,
    PartialWork,
    everything,
    require_clauses,
    require_equal,
    simulate,
    through_bytes,
)
from idiolect.testing.delegates import Reversed, Typed, Watched, Wired
from idiolect.testing.problems import ZOO, NetworkOfHalves, Quadratics, in_halves

CONVERGED = 1e-6
LOSSY = CodecConfig(up="topk", keep=0.5)


@dataclass(frozen=True)
class Reduction:
    """A claim that one kind of model of the method equals some kind of another method's, always."""

    kind: PredictorKind
    other: Method
    other_kind: PredictorKind


Played = Callable[[], Tree]
FixedPoint = Callable[[Quadratics], Mapping[PredictorKind, Tensor]]


def check_method(
    method: Method,
    *,
    reductions: Sequence[Reduction] = (),
    fixed_point: FixedPoint | None = None,
    rounds_to_fixed_point: int = 300,
) -> None:
    """Put a method through its contract; raise `ContractError` naming each clause that it breaks.

    `reductions` are claims of equality with other methods. `fixed_point` says where the method's models
    end on asymmetric quadratics, one row for each client; without it that clause is not checked.
    """
    bare, name, method = method, type(method).__name__, observed(with_own_codec(method))
    # What several clauses compare others with is played once.
    plain = cache(lambda: _played(method, Uniform(), 2))
    partial = cache(lambda: _played(method, PartialWork(), ROUNDS))
    clauses: list[Clause] = [
        ("inputs are not changed", lambda: _inputs_unchanged(method)),
        ("messages are of their declared type", lambda: _messages_typed(method)),
        (
            "nothing but messages crosses, nothing but states is remembered",
            lambda: _only_messages(method, partial),
        ),
        ("states survive serialisation", lambda: _states_survive(method)),
        ("vectorised equals sequential", lambda: _engines_agree(method, Uniform(rate=0.7))),
        ("clients that finish early stand still", lambda: _engines_agree(method, PartialWork(), partial)),
        *(
            (f"vectorised equals sequential on {name}", lambda model=model: _agree_on(method, model))
            for name, model in ZOO.items()
        ),
        ("rows may have several inputs", lambda: _several_inputs_welcome(method, plain)),
        ("the order of clients is irrelevant", lambda: _order_irrelevant(method, plain)),
        ("a client can join at any round", lambda: _arrivals_welcome(method)),
        ("a newcomer gets a model of its own", lambda: _newcomers_welcome(method)),
        ("models have the names of the model's parameters", lambda: _names_kept(method)),
        ("to look at clients changes nothing", lambda: _looking_changes_nothing(method, plain)),
        ("it can be a key, and its copies are equal", lambda: _hashable(method)),
        ("a codec compresses it, or is refused in words", lambda: _compressible(bare)),
        *((f"reduces to {r.other.name}", lambda r=r: _reduces(method, r)) for r in reductions),
    ]
    if fixed_point is not None:
        clauses.append(
            ("reaches its fixed point", lambda: check_fixed_point(bare, fixed_point, rounds_to_fixed_point))
        )
    require_clauses(name, clauses)


def _played(method: Method, plan: Plan, rounds: int) -> Tree:
    """What the method comes to on the sequential engine."""
    return everything(simulate(copy.deepcopy(method), plan=plan).play(rounds))


def _inputs_unchanged(method: Method) -> None:
    simulate(Watched(copy.deepcopy(method)), plan=PartialWork()).play(2)


def _messages_typed(method: Method) -> None:
    simulate(Typed(copy.deepcopy(method))).play(2).predictors()


def _only_messages(method: Method, together: Played) -> None:
    apart = simulate(Wired(copy.deepcopy(method), copy.deepcopy(method)), plan=PartialWork()).play(ROUNDS)
    require_equal(everything(apart), together(), 0.0)


def _states_survive(method: Method) -> None:
    unbroken = simulate(copy.deepcopy(method)).play(ROUNDS)
    first = simulate(copy.deepcopy(method)).play(ROUNDS // 2)
    second = simulate(copy.deepcopy(method))  # a fresh process knows the states and the round, no more
    second.server, second.round = through_bytes(first.server), first.round
    everybody = torch.arange(len(first.federation))
    second.engine.setting.store.put(everybody, through_bytes(first.clients()))
    second.play(ROUNDS - ROUNDS // 2)
    require_equal(everything(second), everything(unbroken), 0.0)


def _engines_agree(method: Method, plan: Plan, sequential: Played | None = None) -> None:
    vectorised = simulate(copy.deepcopy(method), "vectorised", plan=plan).play(ROUNDS)
    expected = _played(method, plan, ROUNDS) if sequential is None else sequential()
    require_equal(everything(vectorised), expected, EQUAL)


def _agree_on(method: Method, model: Callable[[], nn.Module]) -> None:
    """Both engines on another model, unless the method refuses it in words."""
    try:
        sequential = simulate(copy.deepcopy(method), model=model)
    except UserError:
        return
    vectorised = simulate(copy.deepcopy(method), "vectorised", model=model)
    require_equal(everything(vectorised.play(2)), everything(sequential.play(2)), EQUAL)


def _several_inputs_welcome(method: Method, whole: Played) -> None:
    """The same rows and network, with the features in two inputs by name; a method may refuse it in words."""
    try:
        halves = simulate(copy.deepcopy(method), "vectorised", model=NetworkOfHalves, federation=in_halves)
    except UserError:
        return
    require_equal(everything(halves.play(2)), whole(), EQUAL)


def _order_irrelevant(method: Method, forwards: Played) -> None:
    backwards = simulate(Reversed(copy.deepcopy(method))).play(2)
    require_equal(everything(backwards), forwards(), EQUAL)


def _arrivals_welcome(method: Method) -> None:
    early, late = 1, ROUNDS - 1
    arrivals = PartialWork(joins={2: early, 3: late})
    for name, value in tree.to_named(_played(method, arrivals, ROUNDS)).items():
        if not torch.isfinite(value).all():
            raise AssertionError(f"{name} is not finite after clients joined in rounds {early} and {late}")


def _newcomers_welcome(method: Method) -> None:
    """It depends neither on who else is new nor on its place among them, and the run stays as it is."""
    trained = simulate(copy.deepcopy(method), batch_size=None).play(ROUNDS)
    before = copy.deepcopy(everything(trained))
    alone = trained.newcomers(trained.federation.subset([3])).predictor(0)
    together = trained.newcomers(trained.federation.subset([0, 3, 1])).predictor(1)
    require_equal(together, alone, EQUAL)
    require_equal(everything(trained), before, 0.0)
    for name, value in tree.to_named(alone).items():
        if not torch.isfinite(value).all():
            raise AssertionError(f"{name} of a newcomer is not finite")


def _names_kept(method: Method) -> None:
    simulation = simulate(copy.deepcopy(method)).play(1)
    names = simulation.engine.setting.objective.initial_params().keys()
    predictors = simulation.predictor(1)
    if tuple(predictors) != tuple(method.kinds):
        raise AssertionError(f"the models are {tuple(predictors)}, declared are {method.kinds}")
    if method.judged_by not in method.kinds:
        raise AssertionError(f"it is judged by {method.judged_by!r}, which is none of its models")
    for kind, predictor in predictors.items():
        for member in members_of(predictor):
            if member.keys() != names:
                raise AssertionError(f"the {kind} model has the parameters {list(member)}, not {list(names)}")


def _looking_changes_nothing(method: Method, unwatched: Played) -> None:
    """Adaptation included: a run that is looked at in every round ends like one that is not."""
    watched = simulate(copy.deepcopy(method))
    for _ in range(2):
        watched.predictors()
        watched.advance()
    require_equal(everything(watched), unwatched(), 0.0)


def _hashable(method: Method) -> None:
    """Recorded steps are found by their exchange."""
    server = simulate(copy.deepcopy(method)).server
    for ours, theirs in (
        (method, copy.deepcopy(method)),
        *zip(method.exchanges(server), copy.deepcopy(method).exchanges(server), strict=True),
    ):
        if ours != theirs or hash(ours) != hash(theirs):
            raise AssertionError(f"a copy of {type(ours).__name__} is not equal to it")


def _compressible(method: Method) -> None:
    """Both engines through a codec that leaves half of every change out."""
    try:
        sequential = simulate(LOSSY.wrap(copy.deepcopy(method)))
    except UserError:
        return
    vectorised = simulate(LOSSY.wrap(copy.deepcopy(method)), "vectorised")
    require_equal(everything(vectorised.play(2)), everything(sequential.play(2)), EQUAL)


def _reduces(method: Method, reduction: Reduction) -> None:
    for plan in (Uniform(), Uniform(rate=0.6)):
        ours = simulate(copy.deepcopy(method), plan=plan).play(ROUNDS).predictors()[reduction.kind]
        theirs = simulate(reduction.other, plan=plan).play(ROUNDS).predictors()[reduction.other_kind]
        require_equal(ours, theirs, EQUAL)


def check_fixed_point(method: Method, fixed_point: FixedPoint, rounds: int = 300) -> None:
    """The method's models must end where mathematics says, on asymmetric quadratics."""
    problem = Quadratics.asymmetric()
    simulation = Simulation(
        copy.deepcopy(method), problem.model, problem.federation(), batch_size=None, dtype=torch.float64
    ).play(rounds)
    reached = simulation.predictors()
    for kind, expected in fixed_point(problem).items():
        params = reached[kind]
        assert isinstance(params, dict)
        apart = float((problem.weights(params) - expected).abs().max())
        if not apart <= CONVERGED:
            raise AssertionError(f"the {kind} models end {apart:.3g} away from the known point")
