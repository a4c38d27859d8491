"""Images: MNIST (also by writer), Fashion-MNIST and CIFAR-10."""

import gzip
import tarfile
import zlib
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch

from idiolect.core import rng
from idiolect.core.task import Task
from idiolect.data.federation import Federation
from idiolect.data.partition import Scheme, by_id, deal
from idiolect.data.sources.downloads import RemoteFile, find, load_arrays, obtain
from idiolect.data.splits import DEFAULT_FRACTIONS, Fractions, split_clients
from idiolect.errors import UserError

Pool = Literal["train", "all"]

_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_QMNIST = (
    "https://raw.githubusercontent.com/facebookresearch/qmnist/94061367ec2e099ea18c553c75727ecf849ddb9b/"
)
_IDX_NAMES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
_MNIST_SHA256 = (
    "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
)
_FASHION_SHA256 = (
    "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
)
_WRITERS = RemoteFile(
    "qmnist-train-labels-idx2-int.gz",
    _QMNIST + "qmnist-train-labels-idx2-int.gz",
    "2c05dc77f6b916b38e455e97ab129a42a444f3dbef09b278a366f82904e0dd9f",
)
_CIFAR10 = RemoteFile(
    "cifar-10-binary.tar.gz",
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
)
# of the whole training set, so that they do not depend on the rows that are dealt
_CIFAR10_MEANS = (125.30691805, 122.95039414, 113.86538318)
_CIFAR10_DEVIATIONS = (62.99321928, 62.08870764, 66.70489964)
_DIGITS = tuple("0123456789")
_FASHION_CLASSES = (
    "t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle-boot",
)  # fmt: skip
_CIFAR10_CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip


class Images(NamedTuple):
    """Grey or colour values and classes."""

    pixels: np.ndarray  # uint8[rows, channels, height, width]
    labels: np.ndarray  # int64[rows]


def mnist(
    *,
    seed: int,
    data_dir: str | Path | None = None,
    clients: int = 100,
    partition: Scheme = "slices",
    per_client: int = 2,
    concentration: float = 1.0,
    rows: int | None = None,
    pool: Pool = "train",
    fractions: Fractions = DEFAULT_FRACTIONS,
) -> Federation:
    """MNIST digits (28 x 28, grey values 0 to 1), dealt to clients by any partition.

    rows: deal that many images only, drawn at random; pool: the 60,000 training images, or all 70,000.
    """
    chosen = _some_rows(_idx_images("mnist", _MNIST, _MNIST_SHA256, pool, data_dir), rows, seed)
    dealt = _deal(chosen, clients, seed, partition, per_client, concentration)
    return _federation(chosen, dealt, _DIGITS, seed, fractions)


def fashion_mnist(
    *,
    seed: int,
    data_dir: str | Path | None = None,
    clients: int = 100,
    partition: Scheme = "slices",
    per_client: int = 2,
    concentration: float = 1.0,
    rows: int | None = None,
    pool: Pool = "train",
    fractions: Fractions = DEFAULT_FRACTIONS,
) -> Federation:
    """Fashion-MNIST clothes (28 x 28, grey values 0 to 1), dealt like `mnist`."""
    chosen = _some_rows(_idx_images("fashion_mnist", _FASHION, _FASHION_SHA256, pool, data_dir), rows, seed)
    dealt = _deal(chosen, clients, seed, partition, per_client, concentration)
    return _federation(chosen, dealt, _FASHION_CLASSES, seed, fractions)


def cifar10(
    *,
    seed: int,
    data_dir: str | Path | None = None,
    clients: int = 100,
    partition: Scheme = "slices",
    per_client: int = 2,
    concentration: float = 1.0,
    rows: int | None = None,
    pool: Pool = "train",
    fractions: Fractions = DEFAULT_FRACTIONS,
) -> Federation:
    """CIFAR-10 photographs (3 x 32 x 32, standardised channels), dealt like `mnist`.

    A data directory may hold the whole set (cifar10/cifar-10-binary.tar.gz) or a class-balanced subset of
    10,000 + 2,000 images (cifar10_subset/cifar10_subset.npz).
    """
    chosen = _some_rows(_cifar10_images(pool, data_dir), rows, seed)
    dealt = _deal(chosen, clients, seed, partition, per_client, concentration)
    return _federation(chosen, dealt, _CIFAR10_CLASSES, seed, fractions)


def mnist_writers(
    *,
    seed: int,
    data_dir: str | Path | None = None,
    clients: int | None = None,
    minimum_rows: int = 10,
    fractions: Fractions = DEFAULT_FRACTIONS,
) -> Federation:
    """MNIST digits by the person who wrote them: 539 writers with about 110 images each.

    The writers come from QMNIST's labels, which trace every MNIST image to its source. Only MNIST's
    training images are used; the writers of its test images are other people. `groups` is 0 for census
    employees and 1 for high-school students. Writers with fewer than minimum_rows images are dropped;
    clients: take that many of the writers, drawn at random.
    """
    images = _idx_images("mnist", _MNIST, _MNIST_SHA256, "train", data_dir)
    writer, series = _writers(data_dir)
    names, dealt = by_id(writer)
    large = [i for i, own in enumerate(dealt) if len(own) >= minimum_rows]
    if clients is not None:
        if not 1 <= clients <= len(large):
            raise UserError(
                f"clients={clients} must be between 1 and {len(large)}, the writers with at least "
                f"minimum_rows={minimum_rows} images"
            )
        order = rng.permutation(rng.key(seed, "writers"), len(large))
        large = sorted(large[i] for i in order[:clients].tolist())
    chosen = [dealt[i] for i in large]
    kept = torch.cat(chosen)  # only these images are turned into floats
    compact = torch.split(torch.arange(len(kept)), [len(own) for own in chosen])
    return _federation(
        Images(images.pixels[kept.numpy()], images.labels[kept.numpy()]),
        {f"writer-{names[i]}": own for i, own in zip(large, compact, strict=True)},
        _DIGITS,
        seed,
        fractions,
        groups=torch.as_tensor([int(series[own[0]] != 0) for own in chosen]),
    )


def read_idx(path: Path) -> np.ndarray:
    """An array in the idx format of MNIST, gzipped."""
    try:
        content = gzip.decompress(path.read_bytes())
        kind = {8: "u1", 12: ">i4"}[content[2]]
        shape = np.frombuffer(content, ">i4", count=content[3], offset=4)
        return np.frombuffer(content, kind, offset=4 + 4 * len(shape)).reshape(shape)
    except (OSError, EOFError, KeyError, IndexError, ValueError, zlib.error) as error:
        raise UserError(
            f"the file {str(path)!r} is not a gzipped idx file ({error}); fetch it again"
        ) from error


def _idx_images(
    folder: str, address: str, sha256: tuple[str, ...], pool: Pool, data_dir: str | Path | None
) -> Images:
    count = 2 if pool == "train" else 4
    arrays = [
        read_idx(obtain(RemoteFile(name, address + name, digest), folder, data_dir))
        for name, digest in zip(_IDX_NAMES[:count], sha256[:count], strict=True)
    ]
    return Images(np.concatenate(arrays[0::2])[:, None], np.concatenate(arrays[1::2]).astype(np.int64))


def _writers(data_dir: str | Path | None) -> tuple[np.ndarray, np.ndarray]:
    """Writer and series of each MNIST training image."""
    if path := find("mnist_writers", "mnist_writers.npz", data_dir):
        writer, series = load_arrays(path, "train_writer", "train_hsf")
        return writer, series
    columns = read_idx(obtain(_WRITERS, "mnist_writers", data_dir))  # class, series, writer, ...
    return columns[:, 2].astype(np.int64), columns[:, 1]


def _cifar10_images(pool: Pool, data_dir: str | Path | None) -> Images:
    subset = find("cifar10_subset", "cifar10_subset.npz", data_dir)
    if subset and not find("cifar10", _CIFAR10.name, data_dir):
        arrays = load_arrays(subset, "x_train", "y_train", "x_test", "y_test")[: 2 if pool == "train" else 4]
        pixels = np.concatenate(arrays[0::2]).transpose(0, 3, 1, 2)
        return Images(pixels, np.concatenate(arrays[1::2]).astype(np.int64))
    batches = [f"data_batch_{i}.bin" for i in range(1, 6)] + (["test_batch.bin"] if pool == "all" else [])
    with tarfile.open(obtain(_CIFAR10, "cifar10", data_dir)) as archive:
        records = np.concatenate([_cifar10_batch(archive, name) for name in batches])
    return Images(records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].astype(np.int64))


def _cifar10_batch(archive: tarfile.TarFile, name: str) -> np.ndarray:
    """Records of a label and 3,072 pixels, uint8[images, 3073]."""
    stream = archive.extractfile(f"cifar-10-batches-bin/{name}")
    assert stream is not None, "the checksum has vouched for the archive's members"
    return np.frombuffer(stream.read(), np.uint8).reshape(-1, 1 + 3 * 32 * 32)


def _some_rows(images: Images, rows: int | None, seed: int) -> Images:
    if rows is None:
        return images
    if not 1 <= rows <= len(images.labels):
        raise UserError(f"rows={rows} must be between 1 and the {len(images.labels)} images there are")
    chosen = rng.permutation(rng.key(seed, "some-rows"), len(images.labels))[:rows].numpy()
    return Images(images.pixels[chosen], images.labels[chosen])


def _deal(
    images: Images, clients: int, seed: int, partition: Scheme, per_client: int, concentration: float
) -> dict[str, torch.Tensor]:
    """The rows of each client, whose names are numbers of one length."""
    labels = torch.as_tensor(images.labels)
    rows = deal(
        labels,
        clients,
        seed=seed,
        partition=partition,
        per_client=per_client,
        concentration=concentration,
    )
    digits = len(str(clients - 1))
    return {f"client-{i:0{digits}d}": own for i, own in enumerate(rows)}


def _federation(
    images: Images,
    dealt: dict[str, torch.Tensor],
    class_names: tuple[str, ...],
    seed: int,
    fractions: Fractions,
    groups: torch.Tensor | None = None,
) -> Federation:
    inputs = torch.as_tensor(np.ascontiguousarray(images.pixels)).to(torch.float32)
    if inputs.shape[1] == 3:
        shape = (1, 3, 1, 1)
        means, deviations = torch.tensor(_CIFAR10_MEANS), torch.tensor(_CIFAR10_DEVIATIONS)
        inputs.sub_(means.reshape(shape)).div_(deviations.reshape(shape))
    else:
        inputs.div_(255)
    split = split_clients(list(dealt.values()), list(dealt), seed=seed, fractions=fractions)
    return Federation(
        inputs=inputs,
        targets=torch.as_tensor(images.labels),
        task=Task("multiclass", len(class_names)),
        names=tuple(dealt),
        train=split.train,
        validation=split.validation,
        test=split.test,
        class_names=class_names,
        groups=groups,
    )
