"""What a method is: states, messages, and the exchanges between server and clients that make a round.

A method is a frozen dataclass of hyper-parameters with pure functions. Whatever it remembers is in its
server state and its client states; whatever crosses between them is in its messages. All four are
NamedTuples of tensors and parameters, so they can be stacked, stored, counted and sent.

The functions of the client half (`begin`, `step`, `finish`, `client_init`, `adapt`, `predictors`) see ONE
client and must be traceable: no Python branch on a tensor's value (use `torch.where`), no state kept anywhere
else. Engines call them for one client, or for a whole stack of clients through `torch.func.vmap`.

A client works with its state, its rows and what it is sent, and predicts with its state and what it is sent
for that, the brief: nothing of the server's state reaches it in any other way. How messages travel between
machines, and what that costs, is no concern of a method (`idiolect.core.transport`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from torch import Tensor, nn

from idiolect.core.cohort import Population
from idiolect.core.exchange import ClientState, Exchange, Message, ServerState, Site, Work
from idiolect.core.objective import Predictor
from idiolect.core.parts import PartRule, Patterns, names_by_rule
from idiolect.core.transport import OwnCodec, Transport
from idiolect.core.tree import Params

if TYPE_CHECKING:
    from idiolect.core.observed import StepAverage

PredictorKind = Literal["global", "localized", "personal", "group"]
Predictors = dict[PredictorKind, Predictor]


class Method(ABC):
    """A federated-learning method: the initial states, the exchanges of a round, the models it gives."""

    name: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    paper: ClassVar[str] = ""
    kinds: ClassVar[tuple[PredictorKind, ...]]  # the models that a client can predict with
    judged_by: ClassVar[PredictorKind]  # the one of them that the method is judged by
    stateful: ClassVar[bool] = False  # whether a client must remember something from round to round
    gradients_per_step: ClassVar[int] = 1  # that a client takes with the default hyper-parameters
    adapts: ClassVar[bool] = False  # whether a client trains on the server's latest model to predict with it
    sees_validation_rows: ClassVar[bool] = False  # whether `adapt` needs the client's validation rows
    personal_brief: ClassVar[bool] = False  # whether each client gets a brief of its own
    # Which of a step's training passes is at the model of a kind, whose normalisation layers then have the
    # statistics of that pass: {"personal": 1}; -1 is the last. Kinds that are not named: the first. Several,
    # if each trains a part of that model: {"personal": (0, 1)}.
    passes: ClassVar[Mapping[PredictorKind, int | tuple[int, ...]]] = {}
    has_global_model: ClassVar[bool] = True  # whether the model of the kind global is the same for all
    part_choices: ClassVar[tuple[str, ...]] = ()  # hyper-parameters that choose a part of the model
    needs_classes: ClassVar[bool] = False  # whether it is for classification alone
    trains_head: ClassVar[bool] = False  # whether it takes the model's last layer for one that is trained
    models_may_differ: ClassVar[bool] = False  # in architecture: whether it combines no parameters of clients

    def for_model(self, module: nn.Module) -> Self:
        """The method with names in place of rules, such as "head", where it chooses parts of a model."""
        choices: dict[str, PartRule | Patterns] = {name: getattr(self, name) for name in self.part_choices}
        names = {
            name: names_by_rule(choice, module) for name, choice in choices.items() if isinstance(choice, str)
        }
        return replace(self, **names) if names else self  # type: ignore[type-var]

    @abstractmethod
    def server_init(self, params: Params, population: Population, key: Tensor) -> ServerState:
        """The server before the first round."""

    @abstractmethod
    def client_init(self, server: ServerState, client_id: Tensor) -> ClientState:
        """A client at its arrival (all founding clients arrive before the first round)."""

    def exchanges(self, server: ServerState) -> Sequence[Exchange]:
        """The exchanges of the next round, in order. A method that is an exchange has itself."""
        assert isinstance(self, Exchange), f"{type(self).__name__} must say which exchanges it has"
        return (self,)

    def end_round(self, server: ServerState) -> ServerState:
        """The server after a round, whether or not anybody replied (to advance a counter or an epoch)."""
        return server

    def brief(self, server: ServerState, ids: Tensor) -> Message:
        """What clients need to predict: one for all, or, if `personal_brief`, stacked, one for each id.

        Here the message of a round, for a method that is an exchange.
        """
        assert isinstance(self, Exchange), f"{type(self).__name__} must say what clients need to predict"
        return self.down(server, ids)

    def adapt(self, client: ClientState, brief: Message, site: Site) -> ClientState:
        """The client as it predicts, for a method that `adapts`; `site.all_rows` are its training rows.

        Only looked at, never stored: the next round goes on from the state as it was.
        """
        return client

    @abstractmethod
    def predictors(self, client: ClientState, brief: Message) -> Predictors:
        """Every model that the client can predict with, by kind, in the order of `kinds`."""

    def newcomer(self, server: ServerState) -> tuple["Method", ServerState]:
        """How a client that was not there in training gets a model: a method, and the server that it needs.

        The method's one exchange, if it has any, runs on the newcomer alone, whose id means nothing to the
        server, as it is in the state that the run reports; nobody absorbs what is sent. Here: as in training.
        """
        return self, server

    def step_average(self) -> "StepAverage | None":
        """The average over all steps that takes the place of the model that the method is judged by."""
        return None

    def logged_path(self) -> Callable[[Work], Params] | None:
        """A model whose spread over clients is logged for every local step; its path is sent for that."""
        return None

    def client_facts(self) -> "Callable[[ClientState], dict[str, Tensor]] | None":
        """Numbers of a client's own state, by name, that a simulation logs when it evaluates."""
        return None

    def suited_rates(self, smoothness: float, clients: int) -> dict[str, float]:
        """Step sizes by hyper-parameter, for clients whose losses' gradients have this Lipschitz constant L.

        A run takes them where its settings leave rates open. Here: 1/L, for a method whose steps follow the
        gradient of f_i; a method that adds curvature to it, or steps on something else, says so.
        """
        return {"learning_rate": 1 / smoothness}

    def own_codec(self) -> OwnCodec | None:
        """The codec that the method's paper has; None: messages are as a run's settings say."""
        return None

    def transport(self, exchange: Exchange) -> Transport:
        """How the messages of an exchange travel; a codec around a method has a transport of its own."""
        return Transport(exchange)
