import sys

import pytest
import torch

from idiolect.data import catalogue
from idiolect.data.picture import draw
from idiolect.errors import UserError

SMALL = {
    "synthetic": {"clients": 3},
    "three-clusters": {"clients": 3},
    "opposed-signs": {"clients": 4, "samples": 20},
    "image-like": {"clients": 5, "samples_per_class": 20},
    "quadratic-pair": {},
    "quadratic-line": {"distance": 2.0},
    "quadratics": {"clients": 3},
    "vowels": {},
}


def test_every_data_set_has_a_line_about_it():
    lines = {name: catalogue.summary(loader) for name, loader in catalogue.LOADERS.items()}
    assert set(SMALL) < set(lines)
    assert all(20 < len(line) < 110 for line in lines.values())


@pytest.mark.parametrize("name", SMALL)
def test_loading_by_name_is_a_function_of_the_seed(name):
    first, again, other = (catalogue.load(name, seed=s, **SMALL[name]) for s in (1, 1, 2))
    assert torch.equal(first.inputs, again.inputs)
    assert torch.equal(first.targets, again.targets)
    assert torch.equal(first.train.index, again.train.index)
    if name not in ("quadratic-pair", "quadratic-line"):
        same = first.inputs.shape == other.inputs.shape and torch.equal(first.inputs, other.inputs)
        assert not same


def test_options_as_text_are_read_by_type():
    federation = catalogue.load(
        "synthetic", seed=0, clients="4", beta="0.5", iid="false", fractions=[0.8, 0, 0.2]
    )
    assert len(federation) == 4
    assert federation.validation.sizes.tolist() == [0] * 4


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("vowls", {}, r"data='vowls' is not known \(did you mean vowels"),
        ("nowhere/at/all.csv", {"client": "a", "target": "b"}, "there is no file"),
        ("synthetic", {"bta": 1}, r"no option 'bta' \(did you mean beta"),
        ("synthetic", {"clients": "many"}, "clients='many'"),
        ("synthetic", {"clients": 2.5}, r"clients=2\.5"),
        ("synthetic", {"variant": "fedproxy"}, "variant='fedproxy'"),
        ("synthetic", {"fractions": "half"}, "fractions='half'"),
        ("vowels", {"clients": 3}, "no option 'clients'"),
        ("image-like", {"pixels": 65}, "pixels=65"),
    ],
)
def test_what_is_not_known_names_the_nearest(name, options, message):
    with pytest.raises(UserError, match=message) as caught:
        catalogue.load(name, seed=0, **options)
    assert "\n" not in str(caught.value)


def test_describe_counts_rows_and_labels():
    federation = catalogue.load("vowels", seed=0)
    table = catalogue.describe(federation)
    assert table.index.tolist() == list(federation.names)
    assert table.columns.tolist() == ["train", "validation", "test", *federation.class_names]
    assert (table[list(federation.class_names)] == 6).all().all()
    assert table[["train", "validation", "test"]].to_numpy().tolist() == [[22, 11, 33]] * 15


def test_describe_binary_and_regression():
    table = catalogue.describe(catalogue.load("opposed-signs", seed=0, clients=2, samples=30))
    assert table[["0", "1"]].sum(axis=1).tolist() == [30, 30]
    table = catalogue.describe(catalogue.load("quadratic-line", seed=0, optimum=3.0, distance=2.0))
    assert table["target mean"].tolist() == [1.0, 5.0]
    assert table["train"].tolist() == [1, 1]


@pytest.mark.parametrize("name", ["vowels", "quadratics", "opposed-signs"])
def test_the_picture_is_written(name, tmp_path):
    draw(catalogue.load(name, seed=0), tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_that_cannot_be_written_is_refused(tmp_path):
    federation = catalogue.load("quadratics", seed=0)
    for path in (tmp_path / "absent" / "p.png", tmp_path / "p.nonsense"):
        with pytest.raises(UserError, match="cannot be written"):
            draw(federation, path)


def test_without_the_report_extra_it_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)  # as if it were not installed
    with pytest.raises(UserError, match=r"pip install 'idiolect\[report\]'"):
        draw(catalogue.load("quadratics", seed=0), tmp_path / "p.png")
