"""What a method is: states, messages, and the exchanges between server and clients that make a round.

A method is a frozen dataclass of hyper-parameters with pure functions. Whatever it remembers is in its
server state and its client states; whatever crosses between them is in its messages. All four are
NamedTuples of tensors and parameters, so they can be stacked, stored, counted and sent.

The functions of the client half (`begin`, `step`, `finish`, `client_init`, `predictors`) see ONE client
and must be traceable: no Python branch on a tensor's value (use `torch.where`), no state kept anywhere
else. Engines call them for one client, or for a whole stack of clients through `torch.func.vmap`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import BeforeValidator, Field
from pydantic.dataclasses import dataclass as checked_dataclass
from torch import Tensor

from idiolect.core import tree
from idiolect.core.hyper import STRICT
from idiolect.core.objective import Batch, Objective, Predictor
from idiolect.core.schedule import Clock, Schedule
from idiolect.core.tree import Params

# A method chooses its own NamedTuples for these; engines only move them.
ServerState = Any
ClientState = Any
Work = Any  # what a client changes from local step to local step
Message = Any
Info = dict[str, Tensor]  # diagnostics of one round: logged, never needed by the next step
Bits = dict[str, Tensor]  # part of a message -> int64[m]: its size on the wire for each of m clients
Journals = Mapping[str, Any]  # field of a message -> what was sent of it before

PredictorKind = Literal["global", "localized", "personal", "group"]


@checked_dataclass(frozen=True, config=STRICT)
class Epochs:
    """Local work counted in passes over a client's training rows; engines convert it into steps."""

    epochs: int = Field(ge=1)


def _read_local_work(value: Any) -> Any:
    return Epochs(**value) if isinstance(value, dict) else value


LocalWork = Annotated[Annotated[int, Field(ge=1)] | Epochs, BeforeValidator(_read_local_work)]


@dataclass(frozen=True)
class Population:
    """All clients there ever are in a run, present or not."""

    sizes: Tensor  # int64[clients]: training rows
    present: Tensor  # bool[clients]: who has arrived and not left

    @property
    def count(self) -> int:
        """How many clients are present."""
        return int(self.present.sum())

    @property
    def rows(self) -> Tensor:
        """Training rows of all present clients."""
        return (self.sizes * self.present).sum()


@dataclass(frozen=True)
class Cohort:
    """Who is asked in one exchange, and what becomes of the request."""

    ids: Tensor  # int64[m], ascending
    work: Tensor  # float64[m]: the fraction of the local work that each completes; 0 is inactive
    replied: Tensor  # bool[m]: whose reply arrives
    inclusion: Tensor  # float64[m]: the probability with which each was asked (how often, if draws repeat)
    population: Population
    local_steps: Tensor | None = None  # int64[m]: full local work of each, set for each exchange
    multiplicity: Tensor | None = None  # float64[m]: how often each was drawn, where draws can repeat

    @property
    def sizes(self) -> Tensor:
        """Training rows of each, int64[m]."""
        return self.population.sizes[self.ids]

    @property
    def steps(self) -> Tensor:
        """Local steps that each completes, int64[m].

        The fraction is spread evenly over {0, .., local_steps}, so that a uniform fraction gives a
        uniform number of steps and 1 gives all of them.
        """
        assert self.local_steps is not None, "set by the engine for each exchange"
        return torch.minimum(self.local_steps, (self.work * (self.local_steps + 1)).long())

    @property
    def complete(self) -> Tensor:
        """Who completes all of its local steps, bool[m]."""
        assert self.local_steps is not None, "set by the engine for each exchange"
        return self.steps == self.local_steps

    def select(self, chosen: Tensor) -> "Cohort":
        """The part of the cohort that a mask or an index names."""
        return Cohort(
            self.ids[chosen],
            self.work[chosen],
            self.replied[chosen],
            self.inclusion[chosen],
            self.population,
            None if self.local_steps is None else self.local_steps[chosen],
            None if self.multiplicity is None else self.multiplicity[chosen],
        )

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Site:
    """Where the client half runs: what it may look at besides its state and the message."""

    objective: Objective
    client: Tensor  # the client's number
    size: Tensor  # its training rows
    steps: Tensor  # local steps that it will complete in this exchange
    key: Tensor  # randomness of its own: a key of (seed, client, round)
    clock: Clock
    rows: Batch | None = None  # all training rows, for exchanges that say `sees_all_rows`

    def rate(self, schedule: Schedule) -> Tensor | float:
        """A schedule's value now: computed in float64, given in the run's type, as states are."""
        rate = schedule(self.clock.precise())
        return rate.to(self.objective.dtype) if isinstance(rate, Tensor) else rate

    @property
    def all_rows(self) -> Batch:
        """All training rows of the client, as one batch."""
        assert self.rows is not None, "the exchange must declare sees_all_rows = True"
        return self.rows


class Exchange(ABC):
    """One conversation: the server asks some clients, each works locally, the server absorbs replies.

    Each asked client gets `down`, then `begin`, then `step` once for each local step, then `finish`.
    """

    local_steps: LocalWork | Literal[0] = 0  # 0: no training, only begin and finish
    batches_per_step: ClassVar[int] = 1
    sees_all_rows: ClassVar[bool] = False  # whether begin and finish need the whole training set
    personal_down: ClassVar[bool] = False  # whether each client gets a message of its own
    # Fields of the upload that are a changed copy of a field of the downlink: {"w": "w"}.
    # Codecs send the difference of such a pair.
    relative_to: ClassVar[Mapping[str, str]] = {}
    # Fields of the upload that are such a difference already: {"delta": "w"}. Codecs send them as they are.
    changes_of: ClassVar[Mapping[str, str]] = {}

    def ask(self, server: ServerState, cohort: Cohort, key: Tensor) -> Cohort:
        """Whom this exchange asks, from those whom the round's plan asks."""
        return cohort

    @abstractmethod
    def down(self, server: ServerState, ids: Tensor) -> Message:
        """The message to the clients: one for all, or, if `personal_down`, stacked, one for each id."""

    @abstractmethod
    def begin(self, client: ClientState, down: Message, site: Site) -> Work:
        """What the client starts its local steps with."""

    def step(
        self, work: Work, client: ClientState, down: Message, batches: tuple[Batch, ...], site: Site
    ) -> Work:
        """One local step on `batches_per_step` fresh batches."""
        return work

    @abstractmethod
    def finish(
        self, work: Work, client: ClientState, down: Message, site: Site
    ) -> tuple[ClientState, Message]:
        """The client's new state and its upload."""

    def weights(self, server: ServerState, cohort: Cohort) -> Tensor | None:
        """The weights with which the uploads are summed before the server sees them.

        `cohort` holds exactly the clients whose replies arrived. None: the server needs each upload.
        """
        return None

    @abstractmethod
    def absorb(self, server: ServerState, replies: Message, cohort: Cohort) -> tuple[ServerState, Info]:
        """The server's new state, from the weighted sum of the uploads or from their stack."""

    # In one process messages are handed over as they are. Between machines they travel as `send_down` and
    # `send_up` make them, as trees of tensors too; what is received must be the message, bit for bit.

    def journals(self, server: ServerState, before: Journals) -> Journals:
        """What the sender keeps of past messages so as to send less; nothing at first and after a restart."""
        return before

    def send_down(self, server: ServerState, down: Message, client: Tensor, journals: Journals) -> Message:
        """One client's message as it travels."""
        return down

    def receive_down(self, sent: Message, client: ClientState) -> Message:
        """The inverse of `send_down`, at a client in the state from which it will begin."""
        return sent

    def send_up(self, upload: Message) -> Message:
        """One client's upload as it travels."""
        return upload

    def receive_up(self, sent: Message, like: Message) -> Message:
        """The inverse of `send_up`; `like` is an upload of the same structure, shapes and types."""
        return sent

    def down_bits(self, server: ServerState, down: Message, ids: Tensor) -> Bits:
        """What `down` costs on the wire for each id, by part; here every tensor at its own width."""
        return plain_bits(down, len(ids), stacked=self.personal_down)

    def up_bits(self, uploads: Message, ids: Tensor) -> Bits:
        """What each of the stacked uploads costs on the wire, by part."""
        return plain_bits(uploads, len(ids), stacked=True)


def plain_bits(message: Message, clients: int, *, stacked: bool) -> Bits:
    """The size of one client's message for each of them, by the message's fields."""
    one = tree.row(message, 0) if stacked else message
    fields = one._asdict() if hasattr(one, "_asdict") else {"message": one}
    sizes = {name: tree.count_bits(part) for name, part in fields.items()}
    return {name: torch.full((clients,), size) for name, size in sizes.items() if size}


class Method(ABC):
    """A federated-learning method: the initial states, the exchanges of a round, the models it gives."""

    name: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    paper: ClassVar[str] = ""
    kinds: ClassVar[tuple[PredictorKind, ...]]  # the predictors it has; the last is the one it is judged by
    stateful: ClassVar[bool] = False  # whether a client must remember something from round to round
    gradients_per_step: ClassVar[int] = 1  # that a client takes with the default hyper-parameters
    adapts: ClassVar[bool] = False  # whether a client trains on the server's latest model to predict with it

    @abstractmethod
    def server_init(self, params: Params, population: Population, key: Tensor) -> ServerState:
        """The server before the first round."""

    @abstractmethod
    def client_init(self, server: ServerState, client: Tensor) -> ClientState:
        """A client at its arrival (all founding clients arrive before the first round)."""

    def exchanges(self, server: ServerState) -> Sequence[Exchange]:
        """The exchanges of the next round, in order. A method that is an exchange has itself."""
        assert isinstance(self, Exchange), f"{type(self).__name__} must say which exchanges it has"
        return (self,)

    def end_round(self, server: ServerState) -> ServerState:
        """The server after a round, whether or not anybody replied (to advance a counter or an epoch)."""
        return server

    def adapt(self, server: ServerState, client: ClientState, site: Site) -> ClientState:
        """The client as it predicts, for a method that `adapts`; `site.all_rows` are its training rows.

        Only looked at, never stored: the next round goes on from the state as it was.
        """
        return client

    @abstractmethod
    def predictors(
        self, server: ServerState, client: ClientState, number: Tensor
    ) -> dict[PredictorKind, Predictor]:
        """Every model that the client can predict with, by kind, in the order of `kinds`."""

    def newcomer(self, server: ServerState) -> Exchange | None:
        """How a client that was not there in training gets a model: an exchange nobody absorbs.

        It runs on the newcomer alone, whose number means nothing to the server, with the server's state as
        the run reports it. None: by its first state alone.
        """
        return self if isinstance(self, Exchange) else None
