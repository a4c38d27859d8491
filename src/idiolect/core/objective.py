"""What a client minimises: a model, a task and an l2 term, as pure functions of parameters and a batch."""

import copy
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from idiolect.core import rng, tree
from idiolect.core.autodiff import gradient, gradient_and_more
from idiolect.core.device import to_device
from idiolect.core.fixed import fixed_params, trained_params
from idiolect.core.inputs import Inputs, as_arguments
from idiolect.core.modules import (
    Modes,
    names_of_tied_parameters,
    refuse_unsupported_layers,
    tensors_of,
)
from idiolect.core.neighbours import Neighbours, answer
from idiolect.core.normalisation import Moments, Statistics, names_of, norm_layers, split_off, statistics_of
from idiolect.core.parts import last_module, require_names
from idiolect.core.several import ARCHITECTURE, only_used
from idiolect.core.task import Task
from idiolect.core.training_mode import TrainingMode, found_row_axes
from idiolect.core.tree import Params
from idiolect.errors import UserError

T = TypeVar("T")


class Batch(NamedTuple):
    """Rows of one client. The weights sum to one; rows that only pad have weight zero.

    The key is that of the noise which a model draws in training, if it draws any.
    """

    inputs: Inputs
    targets: Tensor
    weights: Tensor
    key: Tensor | tuple[()] = ()


class Mixture(NamedTuple):
    """A predictor whose output is the weighted sum of the outputs of several models."""

    members: tuple[Params, ...]
    weights: tuple[Tensor, ...]


Predictor = Params | Mixture | Neighbours


class Pass(NamedTuple):
    """What a forward pass on some rows gives: the features that enter the head, and the outputs."""

    features: Tensor
    outputs: Tensor


PassLoss = Callable[[Pass, Batch], Tensor]  # a loss of a method's own

FrozenBy = Literal["batch", "kept"]
Heard = list[list[Moments]]  # what normalisation layers saw, in one training pass after the other


class Objective:
    """f(w) = sum over rows of weight * loss(model(w, x), y) + (weight_decay / 2) * |w|^2.

    Gradients, and whatever else trains a model, are taken of passes in training: normalisation layers take
    the statistics of the rows that count, and dropout draws noise. Everything else is said in evaluation:
    with the statistics that a model has kept, which are part of a predictor, or else are `statistics`.

    w are the parameters that are trained; those that the module holds fixed are what they are in it.
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
        self.norms = norm_layers(module)
        self.statistics = statistics_of(module, self.norms)
        self.draws_noise = True  # until a pass has shown that it does not
        self._row_axes: tuple[int | None, ...] | None = None
        self._architecture: Tensor | None = None
        self._heard: Heard | None = None
        self._by_pass: Mapping[int, Statistics] = {}
        self._taken: Tensor | None = None
        self._frozen_by: FrozenBy = "batch"
        self._modes = Modes(module)
        self._names = dict.fromkeys(trained_params(module))
        self._untrained_norms = names_of(self.norms, self.fixed_params())
        self._further_names = {
            other: name for other, name in names_of_tied_parameters(module).items() if name in self._names
        }

    def hearing(
        self,
        statistics: Statistics,
        heard: Heard | None = None,
        by_pass: Mapping[int, Statistics] | None = None,
        frozen_by: FrozenBy = "batch",
    ) -> Self:
        """The same with other statistics; what layers see in its training passes is put on a list.

        by_pass: those of single passes by their number, where these have others
        frozen_by: what fixed layers normalise with: the batch, or, where training is over, what was kept
        """
        other = copy.copy(self)
        other.statistics, other._heard, other._by_pass = statistics, heard, by_pass or {}
        other._frozen_by = frozen_by
        return other

    def when(self, taken: Tensor) -> Self:
        """The same for a step that is only taken on a condition: else statistics stay as they are."""
        other = copy.copy(self)
        other._taken = taken
        return other

    def with_architecture(self, architecture: Tensor) -> Self:
        """The same of a model of several architectures with another one of them."""
        other = copy.copy(self)
        other._architecture = architecture
        return other

    def rehearse(self, batch: Batch) -> TrainingMode:
        """A pass in training of the module with its own parameters: what was seen in it."""
        mode = self._training_mode(batch, None, self.statistics)
        with torch.no_grad(), self._modes.training(), mode:
            self._outputs(trained_params(self.module), batch.inputs, mode.buffers)
        return mode

    def examine(self, two: Batch, three: Batch) -> None:
        """See by passes of two and of three rows whether the model draws noise, and where its rows are."""
        one, other = self.rehearse(two), self.rehearse(three)
        self.draws_noise = one.draws > 0
        self._row_axes = found_row_axes(one.shapes, other.shapes)

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the parameters."""
        return next(self.module.parameters()).dtype

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.module.parameters()).device

    def move_to(self, device: torch.device) -> None:
        """Put the model on a device."""
        self.module.to(device)
        self.statistics = to_device(self.statistics, device)

    def initial_params(self) -> Params:
        """The module's own parameters that are trained, detached."""
        return {name: p.detach().clone() for name, p in trained_params(self.module).items()}

    def fixed_params(self) -> Params:
        """The module's own parameters that are not."""
        return fixed_params(self.module)

    def initial_model(self) -> Params:
        """The same, and the statistics of its normalisation layers."""
        return {**self.initial_params(), **self.statistics}

    def predict(self, predictor: Predictor, inputs: Inputs) -> Tensor:
        """The model's outputs for some rows; a predictor without all that is trained is refused."""
        if isinstance(predictor, Mixture):
            return mixed(predictor, lambda member: self.predict(member, inputs))
        if isinstance(predictor, Neighbours):
            return answer(predictor.store, self.task, *self.evaluation_pass(predictor.params, inputs))
        params, own = split_off(predictor, self.norms) if self.norms else (predictor, {})
        with self._modes.evaluation():
            return self._outputs(params, inputs, own or self.statistics)

    def data_loss(self, predictor: Predictor, batch: Batch) -> Tensor:
        """The weighted loss of the rows, without the l2 term."""
        return self._weighted_loss(self.predict(predictor, batch.inputs), batch)

    def training_loss(self, predictor: Params | Mixture, batch: Batch, fixed: Params | None = None) -> Tensor:
        """The same in training, for gradients; of the normalisation layers in `fixed` nothing is noted."""
        if isinstance(predictor, Mixture):
            outputs = mixed(predictor, lambda member: self._trained(member, batch, fixed))
        else:
            outputs = self._trained(predictor, batch, fixed)
        return self._weighted_loss(outputs, batch)

    def penalty(self, params: Params) -> Tensor | float:
        """The l2 term."""
        return 0.5 * self.weight_decay * tree.squared_norm(self._used(params)) if self.weight_decay else 0.0

    def loss(self, params: Params, batch: Batch) -> Tensor:
        """f(params; batch)."""
        return self.data_loss(params, batch) + self.penalty(params)

    def features(self, params: Params, inputs: Inputs) -> Tensor:
        """What enters the head, the last module that owns parameters: [rows, ...]."""
        return self.evaluation_pass(params, inputs).features

    def evaluation_pass(self, params: Params, inputs: Inputs) -> Pass:
        """The features and outputs of some rows."""
        return with_features(self.module, lambda: self.predict(params, inputs))

    def training_pass(self, params: Params, batch: Batch, fixed: Params | None = None) -> Pass:
        """The forward pass of a gradient, for methods with a loss of their own; `fixed` as there."""
        return with_features(self.module, lambda: self._trained(params, batch, fixed))

    def apart(self, params: Params, batch: Batch) -> Tensor:
        """The outputs in training but for batch normalisation, the one thing that may mix rows."""
        mode = self._training_mode(batch, None, self.statistics, mixes_rows=False)
        with self._modes.training(), mode:
            return self._outputs(params, batch.inputs, mode.buffers)

    def data_gradient(
        self, params: Params, batch: Batch, *, fixed: Params | None = None, loss: PassLoss | None = None
    ) -> Params:
        """The gradient of the rows' loss, without the l2 term; `fixed` and `loss` as for `gradient`."""

        def value(at: Params) -> Tensor:
            whole = at if fixed is None else {**at, **fixed}
            if loss is None:
                return self.training_loss(whole, batch, fixed)
            return loss(self.training_pass(whole, batch, fixed), batch)

        return self.derivative(value, params)

    def derivative(self, function: Callable[[T], Tensor], at: T) -> T:
        """The gradient of a function in which this objective makes passes in training, as a tree like `at`.

        What layers saw in these is taken out of torch's transform as a result of it: a recording does not
        know tensors that leave it in any other way.
        """
        if self._heard is None or not tree.leaves(at):
            return gradient(function, at)
        return self._derivative_and_value(function, at)[0]

    def _derivative_and_value(self, function: Callable[[T], Tensor], at: T) -> tuple[T, Tensor]:
        """The same, and the function's value."""
        if not tree.leaves(at):
            return at, function(at)
        heard = [] if self._heard is None else self._heard
        before = len(heard)

        def value(at: T) -> tuple[Tensor, tuple[Tensor, Heard]]:
            found = function(at)
            return found, (found, heard[before:])

        slopes, (found, heard[before:]) = gradient_and_more(value, at)
        return slopes, found.detach()

    def gradient(
        self, params: Params, batch: Batch, *, fixed: Params | None = None, loss: PassLoss | None = None
    ) -> Params:
        """The gradient of f in its parameters, at most as long as `clip`.

        fixed: the model's other parameters, if `params` are a part of it; the l2 term is of that part alone,
            and normalisation layers that are fixed keep their statistics.
        loss: in place of the task's, of what the forward pass gives.
        """
        return self._completed(self.data_gradient(params, batch, fixed=fixed, loss=loss), params)

    def gradient_and_loss(
        self, params: Params, batch: Batch, *, fixed: Params | None = None
    ) -> tuple[Params, Tensor]:
        """The same, and the rows' loss in training, without the l2 term: of one forward pass."""

        def value(at: Params) -> Tensor:
            return self.training_loss({**at, **(fixed or {})}, batch, fixed)

        slopes, loss = self._derivative_and_value(value, params)
        return self._completed(slopes, params), loss

    def _completed(self, slopes: Params, params: Params) -> Params:
        """The gradient of f, from that of the rows' loss."""
        if self.weight_decay:
            # By hand: autograd would build the l2 term's graph anew in every step.
            slopes = tree.map_tree(lambda g, w: g + self.weight_decay * w, slopes, self._used(params))
        return slopes if self.clip is None else _shortened(slopes, self.clip)

    def _outputs(self, params: Params, inputs: Inputs, statistics: Statistics) -> Tensor:
        """The model's outputs in the mode in which it is."""
        if ARCHITECTURE in params and ARCHITECTURE not in self._names:  # a predictor that says which it has
            others = {name: value for name, value in params.items() if name != ARCHITECTURE}
            return self.with_architecture(params[ARCHITECTURE])._outputs(others, inputs, statistics)
        # For a parameter that is missing torch would take the module's own value.
        if params.keys() != self._names.keys():
            require_names(params, self._names, f"a predictor of the model {type(self.module).__name__}")
        params = self._used(params)
        tied = {other: params[name] for other, name in self._further_names.items()}
        state = {**params, **tied, **statistics}
        if self._architecture is not None:
            state[ARCHITECTURE] = self._architecture
        arguments, keywords = as_arguments(inputs)
        return torch.as_tensor(functional_call(self.module, state, arguments, keywords, tie_weights=False))

    def _used(self, params: Params) -> Params:
        return params if self._architecture is None else only_used(params, self._architecture)

    def _trained(self, params: Params, batch: Batch, fixed: Params | None) -> Tensor:
        """The outputs in training."""
        if self._row_axes == ():  # nothing was seen to normalise or to draw noise
            with self._modes.training():
                return self._outputs(params, batch.inputs, self.statistics)
        number = 0 if self._heard is None else len(self._heard)
        statistics = self._by_pass.get(number, self.statistics)
        mode = self._training_mode(batch, fixed, statistics)
        with self._modes.training(), mode:
            outputs = self._outputs(params, batch.inputs, mode.buffers)
        if self._heard is not None:
            self._heard.append([self._if_taken(moments) for moments in mode.seen])
        return outputs

    def _if_taken(self, seen: Moments) -> Moments:
        return seen if self._taken is None else seen._replace(exists=seen.exists & self._taken)

    def _training_mode(
        self, batch: Batch, fixed: Params | None, statistics: Statistics, *, mixes_rows: bool = True
    ) -> TrainingMode:
        fixed_norms = names_of(self.norms, fixed or {})
        return TrainingMode(
            self.norms,
            statistics,
            batch.weights,
            batch.key,
            frozen=self._untrained_norms | fixed_norms,
            resting=self._untrained_norms | (fixed_norms if self._frozen_by == "kept" else frozenset()),
            row_axes=self._row_axes,
            mixes_rows=mixes_rows,
        )

    def _weighted_loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return (self.task.row_losses(outputs, batch.targets) * batch.weights).sum()


def with_features(module: nn.Module, outputs: Callable[[], Tensor]) -> Pass:
    """Some outputs of a module, and what its head was given on the way."""
    seen: list[Tensor] = []
    head = last_module(module)
    hook = module.get_submodule(head).register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    try:
        found = outputs()
    finally:
        hook.remove()
    if len(seen) != 1:
        raise UserError(
            f"the model's last layer {head!r} is used {len(seen)} times in a forward pass, so what "
            "enters it is no row's features; a method that needs them takes models that end in one layer"
        )
    return Pass(seen[0], found)


def members_of(predictor: Predictor) -> tuple[Params, ...]:
    """The models that a predictor consists of."""
    if isinstance(predictor, Mixture):
        return predictor.members
    return (predictor.params,) if isinstance(predictor, Neighbours) else (predictor,)


def mixed(mixture: Mixture, outputs: Callable[[Params], Tensor]) -> Tensor:
    """The weighted sum of the outputs of a mixture's members."""
    members = zip(mixture.members, mixture.weights, strict=True)
    return torch.stack([weight * outputs(member) for member, weight in members]).sum(0)


def _shortened(slopes: Params, longest: float) -> Params:
    """The same direction, at most so long."""
    # Clamped before the root, whose derivative at zero is infinite.
    squares = tree.squared_norm(slopes).clamp_min(longest**2)
    return tree.scale(slopes, longest * squares.rsqrt())


def seeded_module(
    factory: Callable[[], nn.Module], seed: int, dtype: torch.dtype = torch.float32
) -> nn.Module:
    """Build a module whose initial parameters are a pure function of the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(rng.generator_seed(rng.key(seed, "initial parameters")))
        return in_precision(factory(), dtype)


def in_precision(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The module itself, its numbers in some precision; refuse what has no such numbers."""
    for name, tensor in tensors_of(module).items():
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
