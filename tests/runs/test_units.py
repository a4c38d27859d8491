"""Errors are in the target's own units wherever they are shown, and a standardised loss says so."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import mean_absolute_error, root_mean_squared_error
from typer.testing import CliRunner

import idiolect
from idiolect.cli.app import app
from idiolect.core.objective import Batch
from idiolect.evaluation.metrics import row_metrics
from idiolect.runs.client_model import load_model
from idiolect.silo.schema import Schema, read_schema


@pytest.fixture
def prices(tmp_path: Path) -> Path:
    """Prices of a few thousand, at two shops of different sizes."""
    draw = np.random.default_rng(2)
    frames = []
    for shop, rows in (("north", 60), ("south", 35)):
        x = draw.normal(size=(rows, 2))
        price = 9000 + x @ np.array([2500.0, -1200.0]) + draw.normal(scale=300, size=rows)
        frames.append(pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "shop": shop, "price": price}))
    path = tmp_path / "prices.csv"
    pd.concat(frames, ignore_index=True).to_csv(path, index=False)
    return path


def settings(prices: Path, **further: object) -> dict[str, object]:
    data = {"name": str(prices), "client": "shop", "target": "price"}
    return {"data": data, "method": "fedavg", "lr": 0.1, "rounds": 3, **further}


def test_a_run_says_what_its_exported_models_are_off(prices: Path, tmp_path: Path) -> None:
    run = idiolect.run(settings(prices, out=str(tmp_path / "run")))
    data, table = run.federation(), pd.read_csv(prices)
    numbers = run.summary()["kinds"]["localized"]
    told = run.metrics().query(f"kind == 'localized' and part == 'test' and round == {numbers['round']}")
    values = told.set_index(["client", "metric"])["value"]
    assert numbers["mean"] > 100  # hundreds, not a share of a deviation
    for place, shop in enumerate(data.names):
        model = load_model(idiolect.export(run, client=shop, out=tmp_path / shop))
        rows = table.iloc[data.test.of(place).numpy()]
        predicted = model.predict(rows)
        assert values[shop, "rmse"] == pytest.approx(root_mean_squared_error(rows.price, predicted), rel=1e-5)
        assert values[shop, "mae"] == pytest.approx(mean_absolute_error(rows.price, predicted), rel=1e-5)
        assert model.task.unit == pytest.approx(table.price.iloc[data.train.index.numpy()].std(ddof=0))


def test_silos_have_the_unit_that_they_agreed_on(prices: Path) -> None:
    table = pd.read_csv(prices)
    agreed = {"target": "price", "columns": {"a": {}, "b": {}}, "target_mean": 9000, "target_scale": 2500}
    schema = read_schema(agreed, prices.parent, 0)
    assert isinstance(schema, Schema)
    north = schema.read(table[table.shop == "north"].drop(columns="shop"), "north", 0, 2)
    rows = Batch(north.inputs, north.targets, torch.ones(len(north.targets)))
    told = row_metrics(north.task, torch.zeros_like(north.targets), rows)  # predicts 9000
    wanted = root_mean_squared_error(table.price[table.shop == "north"], np.full(60, 9000.0))
    assert float(told["rmse"]) == pytest.approx(wanted, rel=1e-5)


def test_targets_are_described_in_their_own_units(prices: Path) -> None:
    table = pd.read_csv(prices)
    described = idiolect.describe(idiolect.load(prices, seed=0, client="shop", target="price"))
    wanted = table.groupby("shop").price
    np.testing.assert_allclose(described["target mean"], wanted.mean(), rtol=1e-5)
    np.testing.assert_allclose(described["target deviation"], wanted.std(ddof=0), rtol=1e-4)


def test_a_standardised_loss_says_so(prices: Path, tmp_path: Path) -> None:
    newcomers = pd.read_csv(prices).assign(shop="new")
    newcomers.to_csv(tmp_path / "new.csv", index=False)
    common = [f"data={prices}", "data.client=shop", "data.target=price", "rounds=1", "metric=loss"]
    invoked = CliRunner().invoke(app, ["run", *common, "method=fedavg", f"out={tmp_path / 'run'}"])
    assert "test loss (standardised target) over 2 clients" in invoked.output
    invoked = CliRunner().invoke(
        app, ["compare", *common, "methods=local,fedavg", f"out={tmp_path / 'both'}"]
    )
    assert "test loss (standardised target) over 2 clients" in invoked.output
    page = (tmp_path / "both" / "report.html").read_text()
    assert "mean test loss (standardised target)" in page
    newcomers = idiolect.personalize(tmp_path / "run", data=str(tmp_path / "new.csv"))
    rmse = newcomers.metrics.query("metric == 'rmse'")["value"]
    assert (rmse > 100).all()
    plain = [*common, "data.scale_target=false", "lr=1e-9", "method=fedavg", f"out={tmp_path / 'plain'}"]
    assert "test loss over 2 clients" in CliRunner().invoke(app, ["run", *plain]).output
