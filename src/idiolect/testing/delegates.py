"""Methods and exchanges with somebody who watches: what they change, what they send, what crosses."""

from typing import Any, Self, get_args, get_type_hints

import torch
from torch import Tensor, nn

from idiolect.core import tree
from idiolect.core.around import ExchangeAround
from idiolect.core.cohort import Cohort
from idiolect.core.exchange import Exchange, Message
from idiolect.testing.contract import through_bytes


class Delegate:
    """Stands before an exchange or a method; what it does not define goes to the one behind."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def for_model(self, module: nn.Module) -> Self:
        """Of a method: stand before the one for this model."""
        self.inner = self.inner.for_model(module)
        return self

    def transport(self, exchange: "Delegate") -> Any:
        """Of a method: that of the exchange behind the one that it gave."""
        return self.inner.transport(exchange.inner)


class Watched(Delegate):
    """Compares every argument before and after every call."""

    _CALLS = (
        "down", "begin", "step", "finish", "absorb", "weights", "end_round", "brief", "adapt", "predictors"
    )  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.inner, name)
        if name == "exchanges":
            return lambda server: [Watched(exchange) for exchange in attribute(server)]
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


class Typed(Delegate):
    """A method whose messages are held to the types that its functions declare."""

    def exchanges(self, server: Any) -> list["TypedExchange"]:
        """Those of the method."""
        return [TypedExchange(exchange) for exchange in self.inner.exchanges(server)]

    def brief(self, server: Any, ids: Tensor) -> Any:
        """The method's."""
        message = self.inner.brief(server, ids)
        declared = get_type_hints(type(self.inner).brief)["return"]
        if declared is not Message:  # what stands around a method forwards its brief
            _require_type("brief", message, declared)
        return message


class TypedExchange(Delegate):
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


class Wired(Delegate):
    """Server half and client half as two copies of a method, with bytes between them."""

    def __init__(self, server_half: Any, client_half: Any) -> None:
        super().__init__(server_half)
        self.client_half = client_half
        self.journals: dict[str, Any] = {}

    def for_model(self, module: nn.Module) -> Self:
        """Both halves for this model."""
        self.client_half = self.client_half.for_model(module)
        return super().for_model(module)

    def __getattr__(self, name: str) -> Any:
        of_client = name in ("client_init", "adapt", "predictors")
        return getattr(self.client_half if of_client else self.inner, name)

    def exchanges(self, server: Any) -> list["WiredExchange"]:
        """Those of both halves, in pairs."""
        pairs = zip(self.inner.exchanges(server), self.client_half.exchanges(server), strict=True)
        return [WiredExchange(*pair, self.inner.transport(pair[0]), self.journals) for pair in pairs]

    def brief(self, server: Any, ids: Tensor) -> Any:
        """The brief as it travels."""
        return through_bytes(self.inner.brief(server, ids))


class WiredExchange(Delegate):
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
        return through_bytes(self.inner.down(server, ids))

    def begin(self, client: Any, down: Any, site: Any) -> Any:
        """The client half of it; what it receives must be what was sent."""
        transport = self.travels
        sent = through_bytes(transport.send_down(self.server, down, site.client_id, self.journals))
        _require_received(transport.receive_down(sent, client), down, "receive_down")
        return self.client_half.begin(client, down, site)

    def finish(self, work: Any, client: Any, down: Any, site: Any) -> Any:
        """The client half of it; what the server receives must be what was sent."""
        state, up = self.client_half.finish(work, client, down, site)
        sent = through_bytes(self.travels.send_up(up))
        received = self.travels.receive_up(sent, tree.zeros_like(up))
        _require_received(received, up, "receive_up")
        return through_bytes(state), received


class Reversed(Delegate):
    """Asks whom the method asks, in the opposite order."""

    def __getattr__(self, name: str) -> Any:
        if name == "exchanges":
            return lambda server: [Reversed(exchange) for exchange in self.inner.exchanges(server)]
        return getattr(self.inner, name)

    def ask(self, server: Any, cohort: Cohort, key: Tensor) -> Cohort:
        """Whom the exchange asks, backwards."""
        asked: Cohort = self.inner.ask(server, cohort, key)
        return asked.select(torch.arange(len(asked)).flip(0))


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


def _require_received(received: Any, sent: Any, name: str) -> None:
    """What comes out of the wire must be what went in, bit for bit."""
    pairs = zip(tree.leaves(received), tree.leaves(sent), strict=True)
    if not all(torch.equal(ours, theirs) for ours, theirs in pairs):
        raise AssertionError(f"{name} gives another message than was sent")
