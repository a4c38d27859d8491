"""A model for clients whose architectures differ: several bodies, and a layer on the features of one of them.

    z = body_k(x),   outputs = output(z)        k: the client's architecture

Every client has the parameters of all bodies, so that clients are stacked, stored and saved like others, but
only those of its own body matter: the others see no gradient and no weight decay, and keep their bits. All
bodies are computed; what comes out of those that are not used is left out by `torch.where` at both ends, so
that not even a NaN reaches outputs or gradients.
"""

import copy
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from idiolect.core.parts import last_module
from idiolect.core.tree import Params
from idiolect.errors import UserError

ARCHITECTURE = "architecture"  # the buffer that says which body is used, also in predictors

Number = TypeVar("Number", int, Tensor)


class Several(nn.Module):
    """Copies of models of different architectures, which end in linear layers of one size.

    The first one's layer takes the place of all. `alone` gives one of the models back.
    """

    architecture: Tensor

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        if not models:
            raise UserError("model several needs at least one model")
        heads = [last_module(model) for model in models]
        layers = [model.get_submodule(head) for model, head in zip(models, heads, strict=True)]
        _refuse_unlike(models, layers)
        self.heads = tuple(heads)
        self.bodies = nn.ModuleList(
            _with_layer(copy.deepcopy(model), head, nn.Identity())
            for model, head in zip(models, heads, strict=True)
        )
        self.output = copy.deepcopy(layers[0])
        self.register_buffer(ARCHITECTURE, torch.tensor(0))

    def forward(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        """The outputs of the body that is used."""
        features, *others = [body(*inputs, **named) for body in self.bodies]
        for number, other in enumerate(others, start=1):
            features = torch.where(self.architecture == number, other, features)
        return self.output(features)

    def alone(self, architecture: int) -> nn.Module:
        """One of the models without the others."""
        model = copy.deepcopy(self.bodies[architecture])
        return _with_layer(model, self.heads[architecture], copy.deepcopy(self.output))


def architecture_of(client_id: Number, architectures: int) -> Number:
    """The architecture of a client, by its place: clients take turns."""
    return client_id % architectures


def only_used(params: Params, architecture: Tensor) -> Params:
    """A model's parameters with zeros in place of the bodies that are not used, which get no gradient."""
    return {
        name: value if (body := _body_of(name)) is None else torch.where(architecture == body, value, 0)
        for name, value in params.items()
    }


def _body_of(name: str) -> int | None:
    first, _, rest = name.partition(".")
    return int(rest.partition(".")[0]) if first == "bodies" else None


def _refuse_unlike(models: Sequence[nn.Module], layers: Sequence[nn.Module]) -> None:
    """Refuse models whose last layers could not take each other's place."""
    for model, layer in zip(models, layers, strict=True):
        if not isinstance(layer, nn.Linear):
            raise UserError(
                "model several takes models that end in nn.Linear, and the last layer of "
                f"{type(model).__name__} is a {type(layer).__name__}"
            )
        if sum(p is layer.weight for _, p in model.named_parameters(remove_duplicate=False)) > 1:
            raise UserError(
                f"the last layer of {type(model).__name__} shares its weight with another layer, and model "
                "several would part them; let it have its own"
            )
    if len({str(layer) for layer in layers}) > 1:
        pairs = zip(models, layers, strict=True)
        shown = ", ".join(f"{type(model).__name__} in {layer}" for model, layer in pairs)
        raise UserError(
            "the models of model several must end in layers of one size, so that their features can be "
            f"compared, and they end so: {shown}"
        )


def _with_layer(model: nn.Module, name: str, layer: nn.Module) -> nn.Module:
    """A model, which is changed, with another layer at some place."""
    if not name:  # the model is that layer
        return layer
    model.set_submodule(name, layer)
    return model
