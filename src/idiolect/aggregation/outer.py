"""An outer step in place of an average, around any method whose server keeps one for all clients. Spec 8.13.

    Δ = θ⁺ - θ,    θ, memory <- step(θ, Δ, memory)

θ is what the server had, θ⁺ what the method made of it: the average Σ a_i θ_i, or a step of its own. θ are
the fields of the server that clients are sent, and of which they send changed copies or changes. What only
one client has never moves here, and where nobody replied nothing does, memory included.
"""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from idiolect.core import tree
from idiolect.core.cohort import Cohort, Population
from idiolect.core.exchange import Exchange, Info, Message, ServerState
from idiolect.core.method import Method
from idiolect.core.outer_step import Memory, OuterStep
from idiolect.core.same_messages import SameMessages, SameMessagesExchange
from idiolect.core.tree import Params
from idiolect.errors import UserError


class Server(NamedTuple):
    """The method's server, and what the step remembers of each field that it moves."""

    inner: ServerState
    memory: dict[str, Memory]


@dataclass(frozen=True)
class Outer(SameMessages):
    """A method whose server steps beyond the average, or less far."""

    method: Method
    outer: OuterStep

    def server_init(self, params: Params, population: Population, key: Tensor) -> Server:
        """Nothing has changed yet; a method without a common average is refused."""
        inner = self.method.server_init(params, population, key)
        averaged = {
            name: getattr(inner, name)
            for exchange in self.method.exchanges(inner)
            for name in averaged_fields(exchange, inner)
        }
        if not tree.leaves(averaged):
            raise UserError(
                f"outer={self.outer.name} cannot be used with method={self.name}: its server keeps no "
                "average for all clients that it could step beyond; leave out outer"
            )
        return Server(inner, {name: self.outer.init(model) for name, model in averaged.items()})

    def around(self, exchange: Exchange) -> "OuterExchange":
        """The exchange, after which the server steps on."""
        return OuterExchange(exchange, self.outer)


@dataclass(frozen=True)
class OuterExchange(SameMessagesExchange):
    """An exchange after which the server steps on."""

    inner: Exchange
    outer: OuterStep

    def absorb(self, server: Server, replies: Message, cohort: Cohort) -> tuple[Server, Info]:
        """Δ is what the method does with the replies."""
        inner, info = self.inner.absorb(server.inner, replies, cohort)
        memory, moved = dict(server.memory), {}
        for name in averaged_fields(self.inner, inner):
            before, average = getattr(server.inner, name), getattr(inner, name)
            if average is before:  # no reply counted
                continue
            change = tree.subtract(average, before)
            moved[name], memory[name] = self.outer.apply(before, change, memory[name])
        return Server(inner._replace(**moved), memory), info


def averaged_fields(exchange: Exchange, server: ServerState) -> list[str]:
    """The fields of a server that an exchange averages for all clients."""
    sent = {*exchange.relative_to.values(), *exchange.changes_of.values()} - exchange.relied_on
    common = sent & exchange.common_fields if exchange.personal_down else sent
    return [name for name in server._fields if name in common]
