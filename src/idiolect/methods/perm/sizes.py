"""Clients that hold sub-models of different sizes. Spec 5.7.

m_i keeps the first floor(ρ_i H) of the H units of every hidden layer. Of two sub-models the smaller one lies
within the larger one, and is what both hold.
"""

from typing import Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.func import vmap

from idiolect.core import STRICT, Params, hyper, tree
from idiolect.methods.submodels.chain import Chain, Ratio, client_ratios

Held = Tensor | tuple[()]  # ρ: the part of every hidden layer that is held; nothing: models are whole


@dataclass(frozen=True, config=STRICT)
class ModelSizes:
    """How large the clients' sub-models are, and how sizes enter the weight problem."""

    capacities: tuple[Ratio, ...] = Field(
        min_length=1, description="part of every hidden layer that each client holds, given in turn"
    )
    support: Literal["literal", "intersection"] = hyper(
        "literal", "compare gradients padded with zeros, or where both clients hold parameters"
    )
    complexity: Literal["parameters", "w_log_w"] | None = hyper(
        "parameters", "surrogate of VC_j in the term sqrt(VC_j / n_j); None: no such term", symbol="VC_j"
    )
    rule: Literal["zero_weight", "submodel"] = hyper(
        "zero_weight", "a model too large for a client gets no weight there, or trains only what fits"
    )

    def ratios(self, clients: int) -> Tensor:
        """ρ of each client, float64[clients]."""
        return client_ratios(self.capacities, torch.arange(clients))

    def different(self) -> Tensor:
        """The ρ that occur, ascending."""
        return torch.tensor(self.capacities, dtype=torch.float64).unique()

    def masks(self, model: Params, clients: int) -> tuple[list[Tensor], Tensor]:
        """The different sub-models as masks of the flat parameters, and which of them each client holds."""
        different = self.different()
        kinds = torch.searchsorted(different, self.ratios(clients))
        ones = tree.map_tree(torch.ones_like, model)
        return [tree.flatten(held(ones, ratio)) > 0 for ratio in different], kinds

    def complexity_terms(self, model: Params, sizes: Tensor) -> Tensor:
        """sqrt(VC_j / n_j) of each client, float64[clients]."""
        if self.complexity is None:
            return torch.zeros(len(sizes), dtype=torch.float64)
        masks, kinds = self.masks(model, len(sizes))
        parameters = torch.stack([mask.sum() for mask in masks]).to(torch.float64)[kinds]
        if self.complexity == "w_log_w":
            parameters = parameters * parameters.log()
        return (parameters / sizes).sqrt()


def compared_kinds(model_sizes: ModelSizes | None) -> tuple[Held, ...]:
    """The sub-models in which gradients are compared: the whole, or what two clients both hold."""
    if model_sizes is None or model_sizes.support == "literal":
        return ((),)
    return tuple(model_sizes.different())


def held_by(model_sizes: ModelSizes | None, ids: Tensor) -> Held:
    """ρ of some clients."""
    return client_ratios(model_sizes.capacities, ids) if model_sizes else ()


def held(values: Params, ratio: Held) -> Params:
    """m ⊙ values: zero outside of the sub-model."""
    if not isinstance(ratio, Tensor):
        return values
    chain = Chain.of(values)
    return chain.restrict(values, chain.first_units(ratio))


def each_held(stacked: Params, ratios: Held) -> Params:
    """m_i ⊙ values_i of a stack of clients."""
    return vmap(held)(stacked, ratios) if isinstance(ratios, Tensor) else stacked
