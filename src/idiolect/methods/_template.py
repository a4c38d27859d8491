"""<Name> (<authors> <year>): one line that says what is new.

Copy this file, rename it, and replace every <...>. Begin with the equations, in the paper's symbols, each
on the line of the code that computes it:

    client i:  w_i <- w;  repeat local_steps times:  w_i <- w_i - η ∇f_i(w_i; ξ)
    server:    w <- mean of the w_i

Then say what every symbol is, what the client keeps, and what crosses. `docs/writing-a-method.md` explains
each part; `idiolect.testing.check_method` tells whether the result keeps the contract.
"""

from typing import ClassVar, NamedTuple

from pydantic.dataclasses import dataclass
from torch import Tensor

from idiolect import core
from idiolect.core import STRICT, Batches, Params, Site, hyper, tree


# What the server remembers from round to round: only what the next round needs.
class Server(NamedTuple):
    """<The shared model w.>"""

    w: Params


# What a client remembers from round to round. It never leaves the client.
class Client(NamedTuple):
    """<The last local copy w_i.>"""

    w: Params


# What crosses, by name. Nothing else does.
class Down(NamedTuple):
    """To every client: <the shared model>."""

    w: Params


class Up(NamedTuple):
    """From each client: <its model after the local steps>."""

    w: Params


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Template(core.Method, core.Exchange):
    """<One line for the list of methods.>"""

    name: ClassVar[str] = "template"
    paper: ClassVar[str] = "<authors year>"
    kinds: ClassVar[tuple[core.PredictorKind, ...]] = ("global", "localized")
    judged_by: ClassVar[core.PredictorKind] = "localized"
    relative_to: ClassVar[dict[str, str]] = {"w": "w"}  # uploads that are changed copies of downlinks

    # Names spelled out, the paper's symbol and values beside them.
    learning_rate: core.Schedule = hyper(
        0.1, "step size of the local steps", symbol="η", alias="lr", paper="<0.1>"
    )
    local_steps: core.LocalWork = hyper(10, "local steps in a round", symbol="τ", paper="<10>")

    def server_init(self, params: Params, population: core.Population, key: Tensor) -> Server:
        """<w^0.>"""
        return Server(params)

    def client_init(self, server: Server, client_id: Tensor) -> Client:
        """<A client's state when it arrives.>"""
        return Client(server.w)

    def down(self, server: Server, ids: Tensor) -> Down:
        """<What the server sends.>"""
        return Down(server.w)

    # The client half sees one client, and is traced: torch.where, no `if` on a tensor's value.
    def begin(self, client: Client, down: Down, site: Site) -> Params:
        """<w_i <- w.>"""
        return down.w

    def step(self, work: Params, client: Client, down: Down, batches: Batches, site: Site) -> Params:
        """<w_i <- w_i - η ∇f_i(w_i; ξ).>"""
        gradient = site.objective.gradient(work, batches[0])
        return tree.step(work, site.rate(self.learning_rate), gradient)

    def finish(self, work: Params, client: Client, down: Down, site: Site) -> tuple[Client, Up]:
        """<What the client keeps, and what it sends.>"""
        return Client(work), Up(work)

    # Weights: the server gets the weighted sum of the uploads, and never needs them one by one.
    def weights(self, server: Server, cohort: core.Cohort) -> Tensor:
        """<1/m.>"""
        return core.reply_weights(cohort, "uniform")

    def absorb(self, server: Server, replies: Up, cohort: core.Cohort) -> tuple[Server, core.Info]:
        """<w <- mean of the w_i.> The second value is diagnostics for the log."""
        return Server(replies.w), {}

    def predictors(self, client: Client, brief: Down) -> core.Predictors:
        """Every model that the client can predict with, by kind, in the order of `kinds`."""
        return {"global": brief.w, "localized": client.w}
