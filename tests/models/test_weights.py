"""First weights from a file: what fits is put in, bit for bit; what does not is refused in a sentence."""

import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from idiolect.errors import UserError
from idiolect.models.weights import load_weights, weights_fingerprint


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def tied() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    return model


def saved(path: Path, weights: dict[str, torch.Tensor]) -> str:
    if path.suffix == ".safetensors":
        save_file(weights, path)
    else:
        torch.save(weights, path)
    return str(path)


@pytest.mark.parametrize("name", ["w.safetensors", "w.pt", "w.pth"])
def test_all_of_a_files_weights_are_taken(name, tmp_path):
    source = net()
    target = load_weights(net(), saved(tmp_path / name, source.state_dict()))
    assert all(torch.equal(a, target.state_dict()[n]) for n, a in source.state_dict().items())


def test_a_checkpoint_that_wraps_a_state_dict(tmp_path):
    source = net()
    torch.save({"epoch": 3, "state_dict": source.state_dict()}, tmp_path / "w.pt")
    assert torch.equal(load_weights(net(), str(tmp_path / "w.pt"))[0].weight, source[0].weight)


def test_digits_of_float64_are_kept_and_half_precision_is_widened(tmp_path):
    double = net().double()
    path = saved(tmp_path / "d.safetensors", double.state_dict())
    assert torch.equal(load_weights(net(), path)[0].weight, double[0].weight)
    half = {n: t.half() if t.is_floating_point() else t for n, t in net().state_dict().items()}
    assert load_weights(net(), saved(tmp_path / "h.pt", half))[0].weight.dtype == torch.float32


def test_shared_parameters_need_one_of_their_names(tmp_path):
    source = tied()
    weights = {n: t for n, t in source.state_dict().items() if n != "1.weight"}
    target = load_weights(tied(), saved(tmp_path / "w.safetensors", weights))
    assert torch.equal(target[1].weight, source[0].weight)


def test_older_files_without_counters(tmp_path):
    weights = {n: t for n, t in net().state_dict().items() if "num_batches" not in n}
    load_weights(net(), saved(tmp_path / "w.pt", weights))


def test_what_does_not_fit_is_told_in_one_sentence(tmp_path):
    weights = net().state_dict()
    del weights["2.bias"]
    weights["fc.bias"] = torch.zeros(2)
    weights["0.weight"] = torch.zeros(7, 3)
    weights["0.bias"] = torch.zeros(7)
    with pytest.raises(UserError) as told:
        load_weights(net(), saved(tmp_path / "w.pt", weights))
    sentence = str(told.value)
    assert "does not fit the model Sequential" in sentence
    assert "it lacks '2.bias'" in sentence
    assert "it has 'fc.bias', which the model has not" in sentence
    assert "'0.weight' is of the shape (7, 3), not (4, 3)" in sentence
    assert "nor do the shapes fit of '0.bias'" in sentence


def test_weights_that_no_model_can_start_from_are_refused(tmp_path):
    weights = net().state_dict()
    weights["0.weight"][1, 2] = float("nan")
    weights["2.bias"][0] = float("inf")
    weights["0.bias"] = weights["0.bias"].to(torch.complex64)
    with pytest.raises(
        UserError, match=r"complex numbers in '0\.bias'; .*not finite in '0\.weight', '2\.bias'$"
    ):
        load_weights(net(), saved(tmp_path / "w.pt", weights))


class Malicious:
    """Runs code when it is unpickled."""

    def __reduce__(self):
        return Path.touch, (Path("touched"),)


def test_no_code_of_a_pickle_is_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"a": Malicious()}, tmp_path / "bad.pt")
    Path("plain.pt").write_bytes(pickle.dumps({"a": Malicious()}))
    for name in ("bad.pt", "plain.pt"):
        with pytest.raises(UserError, match=r"no state dict of tensors alone|cannot be read"):
            load_weights(net(), name)
    assert not Path("touched").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("absent.pt", None, "there is no such file"),
        ("text.safetensors", b"hello", "cannot be read"),
        ("text.pt", b"hello", "no state dict|cannot be read"),
    ],
)
def test_files_that_are_none(name, content, message, tmp_path):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        load_weights(net(), str(tmp_path / name))


def test_a_file_of_something_else(tmp_path):
    torch.save([1, 2], tmp_path / "w.pt")
    with pytest.raises(UserError, match="must hold tensors by name"):
        load_weights(net(), str(tmp_path / "w.pt"))


def test_the_fingerprint_is_of_the_files_bytes(tmp_path):
    (tmp_path / "a").write_bytes(b"12")
    (tmp_path / "b").write_bytes(b"13")
    assert weights_fingerprint(str(tmp_path / "a")) != weights_fingerprint(str(tmp_path / "b"))
