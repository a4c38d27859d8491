"""Dropout between the layers of one recurrent network is that between two networks of one layer each."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from idiolect.core import tree
from idiolect.engines.assembly import EngineName
from idiolect.methods.fedavg import FedAvg
from idiolect.simulation import Simulation
from idiolect.testing.problems import uneven_classification

P = 0.4
KINDS: dict[str, tuple[Callable[..., nn.Module], dict[str, Any]]] = {
    "LSTM": (nn.LSTM, {}),
    "LSTM, projected, both ways": (nn.LSTM, {"proj_size": 3, "bidirectional": True}),
    "GRU, both ways": (nn.GRU, {"bidirectional": True}),
    "GRU without biases": (nn.GRU, {"bias": False}),
    "RNN": (nn.RNN, {}),
    "RNN with relu": (nn.RNN, {"nonlinearity": "relu"}),
}


class Recurrent(nn.Module):
    """Each feature of a row is a position; what subclasses differ in is how layers are put together."""

    def __init__(self, *, batch_first: bool, packed: bool) -> None:
        super().__init__()
        self.batch_first, self.packed = batch_first, packed

    def states(self, x: Any) -> Any:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, :, None] if self.batch_first else x.T[:, :, None]
        if not self.packed:
            return self.output(self.states(x).mean(1 if self.batch_first else 0))
        lengths = [2 + row % 3 for row in range(x.shape[0 if self.batch_first else 1])]
        parts = pack_padded_sequence(x, torch.tensor(lengths), self.batch_first, enforce_sorted=False)
        padded, _ = pad_packed_sequence(self.states(parts), self.batch_first, total_length=4)
        return self.output(padded.mean(1 if self.batch_first else 0))


class InOne(Recurrent):
    def __init__(self, layer: Callable[..., nn.Module], options: dict[str, Any], **form: Any) -> None:
        super().__init__(**form)
        self.layers = layer(1, 5, 2, dropout=P, batch_first=self.batch_first, **options)
        self.output = nn.Linear(width(options), 3)

    def states(self, x: Any) -> Any:
        return self.layers(x)[0]


class OneByOne(Recurrent):
    """The same with the parameters of another."""

    def __init__(
        self, same: InOne, layer: Callable[..., nn.Module], options: dict[str, Any], **form: Any
    ) -> None:
        super().__init__(**form)
        self.layers = nn.ModuleList(
            layer(size, 5, batch_first=self.batch_first, **options) for size in (1, width(options))
        )
        self.output = same.output
        for number, one in enumerate(self.layers):
            one.load_state_dict(
                {
                    name.replace(f"_l{number}", "_l0"): value
                    for name, value in same.layers.state_dict().items()
                    if f"_l{number}" in name
                }
            )
        self.between = nn.Dropout(P)

    def states(self, x: Any) -> Any:
        first, second = self.layers
        x = first(x)[0]
        dropped = x._replace(data=self.between(x.data)) if isinstance(x, PackedSequence) else self.between(x)
        return second(dropped)[0]


def width(options: dict[str, Any]) -> int:
    return options.get("proj_size", 5) * (2 if options.get("bidirectional") else 1)


def trained(model: nn.Module, engine: EngineName) -> list[Tensor]:
    """The parameters after a round, in an order that does not depend on their names."""
    torch.manual_seed(len(engine))  # which must not matter
    run = Simulation(
        FedAvg(local_steps=2),
        model,
        uneven_classification(2),
        engine=engine,
        dtype=torch.float64,
        batch_size=5,
        seed=3,
    ).play(1)
    return sorted(tree.leaves(run.server.w), key=lambda leaf: (leaf.numel(), float(leaf.sum())))


FORMS = {
    "rows first": {"batch_first": True, "packed": False},
    "positions first": {"batch_first": False, "packed": False},
    "packed": {"batch_first": True, "packed": True},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_layers_in_one_are_trained_like_layers_one_by_one(kind: str, form: str) -> None:
    layer, options = KINDS[kind]
    torch.manual_seed(0)
    in_one = InOne(layer, options, **FORMS[form])
    one_by_one = OneByOne(in_one, layer, options, **FORMS[form])
    for mine, theirs in zip(trained(in_one, "sequential"), trained(one_by_one, "sequential"), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


def test_engines_agree() -> None:
    torch.manual_seed(0)
    model = InOne(nn.LSTM, {}, **FORMS["rows first"])
    for mine, theirs in zip(trained(model, "sequential"), trained(model, "vectorised"), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)
