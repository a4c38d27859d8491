"""PERM in two stages: weights once, at a trained global model (Deng et al. 2023). Spec 5.4, 5.5.

    stage 1 (Algorithm A1):  R rounds of FedAvg with rate γ and K local steps
                             g_i = ∇f_i(w), all rows, once;  α_i from all g for all i
    stage 2 (Algorithm 1):   v_i <- w;  epochs of N rounds of visits, as in mixtures.py

A client that was not heard before the first visits is asked for its gradient at the start of later epochs.
"""

from typing import ClassVar, NamedTuple

from pydantic.dataclasses import dataclass
from torch import Tensor

from idiolect import core
from idiolect.core import STRICT, Params, hyper
from idiolect.methods.perm.gradients import GradientExchange
from idiolect.methods.perm.mixtures import Brief, PersonalMixtures
from idiolect.methods.perm.server import Server
from idiolect.methods.submodels.chain import Selection
from idiolect.methods.submodels.training import SubmodelTraining


class Client(NamedTuple):
    """The last copy of w of stage 1 (personal models live at the server)."""

    w: Params


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PERMTwoStage(PersonalMixtures):
    """Personal mixtures of all clients' losses, with weights found once at a trained global model."""

    name: ClassVar[str] = "perm-two-stage"
    kinds: ClassVar[tuple[core.PredictorKind, ...]] = ("global", "localized", "personal")

    global_rounds: int = hyper(10, "rounds of stage 1", symbol="R", ge=0)
    selection: Selection = hyper("static", "which units a sub-model of stage 1 holds, where sizes differ")

    @property
    def rounds_before_visits(self) -> int:
        """Stage 1."""
        return self.global_rounds

    def client_init(self, server: Server, client_id: Tensor) -> Client:
        """Clients hold data, and their last copy of w."""
        return Client(server.w)

    def global_training(self) -> SubmodelTraining:
        """FedAvg, where sizes differ on sub-models."""
        return SubmodelTraining(
            learning_rate=self.global_learning_rate,
            local_steps=self.local_steps,
            capacities=self.model_sizes.capacities if self.model_sizes else (1.0,),
            selection=self.selection,
        )

    def gradient_exchange(self) -> GradientExchange:
        """Weights, from one gradient of each client."""
        return GradientExchange(weight_rule=self.weights, model_sizes=self.model_sizes, once=True)

    def predictors(self, client: Client, brief: Brief) -> core.Predictors:
        """The global model, the client's last copy of it, and v_i."""
        return {"global": brief.w, "localized": client.w, "personal": brief.v}
