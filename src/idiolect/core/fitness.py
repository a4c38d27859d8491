"""Whether a model can be trained in a federation: found by trying, and told in a sentence."""

import torch
from torch import Tensor

from idiolect.core import rng, tree
from idiolect.core.device import to_device, to_host
from idiolect.core.fixed import trained_params
from idiolect.core.inputs import as_arguments, shown_shapes
from idiolect.core.modules import tensors_of
from idiolect.core.objective import Batch, Objective
from idiolect.core.several import Several
from idiolect.core.tree import Params
from idiolect.errors import UserError

_ONE_TENSOR = "its forward pass has to give one tensor of outputs"
_HINTS = {  # by words in torch's sentences
    "Long, Int": "codes stay whole where a client's inputs are a dict or a tuple of arrays: `(codes,)`",
    "Could not infer dtype": _ONE_TENSOR,
    "only one element tensors": _ONE_TENSOR,
}


def refuse_unfit_model(objective: Objective, rows: Batch) -> None:
    """Refuse, in a sentence, a model that cannot take some rows, cannot be trained, or has side effects."""
    kind = type(objective.module).__name__
    try:
        _refuse_side_effects(objective, rows)
        _refuse_memory(objective, rows)
        _refuse_late_layers(objective, rows)
        objective.gradient(objective.initial_params(), rows)
    except UserError:
        raise
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as error:
        shapes = f"inputs {shown_shapes(rows.inputs)} and targets {tuple(rows.targets.shape)}"
        reason = str(error).strip().split("\n")[0]
        raise UserError(f"the model {kind} cannot be trained on {shapes}: {reason}{_hint(reason)}") from error


def moved_params(objective: Objective) -> Params:
    """First parameters, each moved a little: where they are zero, nothing would be seen of a model."""
    return {
        name: value
        + 0.1 * rng.uniform(to_device(rng.key(0, "probe", place), value.device), *value.shape).to(value.dtype)
        for place, (name, value) in enumerate(objective.initial_params().items())
    }


def _hint(reason: str) -> str:
    """What would be right, where torch only says what is wrong."""
    return next((f" ({hint})" for words, hint in _HINTS.items() if words in reason), "")


def _refuse_memory(objective: Objective, batch: Batch) -> None:
    """Refuse a model that remembers its calls, in whatever it keeps besides tensors."""
    params = moved_params(objective)

    def outputs() -> tuple[Tensor, Tensor]:
        return to_host((objective.predict(params, batch.inputs), objective.apart(params, batch)))

    with torch.no_grad():
        first, second = outputs(), outputs()
    if not all(torch.allclose(a, b, equal_nan=True) for a, b in zip(first, second, strict=True)):
        raise UserError(
            f"the model {type(objective.module).__name__} gives other outputs when it is called once more "
            "with the same rows, so what a client computes would depend on who was computed before it; let "
            "its forward pass depend on inputs and parameters alone"
        )


def _refuse_late_layers(objective: Objective, rows: Batch) -> None:
    """Refuse a model of several that does something after its last layer, which would be done before it."""
    several = objective.module
    if not isinstance(several, Several):
        return
    arguments, keywords = as_arguments(rows.inputs)
    for number, head in enumerate(several.heads):
        alone = several.alone(number).eval()
        used = objective.with_architecture(torch.tensor(number, device=objective.device))
        with torch.no_grad():
            expected = alone(*arguments, **keywords)
            outputs = used.predict(trained_params(several), rows.inputs)
        if not torch.allclose(outputs, expected, equal_nan=True):
            raise UserError(
                f"the model {type(alone).__name__}, one of several, goes on after its last layer {head!r}; "
                "let it end in it"
            )


def _refuse_side_effects(objective: Objective, batch: Batch) -> None:
    """Refuse a model that draws noise by itself, or changes the rows of a batch or itself.

    Two models that see one batch would see different rows, and what a client computes would depend on who
    was computed before it.
    """
    kind = type(objective.module).__name__
    rows = batch._replace(inputs=tree.map_tree(torch.clone, batch.inputs))
    own = {**tensors_of(objective.module), **objective.statistics}
    kept = {name: value.detach().clone() for name, value in own.items()}
    # By versions, which count writes: what is written may by chance be what was there.
    versions = {name: value._version for name, value in own.items()}
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        noise = torch.get_rng_state()
        objective.rehearse(rows)
        objective.predict(trained_params(objective.module), rows.inputs)
        draws_noise = not torch.equal(noise, torch.get_rng_state())
        now = {**tensors_of(objective.module), **objective.statistics}
        changed = [
            name
            for name, value in now.items()
            if value is not own.get(name) or value._version != versions[name]
        ]
        for name in kept.keys() & set(changed):
            now[name].copy_(kept[name])
    if changed:
        raise UserError(
            f"the model {kind} changes its own {changed[0]!r} in the forward pass, which no method can carry "
            "from client to client; use normalisation layers of torch.nn, and embeddings without max_norm"
        )
    if draws_noise:
        raise UserError(
            f"the model {kind} draws noise in the forward pass, which no seed of a run controls; use layers "
            "of dropout, and functions of dropout with training=self.training"
        )
    if any(leaf._version > 0 for leaf in tree.leaves(rows.inputs)):
        raise UserError(
            f"the model {kind} changes its inputs in the forward pass, so a second model would see others; "
            "let its first operation make a new tensor (inplace=False)"
        )
