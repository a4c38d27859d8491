import io
import json
import os
import pickle
import zipfile

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from idiolect.data.arrays import from_arrays, from_datasets
from idiolect.data.catalogue import load
from idiolect.errors import UserError


def arrays(client, rows=10, classes=3):
    draw = np.random.default_rng(client)
    return draw.normal(size=(rows, 2, 4)).astype(np.float32), np.arange(rows) % classes


def write_pfllib(folder, clients=12):
    for part, rows in (("train", 10), ("test", 4)):
        (folder / part).mkdir()
        for client in range(clients):
            x, y = arrays(client + 100 * (part == "test"), rows)
            np.savez_compressed(folder / part / f"{client}.npz", data={"x": x, "y": y})


def test_pfllib(tmp_path):
    write_pfllib(tmp_path)
    federation = load(tmp_path, seed=0)
    assert federation.names == tuple(str(i) for i in range(12))
    assert federation.task.outputs == 3
    assert federation.train.sizes.tolist() == [8] * 12
    assert federation.validation.sizes.tolist() == [2] * 12
    x, y = arrays(10)
    own = torch.cat([federation.train.of(10), federation.validation.of(10)]).sort().values
    assert np.array_equal(federation.inputs[own], x)
    assert np.array_equal(federation.targets[own], y)
    held, _ = arrays(110, 4)
    assert np.array_equal(federation.inputs[federation.test.of(10)], held)


def test_pfllib_files_written_by_numpy_1_can_be_read(tmp_path):
    write_pfllib(tmp_path, clients=1)
    x, y = arrays(0)
    content = np.array({"x": x, "y": y}, dtype=object)
    member = io.BytesIO()
    np.lib.format.write_array_header_1_0(member, {"descr": "|O", "fortran_order": False, "shape": ()})
    old = pickle.dumps(content, protocol=3).replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    assert b"numpy.core.multiarray" in old
    with zipfile.ZipFile(tmp_path / "train" / "0.npz", "w") as archive:
        archive.writestr("data.npy", member.getvalue() + old)
    federation = load(tmp_path, seed=0)
    own = torch.cat([federation.train.of(0), federation.validation.of(0)]).sort().values
    assert np.array_equal(federation.inputs[own], x)


class Attack:
    def __reduce__(self):
        return os.system, ("touch attacked",)


def test_a_pickle_that_is_more_than_arrays_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_pfllib(tmp_path, clients=1)
    np.savez_compressed(tmp_path / "train" / "0.npz", data={"x": Attack(), "y": np.zeros(3)})
    with pytest.raises(UserError, match="only numpy arrays are admitted"):
        load(tmp_path, seed=0)
    assert not (tmp_path / "attacked").exists()


def test_broken_pfllib_folders_are_refused(tmp_path):
    write_pfllib(tmp_path, clients=2)
    whole = (tmp_path / "train" / "0.npz").read_bytes()
    for content in (b"", b"nothing", whole[: len(whole) // 2]):
        (tmp_path / "train" / "0.npz").write_bytes(content)
        with pytest.raises(UserError, match=r"0\.npz"):
            load(tmp_path, seed=0)
    np.savez_compressed(tmp_path / "train" / "0.npz", data={"x": np.zeros((4, 2, 4))})
    with pytest.raises(UserError, match="not one of PFLlib's"):
        load(tmp_path, seed=0)
    np.savez_compressed(tmp_path / "train" / "0.npz", data=np.zeros(4))
    with pytest.raises(UserError, match="no dictionary"):
        load(tmp_path, seed=0)
    (tmp_path / "train" / "0.npz").unlink()
    with pytest.raises(UserError, match="client '0' must have a file both"):
        load(tmp_path, seed=0)


def leaf_content(users=("u1", "u2"), rows=6, shift=0.0):
    data = {
        user: {"x": [[i + shift, 2.0 * i] for i in range(rows)], "y": [i % 2 for i in range(rows)]}
        for user in users
    }
    return {"users": list(users), "num_samples": [rows] * len(users), "user_data": data}


def test_leaf_with_and_without_its_own_test_rows(tmp_path):
    (tmp_path / "all.json").write_text(json.dumps(leaf_content()))
    one = load(tmp_path / "all.json", seed=0)
    folder = load(tmp_path, seed=0)
    assert one.names == ("u1", "u2")
    assert torch.equal(one.inputs, folder.inputs)
    assert one.train.sizes.tolist() == [4, 4]
    divided = tmp_path / "divided"
    for part, shift in (("train", 0.0), ("test", 50.0)):
        (divided / part).mkdir(parents=True)
        (divided / part / "d.json").write_text(json.dumps(leaf_content(shift=shift)))
    federation = load(divided, seed=0)
    assert federation.test.sizes.tolist() == [6, 6]
    assert federation.inputs[federation.test.index][:, 0].min() == 50
    assert federation.inputs[federation.train.index][:, 0].max() < 50


def test_leaf_text_is_a_next_character_task(tmp_path):
    text = "to be or not to be that is"
    x, y = [text[i : i + 5] for i in range(12)], [text[i + 5] for i in range(12)]
    content = {"users": ["a"], "num_samples": [12], "user_data": {"a": {"x": x, "y": y}}}
    (tmp_path / "t.json").write_text(json.dumps(content))
    federation = load(tmp_path, seed=0)
    assert federation.task.kind == "next-character"
    decoded = ["".join(federation.class_names[c] for c in row) for row in federation.inputs]
    assert decoded == x
    assert [federation.class_names[c] for c in federation.targets] == y


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.pop("users"), "not one of LEAF's"),
        (lambda c: c["num_samples"].__setitem__(0, 5), "num_samples 5"),
        (lambda c: c["users"].__setitem__(1, "u1"), "'u1' occurs twice"),
        (lambda c: c["users"].__setitem__(1, "ghost"), "ghost"),
        (lambda c: c["user_data"]["u1"]["x"].__setitem__(0, [float("nan"), 1.0]), "client 'u1' has values"),
        (lambda c: c["user_data"]["u1"]["x"].__setitem__(0, [1.0]), "neither numbers nor strings"),
    ],
)
def test_broken_leaf_files_are_refused(tmp_path, change, message):
    content = leaf_content()
    change(content)
    (tmp_path / "d.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=message):
        load(tmp_path / "d.json", seed=0)


def test_truncated_leaf_file_is_refused(tmp_path):
    (tmp_path / "d.json").write_text(json.dumps(leaf_content())[:40])
    with pytest.raises(UserError, match="not one of LEAF's"):
        load(tmp_path, seed=0)


def test_torch_data_sets_equal_arrays():
    pairs = [arrays(i) for i in range(2)]
    direct = from_arrays([x for x, _ in pairs], [y for _, y in pairs], names=["p", "q"], seed=3)
    sets = {n: TensorDataset(*map(torch.as_tensor, p)) for n, p in zip("pq", pairs, strict=True)}
    wrapped = from_datasets(sets, seed=3)
    assert wrapped.names == direct.names
    assert torch.equal(wrapped.inputs, direct.inputs)
    assert torch.equal(wrapped.targets, direct.targets)
    assert torch.equal(wrapped.train.index, direct.train.index)


def test_several_outputs_are_a_regression():
    x, _ = arrays(0)
    federation = from_arrays([x], [x[:, 0, :3]], seed=0)
    assert federation.task.kind == "regression"
    assert federation.targets.shape == (10, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"names": ["a", "a"]}, "too alike"),
        ({"names": ["a"]}, "1 names"),
        ({"inputs": [np.ones((4, 2)), np.ones((4, 3))]}, "differ in shape"),
        ({"inputs": [np.ones((4, 2)), np.full((4, 2), np.inf)]}, "client 'client-1' has values"),
        ({"inputs": [np.ones((4, 2)), np.ones((5, 2))]}, "'client-1' has 5 inputs but 4 targets"),
        ({"targets": [np.zeros(4, int), np.zeros(4, int)]}, "only one class"),
        ({"test_inputs": [np.ones((4, 2))] * 2}, "given together"),
        ({"test_inputs": [np.ones((4, 2))] * 2, "test_targets": [np.arange(4) % 2] * 2,
          "fractions": (0.6, 0.2, 0.2)}, "test share of 0"),
    ],
)  # fmt: skip
def test_bad_arrays_are_refused(change, message):
    options = {"inputs": [np.ones((4, 2))] * 2, "targets": [np.arange(4) % 2] * 2, **change}
    with pytest.raises(UserError, match=message):
        from_arrays(seed=0, **options)
