"""Models by name, and the user's own by import path or entry point."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from idiolect.core import rng
from idiolect.core.several import Several
from idiolect.data.federation import Federation
from idiolect.errors import UserError
from idiolect.models.dense import dnn, linear, mlp, quadratic
from idiolect.models.images import cnn, cnn4, lenet, resnet
from idiolect.models.preparation import Preparation, without_preparation
from idiolect.models.sequences import bag, char_lstm, gru, transformer
from idiolect.plugins import Catalogue, call, kind_of


def several(federation: Federation, *, models: Sequence[Mapping[str, Any]]) -> nn.Module:
    """Models of different architectures, of which clients take turns: the first has the first, and so on.

    Each is a name of this catalogue and its options. What is not in it, such as own code, has to be put into
    `Several` by own code: a silo allows that by the name of the whole model.
    """
    made = (one_of_several(options) for options in models)
    return Several(
        [call(factory, options, f"model {name!r}", federation=federation) for name, factory, options in made]
    )


MODELS: dict[str, Callable[..., nn.Module]] = {
    "linear": linear,
    "mlp": mlp,
    "dnn": dnn,
    "cnn": cnn,
    "cnn4": cnn4,
    "lenet": lenet,
    "resnet": resnet,
    "char-lstm": char_lstm,
    "gru": gru,
    "bag": bag,
    "transformer": transformer,
    "quadratic": quadratic,
    "several": several,
}


CATALOGUE: Catalogue[Callable[..., nn.Module]] = Catalogue(
    word="model",
    several="models",
    group="idiolect.models",
    own="your own as package.module:factory",
    flaw=lambda found: None if callable(found) else f"it must be a factory or a class, not {kind_of(found)}",
    built_in=MODELS,
)


def build_model(name: str, federation: Federation, *, seed: int = 0, **options: Any) -> nn.Module:
    """A model by name, or the user's own, by import path `package.module:factory` or an entry point.

    A user's factory is called with the federation and the options if it has a parameter `federation`,
    otherwise with the options alone (a subclass of nn.Module is such a factory). Every model has the options
    `weights`, a file that it starts from, and `adapter`, the settings of adapters beside its linear layers.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(rng.generator_seed(rng.key(seed, "model")))
        return _make(name, federation, options, seed)


def outline_model(name: str, federation: Federation, **options: Any) -> nn.Module:
    """A model without its numbers, on the device `meta`: to look at its size before it takes memory."""
    with torch.device("meta"):
        return _make(name, federation, options, seed=0)


def one_of_several(options: Mapping[str, Any]) -> tuple[str, Callable[..., nn.Module], dict[str, Any]]:
    """The name, the factory and the options of a model that is one of several."""
    others = dict(options)
    name = others.pop("name", None)
    known = [each for each in MODELS if each != "several"]
    if name not in known:
        raise UserError(
            f"model.models has a model of the name {name!r}; each of them must have one of the names "
            f"{', '.join(known)}"
        )
    return name, MODELS[name], others


def _make(name: str, federation: Federation, options: dict[str, Any], seed: int) -> nn.Module:
    factory = CATALOGUE.find(name)
    own, others = without_preparation(options, factory)
    model = call(factory, own, f"model {name!r}", federation=federation)
    if not isinstance(model, nn.Module):
        raise UserError(f"model={name!r} gave {kind_of(model)}, not a torch.nn.Module")
    return Preparation.of(others).prepare(model, seed)
