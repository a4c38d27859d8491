"""What server and clients do in one conversation of a round, and where the client half of it runs."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field
from pydantic.dataclasses import dataclass as checked_dataclass
from torch import Tensor

from idiolect.core.cohort import Cohort
from idiolect.core.hyper import STRICT
from idiolect.core.objective import Batch, Objective
from idiolect.core.schedule import Clock, Schedule

# A method chooses its own NamedTuples for these; engines only move them.
ServerState = Any
ClientState = Any
Work = Any  # what a client changes from local step to local step
Message = Any
Batches = tuple[Batch, ...]
Info = dict[str, Tensor]  # diagnostics of one round: logged, never needed by the next step


@checked_dataclass(frozen=True, config=STRICT)
class Epochs:
    """Local work counted in passes over a client's training rows; engines convert it into steps."""

    epochs: int = Field(ge=1)


def _read_local_work(value: Any) -> Any:
    return Epochs(**value) if isinstance(value, dict) else value


LocalWork = Annotated[Annotated[int, Field(ge=1)] | Epochs, BeforeValidator(_read_local_work)]


@dataclass(frozen=True)
class Site:
    """Where the client half runs: what it may look at besides its state and the message."""

    objective: Objective
    client_id: Tensor  # which of the population it is
    size: Tensor  # its training rows
    steps: Tensor  # local steps that it will complete in this exchange
    full_steps: Tensor  # local steps that it would take if it completed all of its work
    key: Tensor  # randomness of its own: a key of (seed, client, round)
    clock: Clock
    rows: Batch | None = None  # all training rows, for exchanges that say `sees_all_rows`
    validation: Batch | None = None  # all validation rows, for those that say `sees_validation_rows`

    def rate(self, schedule: Schedule) -> Tensor | float:
        """A schedule's value now: computed in float64, given in the run's type, as states are."""
        rate = schedule(self.clock.precise())
        return rate.to(self.objective.dtype) if isinstance(rate, Tensor) else rate

    @property
    def all_rows(self) -> Batch:
        """All training rows of the client, as one batch."""
        assert self.rows is not None, "the exchange must declare sees_all_rows = True"
        return self.rows

    @property
    def validation_rows(self) -> Batch:
        """All validation rows of the client, as one batch; a client without any has rows of weight zero."""
        assert self.validation is not None, "the exchange or method must declare sees_validation_rows = True"
        return self.validation


class Exchange(ABC):
    """One conversation: the server asks some clients, each works locally, the server absorbs replies.

    Each asked client gets `down`, then `begin`, then `step` once for each local step, then `finish`.
    """

    local_steps: LocalWork | Literal[0] = 0  # 0: no training, only begin and finish
    batches_per_step: ClassVar[int] = 1
    sees_all_rows: ClassVar[bool] = False  # whether begin and finish need the whole training set
    sees_validation_rows: ClassVar[bool] = False  # whether they need the validation rows
    personal_down: ClassVar[bool] = False  # whether each client gets a message of its own
    common_fields: ClassVar[frozenset[str]] = frozenset()  # of such messages: the same for all nevertheless
    # Fields of the upload that are a changed copy of a field of the downlink: {"w": "w"}.
    # Codecs send the difference of such a pair.
    relative_to: ClassVar[Mapping[str, str]] = {}
    # Fields of the upload that are such a difference already: {"delta": "w"}. Codecs send them as they are;
    # the server's field of that name moves with them: from w + c, `absorb` leads c further than from w.
    changes_of: ClassVar[Mapping[str, str]] = {}
    # Fields of the downlink whose value clients compute with as what `absorb` made of their uploads: an outer
    # step must not move them.
    relied_on: ClassVar[frozenset[str]] = frozenset()

    def ask(self, server: ServerState, cohort: Cohort, key: Tensor) -> Cohort:
        """Whom this exchange asks, from those whom the round's plan asks."""
        return cohort

    @abstractmethod
    def down(self, server: ServerState, ids: Tensor) -> Message:
        """The message to the clients: one for all, or, if `personal_down`, stacked, one for each id."""

    @abstractmethod
    def begin(self, client: ClientState, down: Message, site: Site) -> Work:
        """What the client starts its local steps with."""

    def step(self, work: Work, client: ClientState, down: Message, batches: Batches, site: Site) -> Work:
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
