"""How clients that were not there in training get a model: methods with another method's server.

A newcomer has the first state of a client that arrives now, and the method's briefs and predictors. Where it
trains, it does so alone, once, and sends nothing.
"""

from abc import ABC
from typing import Any

from pydantic.dataclasses import dataclass
from torch import Tensor

from idiolect.core import tree
from idiolect.core.around import MethodOfAnother
from idiolect.core.cohort import Cohort, Population
from idiolect.core.exchange import ClientState, Exchange, Info, LocalWork, Message, ServerState, Site, Work
from idiolect.core.hyper import STRICT
from idiolect.core.messages import Nothing, SharedModel
from idiolect.core.method import Method, Predictors
from idiolect.core.objective import Batch
from idiolect.core.schedule import Schedule
from idiolect.core.tree import Params


class Newcomer(MethodOfAnother, ABC):
    """A method's newcomers; how they train, if they do, is in its `exchanges`."""

    def server_init(self, params: Params, population: Population, key: Tensor) -> ServerState:
        """The method's own server."""
        return self.method.server_init(params, population, key)

    def client_init(self, server: ServerState, client_id: Tensor) -> ClientState:
        """As a client that arrives."""
        return self.method.client_init(server, client_id)

    def brief(self, server: ServerState, ids: Tensor) -> Message:
        """As the method says."""
        return self.method.brief(server, ids)

    def adapt(self, client: ClientState, brief: Message, site: Site) -> ClientState:
        """As the method says."""
        return self.method.adapt(client, brief, site)

    def predictors(self, client: ClientState, brief: Message) -> Predictors:
        """Those of the method."""
        return self.method.predictors(client, brief)


@dataclass(frozen=True, config=STRICT)
class AdaptedNewcomer(Newcomer):
    """Newcomers of a method that adapts, which is all that they need: there is no exchange with them."""

    method: Method

    def exchanges(self, server: ServerState) -> tuple[()]:
        """None."""
        return ()


class TrainedNewcomer(Newcomer, Exchange, ABC):  # type: ignore[override]
    """Newcomers that train on their own rows; here from their first state, with the message of a round."""

    def down(self, server: ServerState, ids: Tensor) -> Message:
        """As in a round."""
        assert isinstance(self.method, Exchange), f"{type(self).__name__} must say what a newcomer is sent"
        return self.method.down(server, ids)

    def begin(self, client: ClientState, down: Message, site: Site) -> Work:
        """The first state."""
        return client

    def keep(self, work: Work, client: ClientState, down: Message, site: Site) -> ClientState:
        """The newcomer after its local steps."""
        return work

    def finish(
        self, work: Work, client: ClientState, down: Message, site: Site
    ) -> tuple[ClientState, Nothing]:
        """Keep what was learned, send nothing."""
        return self.keep(work, client, down, site), Nothing()

    def absorb(self, server: ServerState, replies: Nothing, cohort: Cohort) -> tuple[ServerState, Info]:
        """The server learns nothing from a newcomer."""
        return server, {}


@dataclass(frozen=True, config=STRICT)
class FineTuning(TrainedNewcomer):
    """A newcomer trains its own copy of the model that the server has for all (spec 6.2).

        w_i <- w;  repeat local_steps times:  w_i <- w_i - rate * grad f_i(w_i; batch)

    For methods whose server and client states both call that model `w`.
    """

    method: Method
    learning_rate: Schedule
    local_steps: LocalWork

    def down(self, server: Any, ids: Tensor) -> SharedModel:
        """w."""
        return SharedModel(server.w)

    def begin(self, client: Any, down: SharedModel, site: Site) -> Params:
        """w_i <- w."""
        return down.w

    def step(
        self, work: Params, client: Any, down: SharedModel, batches: tuple[Batch, ...], site: Site
    ) -> Params:
        """w_i <- w_i - rate * grad f_i(w_i; batch)."""
        return tree.step(work, site.rate(self.learning_rate), site.objective.gradient(work, batches[0]))

    def keep(self, work: Params, client: Any, down: SharedModel, site: Site) -> Any:
        """w_i."""
        return client._replace(w=work)
