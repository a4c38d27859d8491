"""Metrics against plain NumPy on a federation whose clients differ in size, one of them without rows."""

import numpy as np
import pytest
import torch
from torch import nn

from idiolect.core.objective import Batch
from idiolect.core.task import Task
from idiolect.data.federation import Federation, Rows
from idiolect.evaluation.metrics import evaluate, row_metrics
from idiolect.methods.fedavg import FedAvg
from idiolect.simulation import Simulation

PARTS = {"validation": ([4, 5, 6], [7], []), "test": ([8], [], [9, 10, 11, 12])}

NOTHING = {
    "multiclass": {"loss": np.nan, "accuracy": np.nan},
    "binary": {"loss": np.nan, "accuracy": np.nan, "balanced_accuracy": np.nan},
    "regression": {"loss": np.nan, "rmse": np.nan, "mae": np.nan, "r2": np.nan},
}


def federation(kind: str) -> Federation:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(13, 2, generator=generator, dtype=torch.float64)
    if kind == "regression":
        targets, task = torch.randn(13, 2, generator=generator, dtype=torch.float64), Task("regression", 2)
    else:
        classes = 2 if kind == "binary" else 3
        targets = torch.randint(classes, (13,), generator=generator)
        task = Task("binary", 1) if kind == "binary" else Task("multiclass", 3)
    rows = {name: Rows.of_clients([torch.tensor(r) for r in part]) for name, part in PARTS.items()}
    train = Rows.of_clients([torch.tensor([0, 1]), torch.tensor([2]), torch.tensor([3])])
    return Federation(inputs, targets, task, ("a", "b", "c"), train, **rows)


def expected(kind: str, outputs: np.ndarray, targets: np.ndarray) -> dict[str, float]:
    if kind == "regression":
        errors = outputs - targets
        spread = ((targets - targets.mean(0)) ** 2).mean()
        return {
            "loss": 0.5 * (errors**2).sum(1).mean(),
            "rmse": np.sqrt((errors**2).mean()),
            "mae": np.abs(errors).mean(),
            "r2": 1 - (errors**2).mean() / spread if spread > 0 else np.nan,
        }
    if kind == "binary":
        logits = outputs[:, 0]
        hits = (logits > 0) == (targets == 1)
        recalls = [hits[targets == c].mean() for c in (0, 1) if (targets == c).any()]
        loss = np.log1p(np.exp(-np.where(targets == 1, logits, -logits))).mean()
        return {"loss": loss, "accuracy": hits.mean(), "balanced_accuracy": np.mean(recalls)}
    log_sums = np.log(np.exp(outputs).sum(1))
    loss = (log_sums - outputs[np.arange(len(targets)), targets]).mean()
    return {"loss": loss, "accuracy": (outputs.argmax(1) == targets).mean()}


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
@pytest.mark.parametrize("kind", ["multiclass", "binary", "regression"])
def test_every_client_kind_and_part(kind: str, engine: str) -> None:
    data = federation(kind)
    model = nn.Linear(2, data.task.outputs)
    simulation = Simulation(
        FedAvg(local_steps=2, learning_rate=0.7),
        model,
        data,
        dtype=torch.float64,
        engine=engine,
        batch_size=1,
    ).play(2)
    metrics = evaluate(simulation).set_index(["kind", "part", "client", "metric"])["value"]
    for client, name in enumerate(data.names):
        for model_kind, params in simulation.predictor(client).items():
            weight, bias = params["weight"].numpy(), params["bias"].numpy()
            for part, rows in PARTS.items():
                mine = rows[client]
                outputs = data.inputs[mine].numpy() @ weight.T + bias
                wanted = expected(kind, outputs, data.targets[mine].numpy()) if mine else NOTHING[kind]
                for metric, value in wanted.items():
                    got = metrics[model_kind, part, name, metric]
                    np.testing.assert_allclose(got, value, rtol=1e-12, err_msg=f"{part} {metric}")


def test_a_part_that_nobody_has_is_left_out() -> None:
    data = federation("multiclass")
    nobody = Rows.of_clients([torch.tensor([], dtype=torch.int64)] * 3)
    without = Federation(data.inputs, data.targets, data.task, data.names, data.train, nobody, data.test)
    metrics = evaluate(Simulation(FedAvg(), nn.Linear(2, 3), without))
    assert set(metrics.part) == {"test"}


def test_padding_does_not_count() -> None:
    task = Task("multiclass", 2)
    outputs = torch.tensor([[2.0, 0.0], [0.0, 2.0], [0.0, 9.0]])
    batch = Batch(torch.zeros(3, 1), torch.tensor([0, 0, 0]), torch.tensor([0.5, 0.5, 0.0]))
    assert row_metrics(task, outputs, batch)["accuracy"] == 0.5
