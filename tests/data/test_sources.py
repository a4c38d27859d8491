"""Known data sets: the real files where they are at hand, the parsers of the canonical archives always."""

import gzip
import hashlib
import http.server
import io
import shutil
import subprocess
import sys
import tarfile
import threading
import zipfile

import numpy as np
import pandas as pd
import pytest
import torch

from idiolect.data.catalogue import load
from idiolect.data.sources import images, tabular
from idiolect.data.sources.downloads import RemoteFile, obtain
from idiolect.data.sources.lzw import decompress
from idiolect.errors import UserError


def all_rows(federation, client):
    return torch.cat([part.of(client) for part in (federation.train, federation.validation, federation.test)])


def nothing_shared(federation):
    everything = torch.cat([all_rows(federation, c) for c in range(len(federation))])
    return len(everything.unique()) == len(everything)


def test_vowels_are_bundled():
    federation = load("vowels", seed=0)
    assert len(federation) == 15
    assert federation.inputs.shape == (990, 10)
    assert federation.task.outputs == 11
    assert torch.cat([all_rows(federation, c) for c in range(15)]).sort().values.tolist() == list(range(990))
    training = federation.inputs[federation.train.index].double()
    assert training.mean(0).abs().max() < 1e-6
    assert torch.allclose(training.std(0, correction=0), torch.ones(10).double(), atol=1e-6)
    for client in range(15):
        assert federation.targets[all_rows(federation, client)].bincount().tolist() == [6] * 11


def test_mnist_slices(data_dir):
    federation = load("mnist", seed=0, data_dir=data_dir)
    assert federation.inputs.shape == (60000, 1, 28, 28)
    assert (federation.inputs.min(), federation.inputs.max()) == (0, 1)
    assert federation.targets.bincount().tolist() == [
        5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949,
    ]  # fmt: skip
    assert nothing_shared(federation)
    classes = [len(federation.targets[all_rows(federation, c)].unique()) for c in range(100)]
    assert max(classes) <= 4
    assert np.mean(classes) < 2.3


def test_mnist_options(data_dir):
    federation = load(
        "mnist", seed=0, data_dir=data_dir, rows=3000, clients=10, partition="classes", per_client=1
    )
    assert federation.inputs.shape[0] == 3000
    assert all(len(federation.targets[all_rows(federation, c)].unique()) == 1 for c in range(10))
    with pytest.raises(UserError, match="rows=70001"):
        load("mnist", seed=0, data_dir=data_dir, rows=70001, pool="all")


def test_mnist_by_writer(data_dir):
    federation = load("mnist-writers", seed=0, data_dir=data_dir, clients=30)
    assert len(federation) == 30
    with np.load(data_dir / "mnist_writers" / "mnist_writers.npz") as truth:
        for client, name in enumerate(federation.names):
            own = truth["train_writer"] == int(name.removeprefix("writer-"))
            labels = federation.targets[all_rows(federation, client)].bincount(minlength=10)
            assert labels.tolist() == np.bincount(truth["train_label"][own], minlength=10).tolist()
            assert int(federation.groups[client]) == (truth["train_hsf"][own][0] == 4)


def test_writers_from_qmnists_own_labels_equal_the_extract(data_dir, tmp_path):
    (tmp_path / "mnist_writers").mkdir()
    shutil.copy(data_dir / "mnist_writers" / "qmnist-train-labels-idx2-int.gz", tmp_path / "mnist_writers")
    for canonical, extract in zip(images._writers(tmp_path), images._writers(data_dir), strict=True):
        assert np.array_equal(canonical, extract)


def test_fashion_mnist(data_dir):
    federation = load("fashion-mnist", seed=0, data_dir=data_dir, pool="all", partition="iid", clients=7)
    assert federation.targets.bincount().tolist() == [7000] * 10
    assert federation.train.sizes.tolist() == [6000] * 7


def test_cifar10_subset(data_dir):
    federation = load("cifar10", seed=0, data_dir=data_dir, clients=20)
    assert federation.inputs.shape == (10000, 3, 32, 32)
    assert federation.targets.bincount().tolist() == [1000] * 10
    assert federation.inputs.mean((0, 2, 3)).abs().max() < 0.05  # the constants are the whole set's
    assert (federation.inputs.std((0, 2, 3)) - 1).abs().max() < 0.05


def test_pendigits(data_dir):
    federation = load("pendigits", seed=0, data_dir=data_dir)
    assert len(federation) == 44
    sizes = federation.train.sizes + federation.validation.sizes + federation.test.sizes
    assert 247 <= int(sizes.min()) <= int(sizes.max()) <= 250


def test_har_is_split_by_time_within_each_activity(data_dir):
    federation = load("har", seed=0, data_dir=data_dir)
    assert len(federation) == 30
    assert federation.inputs.shape == (10411, 78)
    with np.load(data_dir / "hapt_har" / "hapt_features.npz") as truth:
        features, people, activities = truth["x"], truth["user"], truth["y"]
    person, activity = 3, 2
    client = federation.names.index(f"person-{person:02d}")
    column = federation.preprocessing.columns[0]
    own = features[(people == person) & (activities == activity)][:, 0]
    label = federation.class_names.index("downstairs")

    def values(part):
        rows = part.of(client)[federation.targets[part.of(client)] == label]
        return (federation.inputs[rows, 0] * column.scale + column.mean).numpy()

    parts = [values(p) for p in (federation.train, federation.validation, federation.test)]
    assert np.allclose(np.concatenate(parts), own, atol=1e-4)
    assert len(parts[0]) == pytest.approx(0.6 * len(own), abs=1.5)


def test_shakespeare_by_role(data_dir):
    federation = load("shakespeare", seed=0, data_dir=data_dir, clients=12, length=30, stride=7)
    assert len(federation) == 12
    lines = pd.read_csv(data_dir / "shakespeare_roles" / "shakespeare_roles.csv.gz")
    play, role = federation.names[4].split("/")
    spoken = "\n".join(lines[(lines["play"] == play) & (lines["role"] == role)]["text"])
    rows = all_rows(federation, 4)
    for k, row in enumerate(rows[:50].tolist()):  # in the order of time: first the training rows
        text = "".join(federation.class_names[c] for c in federation.inputs[row])
        following = federation.class_names[federation.targets[row]]
        assert text + following == spoken[7 * k : 7 * k + 31]
    with pytest.raises(UserError, match="clients=5000"):
        load("shakespeare", seed=0, data_dir=data_dir, clients=5000)


def test_the_downloaded_excerpt_of_shakespeare(data_dir, tmp_path):
    (tmp_path / "shakespeare").mkdir()
    packed = data_dir / "shakespeare_roles" / "tinyshakespeare.txt.gz"
    text = gzip.decompress(packed.read_bytes())
    (tmp_path / "shakespeare" / "input.txt").write_bytes(text)
    federation = load("shakespeare", seed=0, data_dir=tmp_path)
    assert "GLOUCESTER" in federation.names
    first = next(i for i, name in enumerate(federation.names) if name == "MENENIUS")
    start = "".join(federation.class_names[c] for c in federation.inputs[federation.train.of(first)[0]])
    assert start.startswith("What work's, my countrymen, in hand? where go you")
    assert start.encode()[:60] in text


def compress(data, largest=16):
    """A plain encoder of the .Z format; gzip's own decoder vouches for it below."""
    width, table = 9, {bytes([i]): i for i in range(256)}
    free, packed, block = 257, bytearray(b"\x1f\x9d" + bytes([0x80 | largest])), []

    def flush(size=None):
        if block:
            bits = sum(code << i * width for i, code in enumerate(block))
            packed.extend(bits.to_bytes(size or width, "little"))
            block.clear()

    def emit(code):
        block.append(code)
        if len(block) == 8:
            flush()

    word = b""
    for value in data:
        longer = word + bytes([value])
        if longer in table:
            word = longer
            continue
        emit(table[word])
        # the decoder is one entry behind the encoder
        if free > (1 << width) - 1 and width < largest:
            flush()
            width += 1
        if free < 1 << largest:
            table[longer] = free
            free += 1
        word = longer[-1:]
    emit(table[word])
    flush((len(block) * width + 7) // 8)  # only the last block may be cut
    return bytes(packed)


@pytest.mark.parametrize("size", [1, 300, 5000, 60000])
def test_decompress_agrees_with_gzip(size, tmp_path):
    draw = np.random.default_rng(size)
    data = bytes(draw.choice([97, 98, 99, 10, 200], size, p=[0.5, 0.2, 0.15, 0.1, 0.05]).tolist())
    packed = compress(data)
    (tmp_path / "d.Z").write_bytes(packed)
    judged = subprocess.run(["gzip", "-dc", str(tmp_path / "d.Z")], capture_output=True, check=True).stdout
    assert judged == data
    assert decompress(packed) == data


def test_damaged_z_files_are_refused():
    with pytest.raises(UserError, match="not in the format"):
        decompress(b"PK not that")
    with pytest.raises(UserError, match="damaged"):
        decompress(b"\x1f\x9d\x90" + b"\xff" * 9)


def test_ucis_pendigits_archive_gives_writers(tmp_path):
    parts = {"tra": ([3, 8], [1, 2]), "tes": ([5, 5], [1, 14])}
    with zipfile.ZipFile(tmp_path / "p.zip", "w") as archive:
        for part, (digits, writers) in parts.items():
            table = "".join(",".join([f"{d:3d}"] * 16) + f", {d}\n" for d in digits)
            archive.writestr(f"pendigits.{part}", table)
            marks = "".join(
                f".COMMENT {d} {w} 7\n.PEN_DOWN\n 12 40\n" for d, w in zip(digits, writers, strict=True)
            )
            archive.writestr(f"pendigits-orig.{part}.Z", compress(marks.encode()))
    points, digits, writers = tabular._uci_pendigits(tmp_path / "p.zip")
    assert writers.tolist() == [1, 2, 31, 44]
    assert digits.tolist() == [3, 8, 5, 5]
    assert points.tolist() == [[d] * 16 for d in digits]


def test_ucis_har_archive(tmp_path):
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr("UCI HAR Dataset/features.txt", "1 tBodyAcc-mean()-X\n2 same\n3 same\n")
        for part, subject in (("train", 4), ("test", 30)):
            rows = "  2.8e-001 -1.0e+000  5.0e-001\n" * 2
            archive.writestr(f"UCI HAR Dataset/{part}/X_{part}.txt", rows)
            archive.writestr(f"UCI HAR Dataset/{part}/y_{part}.txt", "1\n6\n")
            archive.writestr(f"UCI HAR Dataset/{part}/subject_{part}.txt", f"{subject}\n{subject}\n")
    with zipfile.ZipFile(tmp_path / "h.zip", "w") as archive:
        archive.writestr("UCI HAR Dataset.zip", inner.getvalue())
    features, activities, people, names = tabular._uci_har(tmp_path / "h.zip")
    assert features.tolist() == [[0.28, -1.0, 0.5]] * 4
    assert activities.tolist() == [0, 5, 0, 5]
    assert people.tolist() == [4, 4, 30, 30]
    assert names.tolist() == ["1-tBodyAcc-mean()-X", "2-same", "3-same"]


def test_cifar10s_binary_records(tmp_path):
    record = bytes([7]) + bytes([1] * 1024 + [2] * 1024 + [3] * 1024)
    with tarfile.open(tmp_path / "c.tar", "w") as archive:
        member = tarfile.TarInfo("cifar-10-batches-bin/test_batch.bin")
        member.size = 2 * len(record)
        archive.addfile(member, io.BytesIO(record * 2))
    with tarfile.open(tmp_path / "c.tar") as archive:
        batch = images._cifar10_batch(archive, "test_batch.bin")
    assert batch.shape == (2, 3073)
    assert batch[1, [0, 1, 1025, 3072]].tolist() == [7, 1, 2, 3]


def test_local_files_that_are_cut_short_or_altered_are_refused(data_dir, tmp_path):
    for folder in ("mnist", "hapt_har"):
        (tmp_path / folder).mkdir()
    labels = (data_dir / "mnist" / "train-images-idx3-ubyte.gz").read_bytes()
    (tmp_path / "mnist" / "train-images-idx3-ubyte.gz").write_bytes(labels[:-100])
    with pytest.raises(UserError, match="cut short or altered"):
        load("mnist", seed=0, data_dir=tmp_path)
    features = (data_dir / "hapt_har" / "hapt_features.npz").read_bytes()
    (tmp_path / "hapt_har" / "hapt_features.npz").write_bytes(features[:5000])
    with pytest.raises(UserError, match=r"hapt_features\.npz' cannot be read"):
        load("har", seed=0, data_dir=tmp_path)
    (tmp_path / "mnist" / "x.gz").write_bytes(gzip.compress(b"\0\0\x08\x01\0\0\0\x09ab"))
    with pytest.raises(UserError, match="not a gzipped idx file"):
        images.read_idx(tmp_path / "mnist" / "x.gz")


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A web server on this machine with one file, and an empty cache."""
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "d.bin").write_bytes(b"the data")

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=tmp_path / "web")

        def log_message(self, *args):
            pass

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("IDIOLECT_DATA", raising=False)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


def test_downloads_are_verified_and_cached(server, tmp_path):
    digest = hashlib.sha256(b"the data").hexdigest()
    file = RemoteFile("d.bin", f"{server}/d.bin", digest)
    path = obtain(file, "folder", None)
    assert path.read_bytes() == b"the data"
    assert tmp_path in path.parents
    (tmp_path / "web" / "d.bin").unlink()
    assert obtain(file, "folder", None) == path  # no second download
    assert obtain(file, "folder", tmp_path) == path  # a data directory without the file


def test_downloads_that_go_wrong_leave_nothing(server, tmp_path):
    wrong = RemoteFile("d.bin", f"{server}/d.bin", "0" * 64)
    with pytest.raises(UserError, match="wrong checksum"):
        obtain(wrong, "folder", None)
    with pytest.raises(UserError, match="cannot be downloaded"):
        obtain(RemoteFile("e.bin", f"{server}/absent.bin", "0" * 64), "folder", None)
    with pytest.raises(UserError, match="check the network"):
        obtain(RemoteFile("e.bin", "http://127.0.0.1:9/e.bin", "0" * 64), "folder", None)
    assert not [f for f in (tmp_path / "cache").rglob("*") if f.is_file()]


def test_a_data_directory_that_is_none_is_refused(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="data_dir="):
        load("mnist", seed=0, data_dir=tmp_path / "absent")
    monkeypatch.setenv("IDIOLECT_DATA", str(tmp_path / "absent"))
    with pytest.raises(UserError, match="IDIOLECT_DATA="):
        load("mnist", seed=0)


def test_without_the_download_extra_it_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)  # as if it were not installed
    with pytest.raises(UserError, match=r"pip install 'idiolect\[download\]'"):
        load("mnist", seed=0, data_dir=tmp_path)
