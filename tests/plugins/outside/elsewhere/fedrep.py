"""FedRep (Collins et al. 2021): a shared body, and a head of each client's own.

client i:  b <- body;  h_i <- its head;  the first steps move h_i, the others b:  - rate * grad f_i(b, h_i)
server:    body <- mean of the b
"""

from typing import ClassVar, NamedTuple

from pydantic.dataclasses import dataclass
from torch import Tensor

from idiolect.core import (
    STRICT,
    Batch,
    Cohort,
    Exchange,
    Info,
    LocalWork,
    Method,
    Params,
    Population,
    Predictor,
    PredictorKind,
    Schedule,
    Site,
    hyper,
    reply_weights,
    tree,
)


class Server(NamedTuple):
    """The shared body, and the head with which clients begin."""

    body: Params
    first_head: Params


class Client(NamedTuple):
    """A head of its own."""

    head: Params


class Body(NamedTuple):
    """Both ways: the body."""

    body: Params


class Work(NamedTuple):
    """Changes with every local step."""

    body: Params
    head: Params


@dataclass(frozen=True, kw_only=True, config=STRICT)
class FedRep(Method, Exchange):
    """A shared body and personal heads."""

    name: ClassVar[str] = "fedrep"
    paper: ClassVar[str] = "Collins et al. 2021"
    kinds: ClassVar[tuple[PredictorKind, ...]] = ("personal",)
    judged_by: ClassVar[PredictorKind] = "personal"
    stateful: ClassVar[bool] = True
    relative_to: ClassVar[dict[str, str]] = {"body": "body"}

    learning_rate: Schedule = hyper(0.1, "step size of the local steps", symbol="η", alias="lr")
    local_steps: LocalWork = hyper(6, "local steps in a round")
    head_steps: int = hyper(3, "how many of them move the head", ge=0)
    head: str = hyper("output.", "how the names of the head's parameters begin")

    def server_init(self, params: Params, population: Population, key: Tensor) -> Server:
        """The initial model in its two parts."""
        body = {name: value for name, value in params.items() if not name.startswith(self.head)}
        return Server(body, {name: value for name, value in params.items() if name not in body})

    def client_init(self, server: Server, client_id: Tensor) -> Client:
        """All heads begin alike."""
        return Client(server.first_head)

    def down(self, server: Server, ids: Tensor) -> Body:
        """The body."""
        return Body(server.body)

    def begin(self, client: Client, down: Body, site: Site) -> Work:
        """The shared body below one's own head."""
        return Work(down.body, client.head)

    def step(self, work: Work, client: Client, down: Body, batches: tuple[Batch, ...], site: Site) -> Work:
        """First the head moves, then the body."""
        gradient = site.objective.gradient({**work.body, **work.head}, batches[0])
        rate = site.rate(self.learning_rate)
        for_head = (site.clock.step < self.head_steps) * rate
        for_body = (site.clock.step >= self.head_steps) * rate
        return Work(
            tree.step(work.body, for_body, {name: gradient[name] for name in work.body}),
            tree.step(work.head, for_head, {name: gradient[name] for name in work.head}),
        )

    def finish(self, work: Work, client: Client, down: Body, site: Site) -> tuple[Client, Body]:
        """The head stays, the body goes."""
        return Client(work.head), Body(work.body)

    def weights(self, server: Server, cohort: Cohort) -> Tensor:
        """1/m."""
        return reply_weights(cohort, "uniform")

    def absorb(self, server: Server, replies: Body, cohort: Cohort) -> tuple[Server, Info]:
        """The mean of the bodies."""
        return server._replace(body=replies.body), {}

    def brief(self, server: Server, ids: Tensor) -> Body:
        """The body."""
        return Body(server.body)

    def predictors(self, client: Client, brief: Body) -> dict[PredictorKind, Predictor]:
        """The shared body below one's own head."""
        return {"personal": {**brief.body, **client.head}}
