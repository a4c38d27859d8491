"""The contract of a method as checks that any method, also a user's own, can be put through."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from idiolect.codecs.config import with_own_codec
from idiolect.core import tree
from idiolect.core.around import ExchangeAround
from idiolect.core.cohort import Cohort
from idiolect.core.exchange import Exchange, Message
from idiolect.core.method import Method, PredictorKind
from idiolect.core.observed import observed
from idiolect.core.tree import Tree
from idiolect.errors import UserError
from idiolect.participation.sampling import Uniform
from idiolect.simulation import EngineName, Simulation
from idiolect.testing.problems import ZOO, Quadratics, small_network, uneven_classification

ROUNDS = 4
EQUAL = 1e-9  # relative, in float64, between computations that differ in the order of operations
CONVERGED = 1e-6


class MethodError(AssertionError):
    """A method breaks its contract; the message has one line for each broken clause."""


@dataclass(frozen=True)
class Reduction:
    """A claim that one kind of model of the method equals some kind of another method's, always."""

    kind: PredictorKind
    other: Method
    other_kind: PredictorKind


FixedPoint = Callable[[Quadratics], Mapping[PredictorKind, Tensor]]


def check_method(
    method: Method,
    *,
    reductions: Sequence[Reduction] = (),
    fixed_point: FixedPoint | None = None,
    rounds_to_fixed_point: int = 300,
) -> None:
    """Put a method through its contract; raise `MethodError` naming each clause that it breaks.

    `reductions` are claims of equality with other methods. `fixed_point` says where the method's models
    end on asymmetric quadratics, one row for each client; without it that clause is not checked.
    """
    name, method = type(method).__name__, observed(with_own_codec(method))
    clauses: list[tuple[str, Callable[[], None]]] = [
        ("inputs are not changed", lambda: _inputs_unchanged(method)),
        ("messages are of their declared type", lambda: _messages_typed(method)),
        ("nothing but messages crosses, nothing but states is remembered", lambda: _only_messages(method)),
        ("states survive serialisation", lambda: _states_survive(method)),
        ("vectorised equals sequential", lambda: _engines_agree(method, Uniform(rate=0.7))),
        ("clients that finish early stand still", lambda: _engines_agree(method, PartialWork())),
        *(
            (f"vectorised equals sequential on {name}", lambda model=model: _agree_on(method, model))
            for name, model in ZOO.items()
        ),
        ("the order of clients is irrelevant", lambda: _order_irrelevant(method)),
        ("a client can join at any round", lambda: _arrivals_welcome(method)),
        *((f"reduces to {r.other.name}", lambda r=r: _reduces(method, r)) for r in reductions),
    ]
    if fixed_point is not None:
        clauses.append(
            ("reaches its fixed point", lambda: _reaches(method, fixed_point, rounds_to_fixed_point))
        )
    broken = [f"{title}: {problem}" for title, clause in clauses if (problem := _problem_of(clause))]
    if broken:
        raise MethodError(f"{name} breaks its contract\n" + "\n".join(broken))


@dataclass(frozen=True)
class PartialWork:
    """Everybody is asked; client i completes a share of the work that depends on i and the round."""

    joins: Mapping[int, int] | None = None  # client -> the round in which it arrives

    def cohort(self, seed: int, round_number: int, sizes: Tensor) -> Cohort:
        """All present clients, the last reply of every other round lost."""
        plan = Uniform().cohort(seed, round_number, sizes)
        ids = self.present(round_number, len(sizes)).nonzero()[:, 0]
        work = ((ids + round_number) % 3 + 1).double() / 3
        replied = (ids < len(sizes) - 1) | (torch.tensor(round_number) % 2 == 0)
        population = type(plan.population)(sizes, self.present(round_number, len(sizes)))
        return Cohort(ids, work, replied, torch.ones(len(ids), dtype=torch.float64), population)

    def present(self, round_number: int, clients: int) -> Tensor:
        """Everybody but those who arrive later."""
        joins = self.joins or {}
        return torch.tensor([joins.get(c, 0) <= round_number for c in range(clients)])


def simulate(
    method: Any,
    engine: EngineName = "sequential",
    plan: Any = None,
    model: Callable[[], nn.Module] = small_network,
    **options: Any,
) -> Simulation:
    """The method on an uneven classification problem in float64."""
    settings: dict[str, Any] = {"batch_size": 5, "weight_decay": 0.01, "seed": 3} | options
    return Simulation(
        method,
        model,
        uneven_classification(),
        plan=plan,
        engine=engine,
        dtype=torch.float64,
        **settings,
    )


def _problem_of(clause: Callable[[], None]) -> str:
    try:
        clause()
    except Exception as error:  # a broken method may fail in any way; the report names the clause
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return ""


def _require_equal(ours: Tree, theirs: Tree, tolerance: float) -> None:
    a, b = tree.to_named(ours), tree.to_named(theirs)
    if a.keys() != b.keys():
        raise AssertionError(f"the fields differ: {sorted(a.keys() ^ b.keys())}")
    for name in a:
        scale = max(float(b[name].double().abs().max()) if b[name].numel() else 0.0, 1.0)
        apart = float((a[name].double() - b[name].double()).abs().max()) if b[name].numel() else 0.0
        if not apart <= tolerance * scale:
            raise AssertionError(f"{name} differs by {apart:.3g}")


def _everything(simulation: Simulation) -> Tree:
    return (simulation.server, simulation.clients(), simulation.predictors())


def _through_bytes(state: Tree) -> Tree:
    named = {name: value.detach().clone().contiguous() for name, value in tree.to_named(state).items()}
    return tree.from_named(load(save(named)), state)


class _Delegate:
    """Stands before an exchange or a method; what it does not define goes to the one behind."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def transport(self, exchange: "_Delegate") -> Any:
        """Of a method: that of the exchange behind the one that it gave."""
        return self.inner.transport(exchange.inner)


class _Watched(_Delegate):
    """Compares every argument before and after every call."""

    _CALLS = (
        "down", "begin", "step", "finish", "absorb", "weights", "end_round", "brief", "adapt", "predictors"
    )  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.inner, name)
        if name == "exchanges":
            return lambda server: [_Watched(exchange) for exchange in attribute(server)]
        if name not in self._CALLS:
            return attribute

        def call(*arguments: Any) -> Any:
            trees = [a for a in arguments if isinstance(a, dict | tuple | Tensor)]
            before = tree.map_tree(torch.clone, trees)
            result = attribute(*arguments)
            for old, new in zip(tree.leaves(before), tree.leaves(trees), strict=True):
                if not torch.equal(old, new):
                    raise AssertionError(f"{name} changes one of its arguments")
            return result

        return call


class _Typed(_Delegate):
    """A method whose messages are held to the types that its functions declare."""

    def exchanges(self, server: Any) -> list["_TypedExchange"]:
        """Those of the method."""
        return [_TypedExchange(exchange) for exchange in self.inner.exchanges(server)]

    def brief(self, server: Any, ids: Tensor) -> Any:
        """The method's."""
        message = self.inner.brief(server, ids)
        declared = get_type_hints(type(self.inner).brief)["return"]
        if declared is not Message:  # what stands around a method forwards its brief
            _require_type("brief", message, declared)
        return message


class _TypedExchange(_Delegate):
    """An exchange whose messages are held to the types that its functions declare."""

    def down(self, server: Any, ids: Tensor) -> Any:
        """The exchange's."""
        message = self.inner.down(server, ids)
        _require_type("down", message, get_type_hints(_declaring(self.inner).down)["return"])
        return message

    def finish(self, *arguments: Any) -> Any:
        """The exchange's."""
        client, message = self.inner.finish(*arguments)
        declared = get_args(get_type_hints(_declaring(self.inner).finish)["return"])[1]
        _require_type("finish", message, declared)
        return client, message


class _Wired(_Delegate):
    """Server half and client half as two copies of a method, with bytes between them."""

    def __init__(self, server_half: Any, client_half: Any) -> None:
        super().__init__(server_half)
        self.client_half = client_half
        self.journals: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        of_client = name in ("client_init", "adapt", "predictors")
        return getattr(self.client_half if of_client else self.inner, name)

    def exchanges(self, server: Any) -> list["_WiredExchange"]:
        """Those of both halves, in pairs."""
        pairs = zip(self.inner.exchanges(server), self.client_half.exchanges(server), strict=True)
        return [_WiredExchange(*pair, self.inner.transport(pair[0]), self.journals) for pair in pairs]

    def brief(self, server: Any, ids: Tensor) -> Any:
        """The brief as it travels."""
        return _through_bytes(self.inner.brief(server, ids))


class _WiredExchange(_Delegate):
    """The halves of an exchange, with bytes between them."""

    def __init__(self, server_half: Any, client_half: Any, transport: Any, journals: dict[str, Any]) -> None:
        super().__init__(server_half)
        self.client_half, self.travels, self.journals = client_half, transport, journals
        self.server: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client_half if name == "step" else self.inner, name)

    def down(self, server: Any, ids: Tensor) -> Any:
        """The message as it travels."""
        self.server = server
        self.journals.update(self.travels.journals(server, dict(self.journals)))
        return _through_bytes(self.inner.down(server, ids))

    def begin(self, client: Any, down: Any, site: Any) -> Any:
        """The client half of it; what it receives must be what was sent."""
        transport = self.travels
        sent = _through_bytes(transport.send_down(self.server, down, site.client_id, self.journals))
        _require_received(transport.receive_down(sent, client), down, "receive_down")
        return self.client_half.begin(client, down, site)

    def finish(self, work: Any, client: Any, down: Any, site: Any) -> Any:
        """The client half of it; what the server receives must be what was sent."""
        state, up = self.client_half.finish(work, client, down, site)
        sent = _through_bytes(self.travels.send_up(up))
        received = self.travels.receive_up(sent, tree.zeros_like(up))
        _require_received(received, up, "receive_up")
        return _through_bytes(state), received


def _require_received(received: Any, sent: Any, name: str) -> None:
    """What comes out of the wire must be what went in, bit for bit."""
    pairs = zip(tree.leaves(received), tree.leaves(sent), strict=True)
    if not all(torch.equal(ours, theirs) for ours, theirs in pairs):
        raise AssertionError(f"{name} gives another message than was sent")


def _inputs_unchanged(method: Method) -> None:
    simulate(_Watched(copy.deepcopy(method)), plan=PartialWork()).play(2)


def _messages_typed(method: Method) -> None:
    simulate(_Typed(copy.deepcopy(method))).play(2).predictors()


def _declaring(exchange: Exchange) -> type[Exchange]:
    """Whose declarations the messages keep: those of the method where what stands around leaves them so."""
    while isinstance(exchange, ExchangeAround) and get_type_hints(type(exchange).down)["return"] is Message:
        exchange = exchange.inner
    return type(exchange)


def _require_type(call: str, message: Any, declared: Any) -> None:
    if not (isinstance(declared, type) and issubclass(declared, tuple) and hasattr(declared, "_fields")):
        raise TypeError(f"{call} must declare the NamedTuple that it sends, not {declared}")
    if type(message) is not declared:
        raise TypeError(f"{call} sends a {type(message).__name__}, declared is {declared.__name__}")
    if message._fields != declared._fields:
        raise TypeError(f"{call} sends other fields than declared")
    tree.to_named(message)


def _only_messages(method: Method) -> None:
    together = simulate(copy.deepcopy(method), plan=PartialWork()).play(ROUNDS)
    apart = simulate(_Wired(copy.deepcopy(method), copy.deepcopy(method)), plan=PartialWork()).play(ROUNDS)
    _require_equal(_everything(apart), _everything(together), 0.0)


def _states_survive(method: Method) -> None:
    unbroken = simulate(copy.deepcopy(method)).play(ROUNDS)
    first = simulate(copy.deepcopy(method)).play(ROUNDS // 2)
    second = simulate(copy.deepcopy(method))  # a fresh process knows the states and the round, no more
    second.server, second.round = _through_bytes(first.server), first.round
    everybody = torch.arange(len(first.federation))
    second.engine.setting.store.put(everybody, _through_bytes(first.clients()))
    second.play(ROUNDS - ROUNDS // 2)
    _require_equal(_everything(second), _everything(unbroken), 0.0)


def _engines_agree(method: Method, plan: Any) -> None:
    sequential = simulate(copy.deepcopy(method), plan=plan).play(ROUNDS)
    vectorised = simulate(copy.deepcopy(method), "vectorised", plan=plan).play(ROUNDS)
    _require_equal(_everything(vectorised), _everything(sequential), EQUAL)


def _agree_on(method: Method, model: Callable[[], nn.Module]) -> None:
    """Both engines on another model, unless the method refuses it in words."""
    try:
        sequential = simulate(copy.deepcopy(method), model=model)
    except UserError:
        return
    vectorised = simulate(copy.deepcopy(method), "vectorised", model=model)
    _require_equal(_everything(vectorised.play(2)), _everything(sequential.play(2)), EQUAL)


class _Reversed(_Delegate):
    """Asks whom the method asks, in the opposite order."""

    def __getattr__(self, name: str) -> Any:
        if name == "exchanges":
            return lambda server: [_Reversed(exchange) for exchange in self.inner.exchanges(server)]
        return getattr(self.inner, name)

    def ask(self, server: Any, cohort: Cohort, key: Tensor) -> Cohort:
        asked: Cohort = self.inner.ask(server, cohort, key)
        return asked.select(torch.arange(len(asked)).flip(0))


def _order_irrelevant(method: Method) -> None:
    forwards = simulate(copy.deepcopy(method)).play(2)
    backwards = simulate(_Reversed(copy.deepcopy(method))).play(2)
    _require_equal(_everything(backwards), _everything(forwards), EQUAL)


def _arrivals_welcome(method: Method) -> None:
    for joined in (1, ROUNDS - 1):
        simulation = simulate(copy.deepcopy(method), plan=PartialWork(joins={2: joined})).play(ROUNDS)
        for name, value in tree.to_named(_everything(simulation)).items():
            if not torch.isfinite(value).all():
                raise AssertionError(f"{name} is not finite after a client joined in round {joined}")


def _reduces(method: Method, reduction: Reduction) -> None:
    for plan in (Uniform(), Uniform(rate=0.6)):
        ours = simulate(copy.deepcopy(method), plan=plan).play(ROUNDS).predictors()[reduction.kind]
        theirs = simulate(reduction.other, plan=plan).play(ROUNDS).predictors()[reduction.other_kind]
        _require_equal(ours, theirs, EQUAL)


def _reaches(method: Method, fixed_point: FixedPoint, rounds: int) -> None:
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
