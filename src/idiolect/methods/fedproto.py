"""FedProto (Tan et al. 2022): clients share where the features of each class are, and no model. Spec 8.8.

    client i:  w_i <- w_i - η ∇[ f_i(w_i; ξ) + (λ/(B d_f))  Σ over rows of |z - C̄_y|² ]     z: w_i's features
               after the steps   C_i^c = mean of z over the training rows of class c,   n_{i,c} of them
    server:    C̄^c <- Σ_i n_{i,c} C_i^c / Σ_i n_{i,c}

A row whose class has no prototype C̄^c yet is not pulled; so in the first round every client trains alone. A
class that nobody replies about keeps its prototype. Models w_i start apart and never leave the clients.

The personal model is w_i. By prediction="prototype" it decides for the known class with the nearest C̄^c to z:
-|z - C̄^c|² is, up to |z|², the output of a head with weights 2C̄^c and biases -|C̄^c|².
"""

from dataclasses import replace
from typing import ClassVar, Literal, NamedTuple

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from idiolect import core
from idiolect.core import STRICT, Batches, Params, Site, hyper, tree
from idiolect.errors import UserError
from idiolect.methods._classes import ClassSums, Prototypes, linear_head
from idiolect.methods._parts import First, Start

_NEVER = -1e9  # the output of a class that has no prototype


class Server(NamedTuple):
    """The prototypes C̄, and where models begin."""

    prototypes: Prototypes
    start: Start


class Client(NamedTuple):
    """The own model w_i."""

    w: Params


class Down(NamedTuple):
    """To every client: the prototypes."""

    prototypes: Prototypes


class Up(NamedTuple):
    """From each client: n_{i,c} C_i^c and n_{i,c}; the server needs their sums over clients alone."""

    classes: ClassSums


@dataclass(frozen=True, kw_only=True, config=STRICT)
class FedProto(core.Method, core.Exchange):
    """Own models whose features agree on where classes are."""

    name: ClassVar[str] = "fedproto"
    paper: ClassVar[str] = "Tan et al. 2022"
    kinds: ClassVar[tuple[core.PredictorKind, ...]] = ("personal",)
    judged_by: ClassVar[core.PredictorKind] = "personal"
    stateful: ClassVar[bool] = True
    needs_classes: ClassVar[bool] = True
    trains_head: ClassVar[bool] = True
    sees_all_rows: ClassVar[bool] = True
    models_may_differ: ClassVar[bool] = True

    learning_rate: core.Schedule = hyper(0.1, "step size", symbol="η", alias="lr", paper="0.01")
    pull: float = hyper(
        1.0, "weight of the distance to the prototypes", symbol="λ", alias="lambda",
        paper="1; 0.1 on CIFAR-10", ge=0, tune=(0.01, 10.0),
    )  # fmt: skip
    local_steps: core.LocalWork = hyper(10, "local steps in a round", symbol="τ", paper="1 pass")
    weighting: Literal["counts", "uniform"] = hyper(
        "counts",
        "whether a client counts for a class by its rows, or as much as every other that has it",
    )
    first: First = hyper("own", "whether models begin alike or each with a draw of its own", paper="own")
    prediction: Literal["classifier", "prototype"] = hyper(
        "classifier", "by the model's own head, or by the nearest prototype", paper="prototype"
    )

    def server_init(self, params: Params, population: core.Population, key: Tensor) -> Server:
        """No prototype is known."""
        if self.prediction == "prototype" and linear_head(params)[1] is None:
            raise UserError(
                "method.prediction=prototype needs a last layer with a bias, which this model does not have; "
                "let it have one, or take method.prediction=classifier"
            )
        return Server(Prototypes.none_yet(params), Start(params, key))

    def client_init(self, server: Server, client_id: Tensor) -> Client:
        """w_i⁰."""
        return Client(server.start.of_client(client_id, self.first))

    def down(self, server: Server, ids: Tensor) -> Down:
        """C̄."""
        return Down(server.prototypes)

    def begin(self, client: Client, down: Down, site: Site) -> Client:
        """The own model as it is."""
        return client

    def step(self, work: Client, client: Client, down: Down, batches: Batches, site: Site) -> Client:
        """One step on the loss and the distance to the prototypes."""
        task = site.objective.task

        def loss(seen: core.Pass, batch: core.Batch) -> Tensor:
            own = (task.row_losses(seen.outputs, batch.targets) * batch.weights).sum()
            return own + self.pull * down.prototypes.distance(seen, batch)

        slopes = site.objective.gradient(work.w, batches[0], loss=loss)
        return Client(tree.step(work.w, site.rate(self.learning_rate), slopes))

    def finish(self, work: Client, client: Client, down: Down, site: Site) -> tuple[Client, Up]:
        """Keep w_i, send the sums of its features for each class."""
        classes = ClassSums.of(site.objective.features(work.w, site.all_rows.inputs), site)
        if self.weighting == "uniform":
            classes = ClassSums(classes.means, (classes.counts > 0).to(classes.counts.dtype))
        return work, Up(classes)

    def weights(self, server: Server, cohort: core.Cohort) -> Tensor:
        """One: the uploads are sums already."""
        return torch.ones(len(cohort), dtype=torch.float64)

    def absorb(self, server: Server, replies: Up, cohort: core.Cohort) -> tuple[Server, core.Info]:
        """C̄^c <- Σ n_{i,c} C_i^c / Σ n_{i,c}."""
        return server._replace(prototypes=server.prototypes.renewed(replies.classes)), {}

    def predictors(self, client: Client, brief: Down) -> core.Predictors:
        """w_i, with its own head or one that looks for the nearest prototype."""
        if self.prediction == "classifier":
            return {"personal": client.w}
        return {"personal": {**client.w, **_nearest(brief.prototypes, client.w)}}

    def newcomer(self, server: Server) -> tuple["FedProto", Server]:
        """As the others, from the first model as it was drawn: a newcomer has no number to draw by."""
        return replace(self, first="equal"), server


def _nearest(prototypes: Prototypes, w: Params) -> Params:
    """The head whose outputs are 2 z·C̄^c - |C̄^c|²."""
    weight, bias = linear_head(w)
    assert bias is not None, "server_init refuses a head without a bias"
    slopes = 2 * prototypes.means
    levels = torch.where(prototypes.known, -prototypes.means.square().sum(-1), _NEVER)
    if len(w[weight]) == 1:  # one output stands for two classes
        slopes, levels = slopes[1:] - slopes[:1], levels[1:] - levels[:1]
    return {weight: slopes, bias: levels}
