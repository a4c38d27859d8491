"""What a client minimises: a model, a task and an l2 term, as pure functions of parameters and a batch."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from idiolect.core import rng, tree
from idiolect.core.autodiff import gradient
from idiolect.core.parts import require_names
from idiolect.core.task import Task
from idiolect.core.tree import Params
from idiolect.errors import UserError


class Batch(NamedTuple):
    """Rows of one client. The weights sum to one; rows that only pad have weight zero."""

    inputs: Tensor
    targets: Tensor
    weights: Tensor


class Mixture(NamedTuple):
    """A predictor whose output is the weighted sum of the outputs of several models."""

    members: tuple[Params, ...]
    weights: tuple[Tensor, ...]


Predictor = Params | Mixture


class Pass(NamedTuple):
    """What a forward pass on some rows gives: the features that enter the head, and the outputs."""

    features: Tensor
    outputs: Tensor


PassLoss = Callable[[Pass, Batch], Tensor]  # a loss of a method's own

_DROPOUT = nn.modules.dropout._DropoutNd


class Objective:
    """f(w) = sum over rows of weight * loss(model(w, x), y) + (weight_decay / 2) * |w|^2.

    `clip`: the largest norm of a gradient, which is shortened to it; None: gradients are what they are.
    """

    def __init__(
        self, module: nn.Module, task: Task, weight_decay: float = 0.0, clip: float | None = None
    ) -> None:
        refuse_unsupported_layers(module)
        self.module = module
        self.task = task
        self.weight_decay = weight_decay
        self.clip = clip
        self._names = dict.fromkeys(name for name, _ in module.named_parameters())
        self._head = last_module(module)
        self._further_names = _names_of_tied_parameters(module)

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the parameters."""
        return next(self.module.parameters()).dtype

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.module.parameters()).device

    def initial_params(self) -> Params:
        """The module's own parameters, detached."""
        return {name: p.detach().clone() for name, p in self.module.named_parameters()}

    def predict(self, predictor: Predictor, inputs: Tensor) -> Tensor:
        """The model's outputs for some rows; a predictor without all of the model's parameters is refused."""
        if isinstance(predictor, Mixture):
            outputs = [
                weight * self.predict(member, inputs)
                for member, weight in zip(predictor.members, predictor.weights, strict=True)
            ]
            return torch.stack(outputs).sum(0)
        # For a parameter that is missing torch would take the module's own value.
        if predictor.keys() != self._names.keys():
            require_names(predictor, self._names, f"a predictor of the model {type(self.module).__name__}")
        tied = {other: predictor[name] for other, name in self._further_names.items()}
        return torch.as_tensor(
            functional_call(self.module, {**predictor, **tied}, (inputs,), tie_weights=False)
        )

    def data_loss(self, predictor: Predictor, batch: Batch) -> Tensor:
        """The weighted loss of the rows, without the l2 term."""
        row_losses = self.task.row_losses(self.predict(predictor, batch.inputs), batch.targets)
        return (row_losses * batch.weights).sum()

    def penalty(self, params: Params) -> Tensor | float:
        """The l2 term."""
        return 0.5 * self.weight_decay * tree.squared_norm(params) if self.weight_decay else 0.0

    def loss(self, params: Params, batch: Batch) -> Tensor:
        """f(params; batch)."""
        return self.data_loss(params, batch) + self.penalty(params)

    def features(self, params: Params, inputs: Tensor) -> Tensor:
        """What enters the head, the last module that owns parameters: [rows, ...]."""
        return self._look(params, inputs).features

    def training_pass(self, params: Params, batch: Batch) -> Pass:
        """The forward pass of a gradient, for methods with a loss of their own."""
        return self._look(params, batch.inputs)

    def data_gradient(
        self, params: Params, batch: Batch, *, fixed: Params | None = None, loss: PassLoss | None = None
    ) -> Params:
        """The gradient of the rows' loss, without the l2 term; `fixed` and `loss` as for `gradient`."""

        def value(at: Params) -> Tensor:
            whole = at if fixed is None else {**at, **fixed}
            return (
                self.data_loss(whole, batch)
                if loss is None
                else loss(self.training_pass(whole, batch), batch)
            )

        return gradient(value, params)

    def gradient(
        self, params: Params, batch: Batch, *, fixed: Params | None = None, loss: PassLoss | None = None
    ) -> Params:
        """The gradient of f in its parameters, at most as long as `clip`.

        fixed: the model's other parameters, if `params` are a part of it; the l2 term is of that part alone.
        loss: in place of the task's, of what the forward pass gives.
        """
        slopes = self.data_gradient(params, batch, fixed=fixed, loss=loss)
        if self.weight_decay:
            # By hand: autograd would build the l2 term's graph anew in every step.
            slopes = tree.map_tree(lambda g, w: g + self.weight_decay * w, slopes, params)
        return slopes if self.clip is None else _shortened(slopes, self.clip)

    def _look(self, params: Params, inputs: Tensor) -> Pass:
        """The outputs, and what the head was given on the way."""
        seen: list[Tensor] = []
        hook = self.module.get_submodule(self._head).register_forward_pre_hook(
            lambda _, given: seen.append(given[0])
        )
        try:
            outputs = self.predict(params, inputs)
        finally:
            hook.remove()
        if len(seen) != 1:
            raise UserError(
                f"the model's last layer {self._head!r} is used {len(seen)} times in a forward pass, so what "
                "enters it is no row's features; a method that needs them takes models that end in one layer"
            )
        return Pass(seen[0], outputs)


def last_module(module: nn.Module) -> str:
    """The name of the head: of the last module that owns parameters, also if it shares them with others."""
    owners = [name.rpartition(".")[0] for name, _ in module.named_parameters(remove_duplicate=False)]
    if not owners:
        raise UserError(f"the model {type(module).__name__} has no parameters, so nothing can be trained")
    return owners[-1]


def _shortened(slopes: Params, longest: float) -> Params:
    """The same direction, at most so long."""
    # Clamped before the root, whose derivative at zero is infinite.
    squares = tree.squared_norm(slopes).clamp_min(longest**2)
    return tree.scale(slopes, longest * squares.rsqrt())


def _names_of_tied_parameters(module: nn.Module) -> dict[str, str]:
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


def seeded_module(
    factory: Callable[[], nn.Module], seed: int, dtype: torch.dtype = torch.float32
) -> nn.Module:
    """Build a module whose initial parameters are a pure function of the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(rng.generator_seed(rng.key(seed, "initial parameters")))
        return in_precision(factory(), dtype)


def in_precision(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The module itself, its numbers in some precision; refuse what has no such numbers."""
    for name, tensor in _tensors_of(module).items():
        if nn.parameter.is_lazy(tensor):
            raise UserError(
                f"the model's {name!r} has no shape yet; say how many features its layer takes, "
                "or call the model once on some rows before it is given away"
            )
        if tensor.is_complex():
            raise UserError(
                f"the model's {name!r} is complex, and methods and files have real numbers; "
                "keep real and imaginary part, and use torch.complex in the forward pass"
            )
    return module.to(dtype)


def refuse_unsupported_layers(module: nn.Module) -> None:
    """Refuse, by name, layers that would be silently wrong in a federation."""
    for name, layer in module.named_modules():
        kind = type(layer).__name__
        if isinstance(layer, torch.jit.ScriptModule):
            raise UserError(
                f"layer '{name}' is compiled by torch.jit, and no client's parameters can be put into it; "
                "use the module that it was made from"
            )
        tracks = isinstance(layer, nn.modules.batchnorm._NormBase) and layer.track_running_stats
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) or tracks:
            raise UserError(
                f"layer '{name}' is a {kind}, whose statistics mix rows (padding too) or are not parameters; "
                "use GroupNorm or LayerNorm instead"
            )
        if isinstance(layer, _DROPOUT) and layer.p > 0:
            raise UserError(
                f"layer '{name}' is a {kind} with p={layer.p}, whose noise no seed of a run controls; "
                "set p=0 or use weight_decay instead"
            )


def refuse_unfit_model(objective: Objective, rows: Batch) -> None:
    """Refuse, in a sentence, a model that cannot take some rows, cannot be trained, or has side effects."""
    kind = type(objective.module).__name__
    try:
        _refuse_side_effects(objective.module, rows.inputs)
        objective.gradient(objective.initial_params(), rows)
    except UserError:
        raise
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as error:
        shapes = f"inputs {tuple(rows.inputs.shape)} and targets {tuple(rows.targets.shape)}"
        reason = str(error).strip().split("\n")[0]
        raise UserError(f"the model {kind} cannot be trained on {shapes}: {reason}") from error


def _refuse_side_effects(module: nn.Module, inputs: Tensor) -> None:
    """Refuse a model whose forward pass on some rows draws noise, or changes these rows or itself.

    Two models that see one batch would see different rows, and what a client computes would depend on who
    was computed before it.
    """
    kind = type(module).__name__
    own = _tensors_of(module)
    kept = {name: value.detach().clone() for name, value in own.items()}
    # By versions, which count writes: what is written may by chance be what was there.
    versions = {name: value._version for name, value in own.items()}
    rows = inputs.clone()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        noise = torch.get_rng_state()
        module(rows)
        draws_noise = not torch.equal(noise, torch.get_rng_state())
        changed = [
            name
            for name, value in _tensors_of(module).items()
            if value is not own.get(name) or value._version != versions[name]
        ]
        for name in kept.keys() & set(changed):
            _tensors_of(module)[name].copy_(kept[name])
    if changed:
        raise UserError(
            f"the model {kind} changes its own {changed[0]!r} in the forward pass, which no method can carry "
            "from client to client; use layers without running statistics, and embeddings without max_norm"
        )
    if draws_noise:
        raise UserError(
            f"the model {kind} draws noise in the forward pass, which no seed of a run controls; "
            "set its dropout to 0, or use weight_decay instead"
        )
    if rows._version > 0:
        raise UserError(
            f"the model {kind} changes its inputs in the forward pass, so a second model would see others; "
            "let its first operation make a new tensor (inplace=False)"
        )


def _tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, also those that are not saved."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}
