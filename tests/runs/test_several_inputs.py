"""Rows with several inputs, by name or in order, from arrays to models that are taken home."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import idiolect
from idiolect.data.federation import fingerprint
from idiolect.engines.local_view import partial_view
from idiolect.errors import UserError
from idiolect.runs.lifecycle import reported_simulation

MODULE = """
import numpy as np
import torch
from torch import nn

import idiolect


def client(rows, seed):
    draw = np.random.default_rng(seed)
    return {{"ids": draw.integers(0, 20, (rows, 5)), "mask": draw.random((rows, 5)) > 0.3}}


def texts(seed=0, in_order=False):
    given = [client(rows, place) for place, rows in enumerate((30, 25, 41))]
    targets = [(each["ids"].sum(1) % 3) for each in given]
    inputs = [tuple(each.values()) for each in given] if in_order else given
    return idiolect.from_arrays(inputs, targets, seed=seed)


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 6)
        self.output = nn.Linear(6, 3)

    def forward(self, ids, mask):
        counted = mask.to(self.output.weight.dtype)[..., None]
        return self.output((self.embedding(ids) * counted).sum(1) / counted.sum(1).clamp_min(1))


def own(federation):
    codes = int(federation.inputs["ids"].max()) + 1
    assert federation.inputs["mask"].dtype == torch.bool or len(federation.inputs["mask"]) == 1
    assert codes == 20
    return Words()
""".replace("{{", "{").replace("}}", "}")


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "several_words.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    import several_words

    return several_words


@pytest.mark.parametrize("in_order", [False, True])
def test_from_the_loader_to_files(words, in_order, tmp_path):
    run = idiolect.run(
        method="apfl",
        data={"name": "several_words:texts", "in_order": in_order},
        model="several_words:Words" if in_order else "several_words:own",
        out=str(tmp_path / "run"),
        rounds=2,
        lr=0.1,
        threads=1,
    )
    simulation = reported_simulation(run)
    rows = simulation.federation.inputs
    some = tuple(leaf[:4] for leaf in rows) if in_order else {name: leaf[:4] for name, leaf in rows.items()}
    predictor = simulation.predictor(1)["personal"]
    expected = simulation.engine.setting.objective.predict(predictor, some)
    model = idiolect.load_model(idiolect.export(run.path, client="client-1", out=tmp_path / "model"))
    assert torch.allclose(model.outputs(some), expected, atol=1e-6)
    idiolect.export(run.path, client="client-1", to=tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2").module()
    assert torch.allclose(program(some)["outputs"], expected, atol=1e-6)
    assert len(program(rows)["prediction"]) == 96
    with pytest.raises(UserError, match=r"a model of several inputs goes into a \.pt2"):
        idiolect.export(run.path, client="client-1", to=tmp_path / "model.onnx")


def test_codes_stay_whole_and_masks_stay_masks(words):
    federation = words.texts()
    assert federation.inputs["ids"].dtype == torch.int64
    assert federation.inputs["mask"].dtype == torch.bool
    assert federation.to(torch.float64).inputs["ids"].dtype == torch.int64
    result = idiolect.train("fedavg", federation, words.Words(), rounds=1, lr=0.1)
    rows = {name: leaf[:3] for name, leaf in federation.inputs.items()}
    assert len(result.predict("client-0", rows)) == 3


def test_a_worker_has_its_clients_rows_alone(words):
    federation = words.texts()
    part = partial_view(federation, [1])
    for name in ("ids", "mask"):
        start = int(part.train.offsets[1])
        own = part.inputs[name][part.train.index[start : start + int(part.train.sizes[1])]]
        assert torch.equal(own, federation.inputs[name][federation.train.of(1)])
        assert len(part.inputs[name]) == 25


def test_the_fingerprint_is_of_all_inputs(words):
    federation = words.texts()
    before = fingerprint(federation)
    federation.inputs["mask"][0, 0] ^= True
    assert fingerprint(federation) != before


def test_data_sets_whose_items_have_several(words):
    class Items(torch.utils.data.Dataset):
        def __len__(self):
            return 12

        def __getitem__(self, place):
            return {"ids": torch.full((5,), place), "mask": torch.ones(5, dtype=torch.bool)}, place % 3

    federation = idiolect.from_datasets({"a": Items(), "b": Items()}, seed=0)
    assert federation.inputs["ids"].shape == (24, 5)
    assert federation.inputs["mask"].dtype == torch.bool


def test_what_does_not_fit_is_told_in_a_sentence(words):
    ids, mask = np.zeros((4, 5), dtype=int), np.ones((3, 5), dtype=bool)
    with pytest.raises(UserError, match="client 'client-0' has 3 inputs but 4 targets"):
        idiolect.from_arrays([{"ids": ids, "mask": mask}], [[0, 1, 0, 1]], seed=0)
    with pytest.raises(UserError, match="inputs differ in shape"):
        idiolect.from_arrays([{"ids": ids}, {"codes": ids}], [[0, 1, 0, 1]] * 2, seed=0)
    with pytest.raises(
        UserError, match=r"model mlp takes one tensor, but rows have several inputs.*ids \(96, 5\)"
    ):
        idiolect.train("fedavg", words.texts(), "mlp", rounds=1)
    with pytest.raises(UserError, match=r"Linear cannot be trained on inputs ids .*, mask .* and targets"):
        idiolect.train("fedavg", words.texts(), nn.Linear(5, 3), rounds=1)
