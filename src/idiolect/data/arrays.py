"""Federations from arrays and torch data sets in Python."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.utils.data import Dataset

from idiolect.core import tree
from idiolect.core.inputs import Inputs, row_shapes
from idiolect.core.task import Task
from idiolect.data.class_weights import ClassWeights, with_class_weights
from idiolect.data.federation import Federation, Rows
from idiolect.data.splits import DEFAULT_FRACTIONS, Fractions, TooFew, split_clients
from idiolect.data.tables import check_names, one_class_notes
from idiolect.data.targets import Targets, TaskChoice, encode_targets
from idiolect.errors import UserError

Array = np.ndarray | Tensor
Arrays = Array | Mapping[str, Array] | tuple[Array, ...]  # several inputs by name, or in order


def from_arrays(
    inputs: Sequence[Arrays],
    targets: Sequence[Array],
    *,
    seed: int,
    names: Sequence[str] | None = None,
    test_inputs: Sequence[Arrays] | None = None,
    test_targets: Sequence[Array] | None = None,
    task: TaskChoice = "auto",
    fractions: Fractions | None = None,
    minimum_rows: int | None = None,
    too_few: TooFew = "refuse",
    class_weights: ClassWeights | None = None,
) -> Federation:
    """A federation from one array of inputs and one of targets for each client.

    Inputs are [rows, ...], real, and left as they are. For a model of several inputs they are a dict or a
    tuple of arrays for each client, in which codes stay whole numbers and masks stay masks. Targets [rows] or
    [rows, outputs] are read as `encode_targets` does. Where test arrays are given, `fractions` splits the
    rest and its test share must be 0 (default 80 % training, 20 % validation). `class_weights`: see
    `with_class_weights`.

    >>> import numpy as np
    >>> x = [np.random.default_rng(i).normal(size=(10, 3)) for i in range(2)]
    >>> federation = from_arrays(x, [rows[:, 0] > 0 for rows in x], seed=0, names=["north", "south"])
    >>> federation.names, federation.task.kind, federation.train.sizes.tolist()
    (('north', 'south'), 'binary', [6, 6])
    """
    names = [f"client-{i}" for i in range(len(inputs))] if names is None else [str(name) for name in names]
    check_names(names)
    given = test_inputs is not None and test_targets is not None
    if (test_inputs is None) != (test_targets is None):
        raise UserError("test_inputs and test_targets must be given together")
    if fractions is None:
        fractions = (0.8, 0.2, 0.0) if given else DEFAULT_FRACTIONS
    if given and fractions[2] != 0:
        raise UserError(f"fractions={tuple(fractions)} must have a test share of 0 where test rows are given")
    own = _checked(inputs, targets, names)
    held = _checked(test_inputs or [], test_targets or [], names if given else [])
    everything = own + held
    kinds = {str(row_shapes(x)) for x, _ in everything}
    if len(kinds) > 1:
        raise UserError(f"clients' inputs differ in shape: {', '.join(sorted(kinds))}")
    encoded = _encoded([y for _, y in everything], task)
    rows = torch.split(torch.arange(len(encoded.values)), [len(y) for _, y in everything])
    split = split_clients(
        list(rows[: len(own)]),
        names,
        seed=seed,
        fractions=fractions,
        minimum_rows=minimum_rows,
        too_few=too_few,
    )
    names = [names[i] for i in split.kept]
    notes = [encoded.note]
    if encoded.task.is_classification:
        notes += one_class_notes(encoded.values, split.train, names)
    test = Rows.of_clients([rows[len(own) + i] for i in split.kept]) if given else split.test
    federation = Federation(
        inputs=tree.concatenate([x for x, _ in everything]),
        targets=encoded.values,
        task=encoded.task,
        names=tuple(names),
        train=split.train,
        validation=split.validation,
        test=test,
        class_names=encoded.class_names,
        notes=tuple(notes),
    )
    return with_class_weights(federation, class_weights)


def from_datasets(
    datasets: Mapping[str, Dataset[Any]] | Sequence[Dataset[Any]], *, seed: int, **options: Any
) -> Federation:
    """A federation from one torch data set of (input, target) pairs for each client.

    An input may be a dict or a tuple of several. Every item is read once; the options are those of
    `from_arrays`.
    """
    if isinstance(datasets, Mapping):
        options.setdefault("names", list(datasets))
        datasets = list(datasets.values())
    inputs, targets = [], []
    for client, dataset in enumerate(datasets):
        items = [dataset[i] for i in range(len(dataset))]  # type: ignore[arg-type]
        if not items:
            raise UserError(f"data set {client} is empty")
        inputs.append(tree.stack([tree.map_tree(torch.as_tensor, x) for x, _ in items]))
        targets.append(torch.stack([torch.as_tensor(y) for _, y in items]))
    return from_arrays(inputs, targets, seed=seed, **options)


def _checked(
    inputs: Sequence[Arrays], targets: Sequence[Array], names: Sequence[str]
) -> list[tuple[Inputs, np.ndarray]]:
    """Pairs of inputs and targets, finite and of one length."""
    if not len(inputs) == len(targets) == len(names):
        raise UserError(
            f"there are {len(inputs)} arrays of inputs, {len(targets)} of targets and {len(names)} names; "
            "each client needs one of each"
        )
    pairs = []
    for given, own_targets, name in zip(inputs, targets, names, strict=True):
        x, y = _tensors(given), np.asarray(own_targets)
        leaves = tree.leaves(x)
        for count in {len(leaf) for leaf in leaves} - {len(y)}:
            raise UserError(f"client {name!r} has {count} inputs but {len(y)} targets")
        if not all(leaf.isfinite().all() for leaf in leaves) or not _is_finite(y):
            raise UserError(
                f"client {name!r} has values that are NaN or infinite; only finite ones can be used"
            )
        pairs.append((x, y))
    return pairs


def _tensors(given: Arrays) -> Inputs:
    """Inputs as tensors: one of real numbers, or several, of which only real numbers are converted."""
    if isinstance(given, Mapping):
        return {name: _as_it_is(array) for name, array in given.items()}
    if isinstance(given, tuple):
        return tuple(_as_it_is(array) for array in given)
    x = torch.as_tensor(given)
    return x.to(torch.get_default_dtype() if x.is_floating_point() else torch.float32)


def _as_it_is(array: Array) -> Tensor:
    x = torch.as_tensor(array)
    if x.is_floating_point():
        return x.to(torch.get_default_dtype())
    return x if x.dtype == torch.bool else x.to(torch.int64)


def _is_finite(targets: np.ndarray) -> bool:
    return targets.dtype.kind != "f" or bool(np.isfinite(targets).all())


def _encoded(targets: Sequence[np.ndarray], choice: TaskChoice) -> Targets:
    """All clients' targets; several outputs in a row can only be a regression."""
    together = np.concatenate(targets)
    if together.ndim == 2 and together.shape[1] > 1:
        if choice == "classification":
            raise UserError(f"targets of shape {together.shape} have several outputs: that is a regression")
        values = torch.as_tensor(together, dtype=torch.float32)
        outputs = together.shape[1]
        return Targets(values, Task("regression", outputs), (), f"regression: {outputs} outputs")
    return encode_targets(pd.Series(together.reshape(len(together)), name="target"), choice)
