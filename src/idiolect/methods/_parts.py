"""What methods with a shared part θ and a personal part φ_i of the model have in common. Spec 8.0.

Their messages hold the shared part as `shared`, their clients the whole model (θ_i, φ_i) as `w`.
"""

from typing import Any, ClassVar, Literal, NamedTuple

from pydantic.dataclasses import dataclass
from torch import Tensor

from idiolect import core
from idiolect.core import STRICT, Batches, Params, Site, rng

First = Literal["equal", "own"]  # φ_i⁰ is φ⁰ for all clients, or a draw of each client's own
NewcomerTrains = Literal["personal", "all"]


def divide(w: Params, personal: core.PartChoice) -> tuple[Params, Params]:
    """θ and φ of a model."""
    assert not isinstance(personal, str), "Method.for_model has put names in place of rules"
    parts = core.Parts.of(w, {"personal": personal}, rest="shared")
    return parts.take(w, "shared"), parts.take(w, "personal")


class Start(NamedTuple):
    """Where personal parts begin: φ⁰, and a key for those that are drawn."""

    part: Params
    key: Tensor

    def of_client(self, client_id: Tensor, first: First) -> Params:
        """φ_i⁰: φ⁰ itself, or the entries of each of its tensors in an order of the client's own.

        So every client draws from what the model's own initialisation draws from, whatever that is.
        """
        if first == "equal":
            return self.part
        return {
            name: _shuffled(value, rng.fold(self.key, client_id, place))
            for place, (name, value) in enumerate(self.part.items())
        }


def _shuffled(value: Tensor, key: Tensor) -> Tensor:
    return value.reshape(-1)[rng.ranks(key, value.numel())].reshape(value.shape)


class SharedPart(NamedTuple):
    """To a newcomer: θ."""

    shared: Params


class Training(NamedTuple):
    """A newcomer's model, and what its optimizer remembers."""

    w: Params
    optimizer: Any


@dataclass(frozen=True, config=STRICT)
class PersonalPart(core.TrainedNewcomer):
    """A newcomer trains a personal part on the shared part as it is, or, if it trains all, the whole model.

    w <- (θ, φ);  repeat local_steps times:  φ <- φ - rate ∇_φ f(w; batch)
    """

    method: core.Method
    learning_rate: core.Schedule
    optimizer: core.Optimizer
    trains: NewcomerTrains
    local_steps: core.LocalWork

    personal_brief: ClassVar[bool] = False  # the server has nothing of a newcomer's own

    def down(self, server: Any, ids: Tensor) -> SharedPart:
        """θ."""
        return SharedPart(server.shared)

    def brief(self, server: Any, ids: Tensor) -> SharedPart:
        """θ."""
        return SharedPart(server.shared)

    def begin(self, client: Any, down: SharedPart, site: Site) -> Training:
        """w <- (θ, φ)."""
        w = {**client.w, **down.shared}
        return Training(w, self.optimizer.init(self._trained(w, down)))

    def step(self, work: Training, client: Any, down: Any, batches: Batches, site: Site) -> Training:
        """φ <- φ - rate ∇_φ f(w; batch)."""
        trained = self._trained(work.w, down)
        fixed = {name: value for name, value in work.w.items() if name not in trained}
        slopes = site.objective.gradient(trained, batches[0], fixed=fixed)
        moved, memory = self.optimizer.apply(trained, slopes, work.optimizer, site.rate(self.learning_rate))
        return Training({**work.w, **moved}, memory)

    def keep(self, work: Training, client: Any, down: Any, site: Site) -> Any:
        """w."""
        return client._replace(w=work.w)

    def predictors(self, client: Any, brief: Any) -> core.Predictors:
        """w, of whatever kind: nobody averages a newcomer's shared part."""
        return dict.fromkeys(self.method.kinds, client.w)

    def _trained(self, w: Params, down: Any) -> Params:
        return w if self.trains == "all" else {name: w[name] for name in w if name not in down.shared}
