"""The fixed part of a model: parameters that keep their bits, are equal everywhere and are not sent.

A parameter is fixed if its module says so (`requires_grad=False`). Methods never see it: what they train,
send, average and keep are the other parameters alone, while the module, with which an objective predicts, has
the fixed ones. So neither weight decay nor momentum nor an average can touch them (spec 8.15).
A normalisation layer whose parameters are fixed is fixed with what it remembers: it normalises with its
statistics, in training too, and these stay.
"""

import copy
import hashlib
from fnmatch import fnmatchcase

from torch import nn

from idiolect.core.parts import PartRule, Parts, Patterns, names_by_rule
from idiolect.core.tree import Params
from idiolect.errors import UserError


def training_only(module: nn.Module, part: PartRule | Patterns) -> nn.Module:
    """A copy of a model in which everything but a part is fixed; what was fixed before stays so.

    A parameter that several layers share is of the part if one of its names is.
    """
    patterns = names_by_rule(part, module) if isinstance(part, str) else part
    every_name = dict(module.named_parameters(remove_duplicate=False))
    if isinstance(part, str) and not patterns:
        raise UserError(f"train={part} is not possible: the model {type(module).__name__} has no such part")
    Parts.of(every_name, {"train": patterns}, rest="fixed")  # refuses a pattern that matches nothing
    meant = {
        id(parameter)
        for name, parameter in every_name.items()
        if any(fnmatchcase(name, pattern) for pattern in patterns)
    }
    names = [name for name, parameter in module.named_parameters() if id(parameter) not in meant]
    own = copy.deepcopy(module)
    for name in names:
        own.get_parameter(name).requires_grad_(False)
    return own


def trained_params(module: nn.Module) -> Params:
    """What is trained, by name, in the model's own order; a model of which nothing is, is refused."""
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    if not trained:
        raise UserError(
            f"the model {type(module).__name__} has nothing to train: all of its parameters are fixed"
        )
    return dict(trained)


def fixed_params(module: nn.Module) -> Params:
    """What is fixed, by name, in the model's own order; then what fixed normalisation layers remember."""
    fixed = {name: p.detach() for name, p in module.named_parameters() if not p.requires_grad}
    for path, layer in module.named_modules():
        if is_fixed_norm(layer):
            fixed |= {f"{path}.{name}".lstrip("."): b for name, b in layer.named_buffers(recurse=False)}
    return fixed


def is_fixed_norm(layer: nn.Module) -> bool:
    """Whether a layer is a normalisation layer that has parameters, none of which is trained."""
    own = list(layer.parameters(recurse=False))
    is_norm = isinstance(layer, nn.modules.batchnorm._NormBase)
    return is_norm and bool(own) and not any(parameter.requires_grad for parameter in own)


def put_weights(module: nn.Module, weights: Params) -> None:
    """Let a model have parameters of another one of its kind: its fixed part, and perhaps more."""
    own = module.state_dict()
    for name in fixed_params(module):
        if name not in weights:
            raise UserError(f"the fixed part of the model lacks its parameter {name!r}")
    for name, value in weights.items():
        if name not in own or own[name].shape != value.shape:
            raise UserError(f"{name!r} of the shape {tuple(value.shape)} is no part of the model")
    module.load_state_dict(weights, strict=False)


def fingerprint(params: Params) -> str:
    """A digest of parameters: of names, shapes, types and bits."""
    digest = hashlib.sha256()
    for name, value in sorted(params.items()):
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}\n".encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
