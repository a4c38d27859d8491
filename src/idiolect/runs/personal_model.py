"""One client's model as a module, and what it says of new rows."""

import copy
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from idiolect.core.inputs import Inputs, as_arguments, in_real_precision
from idiolect.core.modules import tensors_of
from idiolect.core.neighbours import Neighbours, Store, answer, filled
from idiolect.core.objective import Mixture, Predictor, with_features
from idiolect.core.several import Several
from idiolect.core.task import Task
from idiolect.core.tree import Params
from idiolect.data.preprocessing import Preprocessing
from idiolect.errors import UserError
from idiolect.models import merge_adapters


class MixedModel(nn.Module):
    """A weighted sum of the outputs of several models."""

    def __init__(self, members: list[nn.Module], weights: Tensor) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.register_buffer("weights", weights)

    def forward(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        """The mixed outputs."""
        outputs = torch.stack([member(*inputs, **named) for member in self.members])
        return torch.tensordot(self.weights, outputs, dims=1)


class NeighbourModel(nn.Module):
    """A model, and stored rows that are asked beside it."""

    def __init__(self, model: nn.Module, store: Store, task: Task) -> None:
        super().__init__()
        self.model, self.task = model, task
        for name, tensor in store._asdict().items():
            self.register_buffer(name, tensor)

    def forward(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        """The model's outputs with the neighbours' votes in them."""
        store = Store(*(getattr(self, name) for name in Store._fields))
        return answer(store, self.task, *with_features(self.model, lambda: self.model(*inputs, **named)))


def as_module(predictor: Predictor, module: nn.Module, task: Task, whose: str) -> nn.Module:
    """A predictor as a module of its own; `module` is the architecture and is left as it is.

    A predictor that is not finite is refused, as the model of `whose`.
    """
    if isinstance(predictor, Mixture):
        members = [_with_params(module, params) for params in predictor.members]
        own: nn.Module = MixedModel(members, torch.stack([w.detach() for w in predictor.weights]))
    elif isinstance(predictor, Neighbours):
        own = NeighbourModel(_with_params(module, predictor.params), filled(predictor.store), task)
    else:
        own = _with_params(module, predictor)
    require_finite(own, whose)
    return own.eval()


def require_finite(module: nn.Module, whose: str) -> None:
    """Refuse a model whose training diverged: it has no answers."""
    for name, tensor in module.state_dict().items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise UserError(
                f"the model of {whose} is of no use: its {name!r} is not finite, so its training diverged; "
                "train it again with a smaller learning rate"
            )


@dataclass(frozen=True)
class PersonalModel:
    """A client's model together with what is needed to use it on new rows."""

    module: nn.Module
    task: Task
    class_names: tuple[str, ...]
    preprocessing: Preprocessing | None

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the parameters."""
        return next(self.module.parameters()).dtype

    def outputs(self, inputs: Inputs) -> Tensor:
        """The model's outputs for rows that are inputs already."""
        arguments, keywords = as_arguments(in_real_precision(inputs, self.dtype))
        with torch.no_grad():
            return torch.as_tensor(self.module(*arguments, **keywords))

    def decide(self, outputs: Tensor) -> Tensor:
        """What outputs say: numbers of classes, or numbers in the target's own units.

        Whatever gives answers, also an exported program, asks here.
        """
        decided = self.task.decide(outputs)
        if self.task.is_classification or self.preprocessing is None:
            return decided
        return self.preprocessing.restore_target(decided)[:, 0]

    def predict(self, table: pd.DataFrame) -> "pd.Series[Any]":
        """Predicted class names, or numbers in the target's own units, of a table's rows."""
        preprocessing, outputs = self._outputs_of_table(table)
        values = self.name_answers(self.decide(outputs))
        return pd.Series(values, index=table.index, name=preprocessing.target or "prediction")

    def predict_proba(self, table: pd.DataFrame) -> pd.DataFrame:
        """The probability of each class, a column for each, of a table's rows."""
        self.require_classes()
        _, outputs = self._outputs_of_table(table)
        return self.name_probabilities(outputs, table.index)

    def name_answers(self, decided: Tensor) -> list[Any]:
        """Class names where there are any, class numbers, or numbers."""
        answers: list[Any] = decided.tolist()
        if self.task.is_classification and self.class_names:
            return [self.class_names[c] for c in answers]
        return answers

    def name_probabilities(self, outputs: Tensor, index: pd.Index | None = None) -> pd.DataFrame:
        """The probabilities that outputs say, with a column for each class."""
        probabilities = self.task.probabilities(outputs)
        classes = self.class_names or tuple(map(str, range(probabilities.shape[-1])))
        return pd.DataFrame(probabilities.numpy(), index=index, columns=list(classes))

    def require_classes(self) -> None:
        """Refuse to give probabilities where numbers are predicted."""
        if not self.task.is_classification:
            named = f" of {self.preprocessing.target!r}" if self.preprocessing else ""
            raise UserError(
                f"--proba is not possible: this model is a regression{named}, which has no classes; "
                "leave it out"
            )

    def _outputs_of_table(self, table: pd.DataFrame) -> tuple[Preprocessing, Tensor]:
        if self.preprocessing is None:
            raise UserError("this model was not trained on a table: give tensors to its module instead")
        return self.preprocessing, self.outputs(self.preprocessing.transform(table))


def _with_params(module: nn.Module, params: Params) -> nn.Module:
    """A copy of the module with these parameters; what is fixed it has already, and adapters are merged.

    Of several architectures it is the one that the parameters are for.
    """
    own = copy.deepcopy(module)
    with torch.no_grad():
        tensors = tensors_of(own)
        for name, value in params.items():
            tensors[name].copy_(value)
    own = merge_adapters(own)
    return own.alone(int(own.architecture)) if isinstance(own, Several) else own
