"""PERM, single loop: weights that are learned along the way (Deng et al. 2023, Algorithm 2). Spec 5.6.

    warm-up:           g_i = ∇f_i(w);  w <- Π_W(w - γ mean g);  v_i <- w
    before an epoch:   g_i = ∇f_i(w);  α_i from all g for all i;  w <- Π_W(w - γ mean g)
    epoch:             N rounds of visits, as in mixtures.py

No client takes local steps on w, so there is no localized model.
"""

from dataclasses import replace
from typing import ClassVar

from pydantic.dataclasses import dataclass
from torch import Tensor

from idiolect import core
from idiolect.core import STRICT, hyper
from idiolect.methods.perm.gradients import GradientExchange
from idiolect.methods.perm.mixtures import Brief, PersonalMixtures
from idiolect.methods.perm.server import Server


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PERM(PersonalMixtures):
    """Personal mixtures of all clients' losses, with weights learned along the way."""

    name: ClassVar[str] = "perm"
    aliases: ClassVar[tuple[str, ...]] = ("perm-single-loop",)
    kinds: ClassVar[tuple[core.PredictorKind, ...]] = ("global", "personal")

    warmup_rounds: int = hyper(0, "rounds in which only the global model is trained", paper="10", ge=0)
    gradient_rows: int | None = hyper(
        None, "rows of the gradients that are compared; None: all", symbol="M", ge=1
    )
    refresh_every: int | None = hyper(None, "rounds between new weights; None: once an epoch", ge=1)

    @property
    def rounds_before_visits(self) -> int:
        """The warm-up."""
        return self.warmup_rounds

    def client_init(self, server: Server, client_id: Tensor) -> core.Nothing:
        """Clients hold data only."""
        return core.Nothing()

    def global_training(self) -> GradientExchange:
        """A gradient step of w, without weights."""
        return replace(self.gradient_exchange(), weight_rule=None)

    def gradient_exchange(self) -> GradientExchange:
        """New weights, and a gradient step of w."""
        return GradientExchange(
            weight_rule=self.weights,
            model_sizes=self.model_sizes,
            rows=self.gradient_rows,
            global_rate=self.global_learning_rate,
            ball_radius=self.ball_radius,
        )

    def weights_are_due(self, server: Server) -> bool:
        """Once an epoch, or every so many rounds."""
        if self.refresh_every is None:
            return super().weights_are_due(server)
        return (int(server.round) - self.warmup_rounds) % self.refresh_every == 0

    def predictors(self, client: core.Nothing, brief: Brief) -> core.Predictors:
        """The global model and v_i."""
        return {"global": brief.w, "personal": brief.v}
