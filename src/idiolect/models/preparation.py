"""What is done to a model, whoever made it, before a run: weights from a file are put in, adapters are added.

model.weights=resnet.safetensors   model.adapter.rank=4   model.adapter.layers=[output]
"""

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter
from torch import nn

from idiolect.errors import UserError
from idiolect.models.adapters import AdapterSettings, add_adapters
from idiolect.models.weights import load_weights
from idiolect.plugins import call

OPTIONS = ("weights", "adapter")  # of every model


@dataclass(frozen=True)
class Preparation:
    """What is to be done."""

    weights: str | None = None
    adapter: AdapterSettings | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "Preparation":
        """From options of the model; what is wrong with them is said in a sentence."""
        weights, adapter = options.get("weights"), options.get("adapter")
        if weights is not None and not isinstance(weights, str):
            raise UserError(f"model.weights={weights} is not possible: it must be the path of a file")
        if adapter is None or isinstance(adapter, AdapterSettings):
            return cls(weights, adapter)
        if not isinstance(adapter, Mapping):
            raise UserError(
                f"model.adapter={adapter} is not possible: it has settings, as model.adapter.rank=4"
            )
        layers = adapter.get("layers", ())
        given = {**adapter, "layers": (layers,)} if isinstance(layers, str) else dict(adapter)
        return cls(weights, call(AdapterSettings, given, "model.adapter"))

    def plain(self) -> dict[str, Any]:
        """As options of the model, with every default."""
        plain: dict[str, Any] = {} if self.weights is None else {"weights": self.weights}
        if self.adapter is not None:
            plain["adapter"] = TypeAdapter(AdapterSettings).dump_python(self.adapter, mode="json")
        return plain

    @property
    def file_options(self) -> list[str]:
        """The options that name a file."""
        return [] if self.weights is None else ["weights"]

    def prepare(self, module: nn.Module, seed: int) -> nn.Module:
        """The model, which is changed, or what takes its place."""
        if self.weights is not None and not any(p.is_meta for p in module.parameters()):
            module = load_weights(module, self.weights)
        return module if self.adapter is None else add_adapters(module, self.adapter, seed)

    def prepare_copy(
        self, model: nn.Module | Callable[[], nn.Module], seed: int
    ) -> nn.Module | Callable[[], nn.Module]:
        """A user's own module, which stays as it is, or a factory of such."""
        if self == Preparation():
            return model
        if isinstance(model, nn.Module):
            return self.prepare(copy.deepcopy(model), seed)
        return lambda: self.prepare(copy.deepcopy(model()), seed)  # it may give one module twice


def without_preparation(
    options: Mapping[str, Any], factory: Callable[..., nn.Module] | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A model's own options, and those of its preparation.

    A factory that has an option of such a name itself, as `weights` in torchvision, gets it.
    """
    known = () if factory is None else inspect.signature(factory).parameters
    others = {name: options[name] for name in OPTIONS if name in options and name not in known}
    return {name: value for name, value in options.items() if name not in others}, others
