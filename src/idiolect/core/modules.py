"""What is asked of a module that others' parameters are put into: its modes and its names."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, nn

from idiolect.core.fixed import is_fixed_norm
from idiolect.errors import UserError


class Modes:
    """Puts a model into training or evaluation for a while, as its own `train` would.

    Normalisation that is fixed stays in evaluation: whoever trains a part of a model that was trained before
    trains it beside the rest as it predicts.
    """

    def __init__(self, module: nn.Module) -> None:
        self._layers = list(module.modules())
        given = self._flags()
        module.train()
        flags = zip(self._layers, self._flags(), strict=True)
        self._training = [flag and not is_fixed_norm(layer) for layer, flag in flags]
        module.eval()
        self._evaluation = self._flags()
        self._put(given)

    def training(self) -> AbstractContextManager[None]:
        """As after `train()`, but for normalisation layers that are fixed."""
        return self._during(self._training)

    def evaluation(self) -> AbstractContextManager[None]:
        """As after `eval()`."""
        return self._during(self._evaluation)

    @contextmanager
    def _during(self, flags: list[bool]) -> Iterator[None]:
        given = self._flags()
        self._put(flags)
        try:
            yield
        finally:
            self._put(given)

    def _flags(self) -> list[bool]:
        return [layer.training for layer in self._layers]

    def _put(self, flags: list[bool]) -> None:
        # Past `nn.Module.__setattr__`, which takes much longer.
        for layer, flag in zip(self._layers, flags, strict=True):
            layer.__dict__["training"] = flag


def names_of_tied_parameters(module: nn.Module) -> dict[str, str]:
    """Further names of parameters that several layers share -> the name that they are known by.

    A layer that is at two places has its parameters under two names, but holds them once: whoever puts others
    in twice, as `functional_call` does by default, takes the first of these for the layer's own.
    """
    known: dict[nn.Parameter, str] = {}
    places: set[tuple[nn.Module, str]] = set()
    further = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        path, _, attribute = name.rpartition(".")
        place = module.get_submodule(path), attribute
        if place not in places and parameter in known:
            further[name] = known[parameter]
        places.add(place)
        known.setdefault(parameter, name)
    return further


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, also those that are not saved."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def refuse_unsupported_layers(module: nn.Module) -> None:
    """Refuse, by name, layers and parameters that would be silently wrong in a federation."""
    for name, layer in module.named_modules():
        if isinstance(layer, torch.jit.ScriptModule):
            raise UserError(
                f"layer '{name}' is compiled by torch.jit, and no client's parameters can be put into it; "
                "use the module that it was made from"
            )
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and not parameter.numel():
            raise UserError(
                f"the model's {name!r} has the shape {tuple(parameter.shape)} and so no entry that could be "
                "trained; leave it out, or freeze it (requires_grad=False)"
            )
