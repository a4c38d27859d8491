"""Users' own tables: what is read, what is fitted on training rows, and what is refused in which words."""

import numpy as np
import pandas as pd
import pytest
import torch

from idiolect.data.catalogue import describe, load
from idiolect.data.preprocessing import Preprocessing
from idiolect.data.tables import from_frame
from idiolect.errors import UserError


def patients(rows=60, seed=0):
    draw = np.random.default_rng(seed)
    age = draw.normal(50, 10, rows).round(1)
    return pd.DataFrame(
        {
            "hospital": np.array(["north", "south", "west"])[np.arange(rows) % 3],
            "age": age,
            "ward": draw.choice(["a", "b", "c"], rows),
            "smoker": draw.random(rows) < 0.4,
            "outcome": np.where(age + draw.normal(0, 5, rows) > 50, "ill", "well"),
            "cost": 100 * age + draw.normal(0, 30, rows),
        }
    )


def federate(frame, target="outcome", **options):
    return from_frame(frame, client="hospital", target=target, seed=1, **options)


def test_classification_with_numbers_and_categories():
    frame = patients()
    federation = federate(frame, ignore=["cost"])
    assert federation.names == ("north", "south", "west")
    assert federation.task.kind == "binary"
    assert federation.class_names == ("ill", "well")
    assert federation.feature_names == ("age", "ward=a", "ward=b", "ward=c", "smoker=False", "smoker=True")
    for client, name in enumerate(federation.names):
        rows = torch.cat([p.of(client) for p in (federation.train, federation.validation, federation.test)])
        assert (frame["hospital"].iloc[rows.numpy()] == name).all()
    assert torch.equal(federation.targets, torch.tensor((frame["outcome"] == "well").to_numpy()).long())
    assert federation.inputs[:, 1:4].sum(1).eq(1).all()
    assert torch.equal(federation.inputs[:, 2] == 1, torch.tensor((frame["ward"] == "b").to_numpy()))


def test_scaling_is_fitted_on_training_rows_only():
    frame = patients()
    plain = federate(frame, ignore=["cost"])
    train = frame["age"].iloc[plain.train.index.numpy()]
    expected = (frame["age"] - train.mean()) / train.std(ddof=0)
    assert np.allclose(plain.inputs[:, 0], expected, atol=1e-5)
    disturbed = frame.copy()
    disturbed.loc[plain.test.index.numpy(), "age"] += 1000.0
    again = federate(disturbed, ignore=["cost"])
    assert torch.equal(plain.inputs[plain.train.index], again.inputs[plain.train.index])


def test_regression_is_recognised_scaled_and_restored():
    frame = patients()
    federation = federate(frame, target="cost", ignore=["outcome"])
    assert federation.task.kind == "regression"
    assert federation.targets.shape == (60, 1)
    own = federation.targets[federation.train.index]
    assert own.mean().abs() < 1e-5
    assert own.std(correction=0).item() == pytest.approx(1.0, abs=1e-5)
    restored = federation.preprocessing.restore_target(federation.targets)[:, 0]
    assert np.allclose(restored, frame["cost"], rtol=1e-4)
    assert any("standardised" in note for note in federation.notes)
    raw = federate(frame, target="cost", ignore=["outcome"], scale_target=False)
    assert np.allclose(raw.targets[:, 0], frame["cost"], rtol=1e-6)


def test_the_task_can_be_set():
    frame = patients().assign(score=lambda f: (f["age"] // 10).astype(int))
    assert federate(frame, target="score").task.kind == "multiclass"
    assert federate(frame, target="score", task="regression").task.kind == "regression"
    many = frame.assign(score=range(60))
    assert federate(many, target="score").task.kind == "regression"
    assert federate(many, target="score", task="classification").task.outputs == 60
    numbers = federate(frame, target="score").class_names
    assert list(numbers) == sorted(numbers, key=int)


def test_preprocessing_survives_json_and_serves_new_rows():
    federation = federate(patients(), ignore=["cost"])
    again = Preprocessing.from_json(federation.preprocessing.to_json())
    assert again == federation.preprocessing
    new = pd.DataFrame({"ward": ["b", "z"], "smoker": [True, False], "age": [50.0, 41.5]})
    inputs = again.transform(new)
    column = again.columns[0]
    assert inputs[0].tolist() == pytest.approx([(50 - column.mean) / column.scale, 0, 1, 0, 0, 1], abs=1e-5)
    assert inputs[1, 1:4].tolist() == [0, 0, 0]  # a category unseen in training
    assert again.unseen(new) == {"ward": ["z"]}
    with pytest.raises(UserError, match="no column 'age'"):
        again.transform(new.rename(columns={"age": "years"}))
    with pytest.raises(UserError, match="'old', which is not a number"):
        again.transform(new.assign(age=["old", "young"]))
    for broken in ("{", "[]", '{"format": "other"}', '{"format": "idiolect-preprocessing-1"}'):
        with pytest.raises(UserError, match="preprocessing"):
            Preprocessing.from_json(broken)


def test_missing_values_are_refused_or_imputed_and_said():
    frame = patients()
    frame.loc[[3, 7], "age"] = np.nan
    frame.loc[5, "ward"] = None
    with pytest.raises(UserError, match="column 'age' has 2 missing values"):
        federate(frame, ignore=["cost"])
    federation = federate(frame, ignore=["cost"], missing="impute")
    assert federation.inputs[[3, 7], 0].abs().max() < 1e-6  # the training mean
    most = frame["ward"].iloc[federation.train.index.numpy()].mode()[0]
    assert federation.inputs[5, 1 + "abc".index(most)] == 1
    assert any("'age': 2 of 60 values missing" in note for note in federation.notes)
    assert any("'ward': 1 of 60 values missing" in note for note in federation.notes)
    frame.loc[0, "outcome"] = None
    with pytest.raises(UserError, match="target 'outcome' has 1 missing"):
        federate(frame, ignore=["cost"])
    without = federate(frame, ignore=["cost"], missing="impute")
    assert len(without.inputs) == 59
    assert any("left out" in note for note in without.notes)


def test_missing_values_are_indicated():
    frame = patients()
    frame.loc[[3, 7, 9], "age"] = np.nan
    frame.loc[[5, 6], "ward"] = None
    plain = federate(frame, ignore=["cost"], missing="impute")
    federation = federate(frame, ignore="cost,smoker", missing="indicate")
    training = frame.iloc[federation.train.index.numpy()]
    assert training["age"].isna().any()
    assert training["ward"].isna().any()
    names = ("age", "age is missing", "ward=a", "ward=b", "ward=c", "ward is missing")
    assert federation.feature_names == names
    assert torch.equal(federation.inputs[:, 0], plain.inputs[:, 0])
    assert torch.equal(federation.inputs[:, 2:5], plain.inputs[:, 1:4])
    for column, name in ((1, "age"), (5, "ward")):
        assert federation.inputs[:, column].tolist() == frame[name].isna().astype(float).tolist()
    again = Preprocessing.from_json(federation.preprocessing.to_json())
    assert again == federation.preprocessing
    new = pd.DataFrame({"age": [np.nan, 40.0], "ward": ["a", None]})
    assert again.transform(new)[:, [1, 5]].tolist() == [[1, 0], [0, 1]]
    notes = [note for note in federation.notes if "missing" in note]
    assert any("'age': 3 of 60 values missing" in n and "'south' 1 of 20" in n for n in notes), notes
    whole = federate(patients(), ignore=["cost"], missing="indicate")
    assert whole.feature_names == federate(patients(), ignore=["cost"]).feature_names


def test_preprocessing_that_was_written_before_there_were_indicators_is_read():
    import json

    fitted = federate(patients(), ignore=["cost"]).preprocessing
    content = json.loads(fitted.to_json())
    del content["missing_values"]
    for column in content["columns"]:
        del column["indicator"]
    assert Preprocessing.from_json(json.dumps(content)) == fitted


def test_the_clients_that_miss_most_are_named():
    frame = pd.concat([patients(), patients(90, seed=1).assign(hospital="east")], ignore_index=True)
    own = frame["hospital"].to_numpy()
    for name, absent in (("north", 2), ("south", 8), ("west", 5), ("east", 30)):
        frame.loc[np.flatnonzero(own == name)[:absent], "age"] = np.nan
    notes = federate(frame, ignore=["cost"], missing="impute").notes
    (note,) = (note for note in notes if note.startswith("column 'age'"))
    assert "45 of 150 values missing" in note
    assert note.endswith("most at 'south' 8 of 20, 'east' 30 of 90, 'west' 5 of 20")


def test_a_regression_is_described_in_its_own_units():
    frame = patients()
    table = describe(federate(frame, target="cost", ignore=["outcome"]))
    own = frame.groupby("hospital")["cost"]
    assert table["target mean"].to_numpy() == pytest.approx(own.mean().to_numpy(), rel=1e-5)
    assert table["target deviation"].to_numpy() == pytest.approx(own.std(ddof=0).to_numpy(), rel=1e-4)


def test_columns_are_listed_in_either_way():
    frame = patients().assign(**{"a,b": 1.5})
    expected = federate(frame, ignore=["cost", "a,b"]).feature_names
    assert federate(frame, ignore="a,b").feature_names == (*expected[:-2], *expected[-2:], "cost")
    frame = frame.drop(columns="a,b")
    for ignore in (["cost", "ward"], "cost,ward", "cost, ward"):
        assert federate(frame, ignore=ignore).feature_names == ("age", "smoker=False", "smoker=True")


def test_a_category_unseen_in_training_gets_zeros_and_a_note():
    frame = patients()
    where = int(federate(frame, ignore=["cost"]).test.index[0])
    frame.loc[where, "ward"] = "rare"
    federation = federate(frame, ignore=["cost"])
    assert federation.inputs[where, 1:4].tolist() == [0, 0, 0]
    assert any("'rare'" in note for note in federation.notes)


def test_numbers_can_be_codes_of_categories():
    frame = patients().assign(code=lambda f: [7.0, 12.0, 30.0] * 20).astype({"code": float})
    frame.loc[4, "code"] = np.nan
    options = {"ignore": "cost", "missing": "impute"}
    federation = federate(frame, categories="code", **options)
    assert federation.feature_names[-3:] == ("code=12", "code=30", "code=7")
    assert federation.inputs[0, -3:].tolist() == [0, 0, 1]
    assert federation.inputs[4, -3:].sum() == 1
    assert federate(frame, **options).feature_names[-1] == "code"
    repeated = frame.set_index(np.zeros(60, int))
    assert torch.equal(federate(repeated, categories="code", **options).inputs, federation.inputs)


def test_a_constant_column_is_not_blown_up():
    frame = patients().assign(constant=0.1)
    federation = federate(frame)
    column = federation.feature_names.index("constant")
    assert federation.preprocessing.columns[-1].scale == 1.0
    assert federation.inputs[:, column].abs().max() < 1e-6


def test_one_class_clients_are_allowed_and_said():
    frame = patients()
    frame.loc[frame["hospital"] == "west", "outcome"] = "ill"
    federation = federate(frame, ignore=["cost"])
    assert any("one class only" in note and "'west'" in note for note in federation.notes)


def test_clients_with_too_few_rows():
    frame = pd.concat([patients(), patients(2).assign(hospital="tiny")], ignore_index=True)
    with pytest.raises(UserError, match="client 'tiny' has 2 rows"):
        federate(frame)
    federation = federate(frame, too_few="drop")
    assert federation.names == ("north", "south", "west")
    assert any("'tiny'" in note for note in federation.notes)


def test_one_file_csv_parquet_and_folder_agree(tmp_path):
    frame = patients()
    frame.to_csv(tmp_path / "p.csv", index=False)
    frame.to_csv(tmp_path / "p.csv.gz", index=False)
    frame.to_parquet(tmp_path / "p.parquet")
    options = {"client": "hospital", "target": "outcome", "seed": 4}
    first, *others = (load(tmp_path / f"p.{kind}", **options) for kind in ("csv", "csv.gz", "parquet"))
    folder = tmp_path / "sites"
    folder.mkdir()
    for name, own in frame.groupby("hospital"):
        own.drop(columns="hospital").to_csv(folder / f"{name}.csv", index=False)
    for other in others:
        assert torch.equal(first.inputs, other.inputs)
        assert torch.equal(first.train.index, other.train.index)
    by_file = load(str(folder), target="outcome", seed=4)
    assert by_file.names == first.names
    assert torch.equal(by_file.inputs[by_file.train.of(1)], first.inputs[first.train.of(1)])
    assert describe(by_file).equals(describe(first))


def test_a_column_without_a_name_is_said(tmp_path):
    patients().set_index(patients()["cost"] / 7).to_csv(tmp_path / "p.csv", index_label="")
    federation = load(tmp_path / "p.csv", client="hospital", target="outcome", seed=0)
    assert "Unnamed: 0" in federation.feature_names
    assert any("'Unnamed: 0' has no name" in note for note in federation.notes)


def test_numbers_name_clients_in_order():
    frame = patients().assign(hospital=[10, 2, 1] * 20)
    assert federate(frame).names == ("1", "2", "10")


def write(folder, text, name="t.csv"):
    path = folder / name
    path.write_text(text)
    return path


GOOD = "site,x,y\n" + "".join(f"{s},{i}.5,{'uv'[i % 2]}\n" for s in "ab" for i in range(6))

BAD_TABLES = {
    "no such file": (None, {}, "there is no file"),
    "empty file": ("", {}, "is empty"),
    "header only": ("site,x,y\n", {}, "no rows"),
    "no client column": (GOOD, {"client": "sight"}, r"no client column 'sight' \(did you mean site"),
    "no target column": (GOOD, {"target": "yy"}, r"no target column 'yy' \(did you mean y"),
    "client not given": (GOOD, {"client": ...}, "needs the option 'client'"),
    "unknown option": (GOOD, {"mising": "impute"}, r"no option 'mising' \(did you mean missing"),
    "wrong choice": (GOOD, {"missing": "maybe"}, "missing='maybe'"),
    "no column to ignore": (GOOD, {"ignore": ["z"]}, "no column to ignore 'z'"),
    "one column for both": (GOOD, {"client": "y"}, "client and target are both 'y'"),
    "no features": (GOOD, {"ignore": ["x"]}, "no feature columns"),
    "infinite": (GOOD.replace("a,1.5", "a,inf"), {}, "column 'x' is infinite in line 3"),
    "NaN": (GOOD.replace("a,1.5", "a,nan"), {}, "column 'x' has 1 missing"),
    "missing client": (GOOD.replace("a,1.5", ",1.5"), {}, "client column 'site' has 1 missing"),
    "alike names": (GOOD.replace("a,1.5", "A ,1.5"), {}, "'a' and 'A ' are too alike"),
    "one class": (GOOD.replace("v", "u"), {}, "only one class, 'u'"),
    "regression on text": (GOOD, {"task": "regression"}, "regression needs numbers"),
    "classes with fractions": (
        GOOD,
        {"target": "x", "task": "classification"},
        "fractions; set data.task=regression",
    ),
    "column twice": (GOOD.replace("site,x,y", "site,y,y"), {}, "column 'y' twice"),
    "column twice but for spaces": (GOOD.replace("site,x,y", "site, y,y"), {}, "column 'y' twice"),
    "a field too many in every line": (
        GOOD.replace("u\n", "u,9\n").replace("v\n", "v,9\n"),
        {},
        "cannot be read",
    ),
    "ragged lines": (GOOD + "a,1,u,9,9,9\n", {}, "cannot be read"),
    "too few rows": (GOOD, {"minimum_rows": 7}, "client 'a' has 6 rows"),
    "bad fractions": (GOOD, {"fractions": (0.9, 0.9, 0.9)}, "fractions="),
}


@pytest.mark.parametrize("case", BAD_TABLES)
def test_bad_tables_are_refused_in_one_sentence(case, tmp_path):
    text, changes, message = BAD_TABLES[case]
    path = tmp_path / "absent.csv" if text is None else write(tmp_path, text)
    options = {"client": "site", "target": "y", **changes}
    options = {name: value for name, value in options.items() if value is not ...}
    with pytest.raises(UserError, match=message) as caught:
        load(path, seed=0, **options)
    assert "\n" not in str(caught.value)


def test_unreadable_files_are_refused(tmp_path):
    broken = tmp_path / "t.parquet"
    broken.write_bytes(b"PAR1 but not really")
    packed = tmp_path / "t.csv.gz"
    packed.write_bytes(b"not gzip")
    binary = tmp_path / "t.csv"
    binary.write_bytes(b"\xff\xfe\x00\x01" * 20)
    text = write(tmp_path, "a,b\n", "t.txt")
    for path in (broken, packed, binary):
        with pytest.raises(UserError, match="cannot be read"):
            load(path, seed=0, client="a", target="b")
    with pytest.raises(UserError, match=r"must end in \.csv"):
        load(text, seed=0, client="a", target="b")


def test_too_many_categories_are_refused():
    frame = pd.concat([patients()] * 5, ignore_index=True)
    with pytest.raises(
        UserError, match=r"column 'code' has 101 .* too many for a category .*data\.ignore=code"
    ):
        federate(frame.assign(code=[f"p{i % 101}" for i in range(300)]), fractions=(1, 0, 0))


def test_bad_folders_are_refused(tmp_path):
    with pytest.raises(UserError, match="no data that is known"):
        load(tmp_path, seed=0, target="y")
    write(tmp_path, GOOD, "a.csv")
    with pytest.raises(UserError, match="needs the option 'target'"):
        load(tmp_path, seed=0)
    with pytest.raises(UserError, match="client must be left out"):
        load(tmp_path, seed=0, target="y", client="site")
    write(tmp_path, GOOD.replace("site,x", "site,z"), "b.csv")
    with pytest.raises(UserError, match="differ in columns"):
        load(tmp_path, seed=0, target="y")
    (tmp_path / "b.csv").unlink()
    pd.DataFrame({"x": [1]}).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(UserError, match="two files for the client 'a'"):
        load(tmp_path, seed=0, target="y")
