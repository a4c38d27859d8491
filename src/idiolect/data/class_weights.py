"""Weights of classes in the training loss, for classes that are rare or matter more."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from idiolect.data.federation import Federation
from idiolect.errors import UserError, did_you_mean

# "balanced", or the weight of each class by its name; classes that are not named weigh one.
ClassWeights = str | Mapping[Any, Any]
BALANCED = "balanced"

# What YAML makes of these words where they are not quoted.
_READ_AS = {"true": ("yes", "true", "on", "y"), "false": ("no", "false", "off", "n")}


def with_class_weights(
    federation: Federation, chosen: ClassWeights | None, left_out: Sequence[str] = ()
) -> Federation:
    """The federation whose task weighs classes in the training loss; metrics but `loss` are as before.

    "balanced": n / (k n_c), as in scikit-learn, where n_c of all clients' n training rows are of class c and
    k classes occur among them. Rows of clients that are `left_out` do not count.
    """
    if chosen is None:
        return federation
    if not federation.task.is_classification:
        raise UserError(f"class_weights={chosen} is not possible: a regression has no classes")
    classes = federation.task.classes
    names = federation.class_names or tuple(str(number) for number in range(classes))
    counted = [federation.train.of(i) for i, name in enumerate(federation.names) if name not in left_out]
    counts = torch.bincount(federation.targets[torch.cat(counted)], minlength=classes)
    weights = balanced(counts.tolist()) if chosen == BALANCED else weights_by_name(chosen, names)
    listed = ", ".join(f"{name} {weight:.4g}" for name, weight in zip(names, weights, strict=True))
    return replace(
        federation,
        task=replace(federation.task, class_weights=weights),
        notes=(*federation.notes, f"weights of classes in the training loss: {listed}"),
    )


def balanced(counts: Sequence[int]) -> tuple[float, ...]:
    """Weights with which all classes that occur count the same.

    >>> balanced([6, 2])
    (0.6666666666666666, 2.0)
    """
    total, present = sum(counts), sum(count > 0 for count in counts)
    return tuple(total / (present * count) if count else 1.0 for count in counts)


def weights_by_name(chosen: ClassWeights, names: Sequence[str]) -> tuple[float, ...]:
    """The weight of each class.

    >>> weights_by_name({"yes": 5}, ["no", "yes"])
    (1.0, 5.0)
    """
    if not isinstance(chosen, Mapping):
        example = "{" + ", ".join(f"{name}: {place + 1}" for place, name in enumerate(names[:2])) + "}"
        raise UserError(f"class_weights={chosen} is not possible: it must be balanced, or as {example}")
    weights = dict.fromkeys(names, 1.0)
    for key, weight in chosen.items():
        weights[_class_of(key, names)] = _checked(key, weight)
    return tuple(weights.values())


def _class_of(key: Any, names: Sequence[str]) -> str:
    text = str(key)
    if text in names:
        return text
    meant = [name for name in names if name.lower() in _READ_AS.get(text.lower(), ())]
    if len(meant) == 1:
        return meant[0]
    near = did_you_mean(text, names)
    raise UserError(f"class_weights names {text!r}{near}; the classes are {', '.join(names[:12])}")


def _checked(key: Any, weight: Any) -> float:
    right = isinstance(weight, int | float) and not isinstance(weight, bool)
    if not right or not 0 < weight < math.inf:
        raise UserError(f"class_weights.{key}={weight} is not possible: it must be a number above 0")
    return float(weight)
