"""All data by name or path: one table of loaders whose signatures are their options."""

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from pydantic import ConfigDict, validate_call

from idiolect.data.class_weights import ClassWeights, with_class_weights
from idiolect.data.federation import Federation
from idiolect.data.folders import table_files
from idiolect.data.image_like import image_like
from idiolect.data.layouts import leaf, pfllib
from idiolect.data.quadratics import quadratic_line, quadratic_pair, quadratics
from idiolect.data.reading import TABLE_SUFFIXES
from idiolect.data.sources.images import cifar10, fashion_mnist, mnist, mnist_writers
from idiolect.data.sources.tabular import har, pendigits, vowels
from idiolect.data.sources.text import shakespeare
from idiolect.data.synthetic import opposed_signs, synthetic, three_clusters
from idiolect.data.tables import from_table
from idiolect.errors import UserError
from idiolect.plugins import Catalogue, call, check_options, kind_of

LOADERS: dict[str, Callable[..., Federation]] = {
    "vowels": vowels,
    "pendigits": pendigits,
    "har": har,
    "mnist": mnist,
    "mnist-writers": mnist_writers,
    "fashion-mnist": fashion_mnist,
    "cifar10": cifar10,
    "shakespeare": shakespeare,
    "synthetic": synthetic,
    "three-clusters": three_clusters,
    "opposed-signs": opposed_signs,
    "image-like": image_like,
    "quadratic-pair": quadratic_pair,
    "quadratic-line": quadratic_line,
    "quadratics": quadratics,
}
CATALOGUE: Catalogue[Callable[..., Federation]] = Catalogue(
    word="data",
    several="data sets",
    group="idiolect.data",
    own="a file or folder, or your own as package.module:loader",
    flaw=lambda found: None if inspect.isroutine(found) else f"it must be a function, not {kind_of(found)}",
    built_in=LOADERS,
)


def summary(loader: Callable[..., Federation]) -> str:
    """The line that a loader has about its data."""
    return (inspect.getdoc(loader) or "").partition("\n")[0]


def load(
    source: str | Path | pd.DataFrame,
    *,
    seed: int = 0,
    data_dir: str | Path | None = None,
    class_weights: ClassWeights | None = None,
    left_out: Sequence[str] = (),
    **options: Any,
) -> Federation:
    """A federation by the name of a data set, from a user's own table or folder, or from a user's own loader.

    A table is a data frame, or the path of a CSV or Parquet file (with the options `client`, `target` and
    those of `tables.from_table`). A path may also be a folder with such a file for each client (`target`,
    ...), a folder in PFLlib's layout (train/N.npz, test/N.npz), or LEAF's JSON (a file or a folder).

    An own loader is a function that returns a federation, by import path `package.module:loader` or an entry
    point; it gets `seed`, `data_dir` and `left_out` if it has such parameters. Options are checked against
    the loader's signature.

    class_weights: "balanced" or a weight for each class, in the training loss; see `with_class_weights`.
    left_out: clients whose rows have no part in statistics, such as means and scales of a table's columns.

    >>> federation = load("vowels", seed=0)
    >>> len(federation), federation.task.kind, federation.train.sizes[:3].tolist()
    (15, 'multiclass', [22, 22, 22])
    """
    provided = {"seed": seed, "data_dir": data_dir, "left_out": left_out}
    return with_class_weights(_load(source, options, provided), class_weights, left_out)


def _load(source: str | Path | pd.DataFrame, options: dict[str, Any], provided: dict[str, Any]) -> Federation:
    if isinstance(source, pd.DataFrame):
        return _load_table(source, "frame", options, provided)
    label = str(source)
    path = Path(source)
    if is_name(label):
        return _call(CATALOGUE.find(label), label, (), options, provided)
    if path.is_dir():
        return _load_folder(path, options, provided)
    if path.name.lower().endswith(".json") and path.is_file():
        return _call(leaf, label, (path,), options, provided)
    if path.name.lower().endswith(TABLE_SUFFIXES) or path.is_file():
        return _load_table(path, label, options, provided)
    raise CATALOGUE.unknown(label)


def is_name(name_or_path: str) -> bool:
    """Whether a data set or a loader is meant; a file that exists comes before what is installed."""
    return name_or_path in LOADERS or (not Path(name_or_path).exists() and CATALOGUE.knows(name_or_path))


def describe(federation: Federation) -> pd.DataFrame:
    """Sizes and label counts (or mean and deviation of the target, in its units), a row for each client."""
    table = pd.DataFrame(
        {
            "train": federation.train.sizes.numpy(),
            "validation": federation.validation.sizes.numpy(),
            "test": federation.test.sizes.numpy(),
        },
        index=pd.Index(federation.names, name="client"),
    )
    own = [_targets_of(federation, client) for client in range(len(federation))]
    if not federation.task.is_classification:
        table["target mean"] = [float(t.double().mean()) for t in own]
        table["target deviation"] = [float(t.double().std(correction=0)) for t in own]
        return table
    classes = 2 if federation.task.kind == "binary" else federation.task.outputs
    labels = list(federation.class_names) or [str(c) for c in range(classes)]
    counts = torch.stack([torch.bincount(t, minlength=classes) for t in own]).numpy()
    return table.join(pd.DataFrame(counts, index=table.index, columns=labels))


def _targets_of(federation: Federation, client: int) -> torch.Tensor:
    """Targets of all rows of a client, each once (quadratics test on their training rows)."""
    parts = (federation.train, federation.validation, federation.test)
    own = federation.targets[torch.cat([part.of(client) for part in parts]).unique()]
    if federation.task.is_classification or federation.preprocessing is None:
        return own
    return federation.preprocessing.restore_target(own.double())


def _load_folder(path: Path, options: dict[str, Any], provided: dict[str, Any]) -> Federation:
    label = str(path)
    if any((path / "train").glob("*.npz")):
        return _call(pfllib, label, (path,), options, provided)
    if any(path.glob("*.json")) or any((path / "train").glob("*.json")):
        return _call(leaf, label, (path,), options, provided)
    if not table_files(path):
        raise UserError(
            f"the folder {label!r} holds no data that is known: neither {', '.join(TABLE_SUFFIXES)} files, "
            "nor PFLlib's train/N.npz, nor LEAF's .json files"
        )
    if "client" in options:
        raise UserError("client must be left out for a folder with one file for each client")
    return _load_table(path, label, options, provided, required=("target",))


def _load_table(
    source: Path | pd.DataFrame,
    label: str,
    options: dict[str, Any],
    provided: dict[str, Any],
    required: Sequence[str] = ("client", "target"),
) -> Federation:
    if isinstance(source, Path) and not source.exists():
        raise UserError(f"there is no file {label!r}")
    check_options(from_table, options, f"data {label!r}", given=provided, sources=1)
    for name in required:
        if name not in options:
            raise UserError(
                f"data {label!r} needs the option {name!r}: the {name} column, as data.{name}=COLUMN"
            )
    return _call(from_table, label, (source,), options, provided)


def _call(
    loader: Callable[..., Federation],
    label: str,
    source: tuple[Any, ...],
    options: dict[str, Any],
    provided: dict[str, Any],
) -> Federation:
    """Call a loader with options of the right types, or say which one is wrong."""
    # protected_namespaces: an option may begin with "model_"
    # coerce_numbers_to_str: a column may be called 2017
    config = ConfigDict(arbitrary_types_allowed=True, protected_namespaces=(), coerce_numbers_to_str=True)
    checked = validate_call(config=config)(loader)
    federation = call(checked, options, f"data {label!r}", sources=source, **provided)
    if not isinstance(federation, Federation):
        raise UserError(f"data={label!r} gave {kind_of(federation)}, not an idiolect.Federation")
    return federation
