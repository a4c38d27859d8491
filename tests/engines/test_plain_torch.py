"""Models of all kinds on both engines against what everybody would write: modules, SGD, a loop, a mean."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from idiolect.core import tree
from idiolect.core.fixed import training_only
from idiolect.core.inputs import as_arguments, take_rows
from idiolect.core.schedule import Constant
from idiolect.core.task import Task
from idiolect.data.federation import Federation, Rows
from idiolect.engines.batches import Batches
from idiolect.methods.fedavg import FedAvg
from idiolect.models import add_adapters, build_model
from idiolect.models.adapters import AdapterSettings
from idiolect.simulation import EngineName, Simulation

SIZES, BATCH, STEPS, ROUNDS, RATE, DECAY, SEED = (5, 3, 1, 8), 3, 3, 2, 0.1, 0.02, 6
CODES, LENGTH = 9, 5


def federation(inputs, classes: int = 3) -> Federation:
    rows = Rows.of_clients(list(torch.arange(sum(SIZES)).split(SIZES)))
    targets = torch.randint(0, classes, (sum(SIZES),), generator=torch.Generator().manual_seed(2))
    names = tuple(f"client-{number}" for number in range(len(SIZES)))
    return Federation(inputs, targets, Task("multiclass", classes), names, rows, rows, rows)


def random(*shape: int) -> Tensor:
    return torch.randn(sum(SIZES), *shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def codes(length: int = LENGTH) -> Tensor:
    return torch.randint(0, CODES, (sum(SIZES), length), generator=torch.Generator().manual_seed(1))


class Recurrent(nn.Module):
    """Torch's own recurrent layer over embedded codes."""

    def __init__(self, kind: type[nn.RNNBase], **options) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CODES, 4)
        self.layer = kind(4, 3, batch_first=True, **options)
        self.output = nn.Linear(3 * (2 if options.get("bidirectional") else 1), 3)

    def forward(self, codes: Tensor) -> Tensor:
        return self.output(self.layer(self.embedding(codes))[0][:, -1])


class Attending(nn.Module):
    """Torch's own attention with a mask, given by name."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CODES, 4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.output = nn.Linear(4, 3)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.embedding(ids)
        x = self.attention(x, x, x, key_padding_mask=~mask, need_weights=False)[0]
        counted = mask.to(x.dtype)[..., None]
        return self.output((x * counted).sum(1) / counted.sum(1))


class Encoding(nn.Module):
    """Torch's own transformer encoder."""

    def __init__(self, **options) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CODES, 4)
        layer = nn.TransformerEncoderLayer(4, 2, 5, dropout=0.0, batch_first=True, **options)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.output = nn.Linear(4, 3)

    def forward(self, codes: Tensor) -> Tensor:
        return self.output(self.encoder(self.embedding(codes)).mean(1))


class Tied(nn.Module):
    """One weight for codes on their way in and classes on their way out, one layer at two places."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CODES, 4)
        self.layer = nn.Linear(4, 4)
        self.again = self.layer
        self.output = nn.Linear(4, CODES)
        self.output.weight = self.embedding.weight

    def forward(self, codes: Tensor) -> Tensor:
        return self.output(self.again(torch.tanh(self.layer(self.embedding(codes)))).mean(1))


class Two(nn.Module):
    """An image and a row of numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 2, 3)
        self.output = nn.Linear(2 * 2 * 2 + 3, 3)

    def forward(self, image: Tensor, numbers: Tensor) -> Tensor:
        return self.output(torch.cat([torch.relu(self.convolution(image)).flatten(1), numbers], 1))


def masked() -> dict[str, Tensor]:
    lengths = 1 + torch.arange(sum(SIZES)) % LENGTH
    return {"ids": codes(), "mask": torch.arange(LENGTH) < lengths[:, None]}


def frozen_body() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 3))
    model[0].requires_grad_(False)
    model[2].bias.requires_grad_(False)
    return model


def adapted() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    model = training_only(add_adapters(model, AdapterSettings(rank=2), seed=1), "adapter")
    with torch.no_grad():
        model[0].adapter.up += 0.3
    return model


def by_name(name: str, **options) -> Callable[[Federation], nn.Module]:
    return lambda data: build_model(name, data, seed=3, **options)


CASES: dict[str, tuple[Callable[[Federation], nn.Module], Federation]] = {
    "resnet": (by_name("resnet", depth=10, width=2), federation(random(2, 8, 8))),
    "lenet": (by_name("lenet"), federation(random(1, 12, 12))),
    "cnn4": (by_name("cnn4", filters=(2, 3), hidden=4), federation(random(1, 16, 16))),
    "gru of codes": (by_name("gru", embedding=3, hidden=4, layers=2), federation(codes())),
    "gru of numbers": (by_name("gru", hidden=4), federation(random(LENGTH, 2))),
    "bag": (by_name("bag", embedding=4, padding=1), federation(codes())),
    "transformer": (by_name("transformer", size=4, heads=2, hidden=3), federation(codes())),
    "transformer with padding": (
        by_name("transformer", size=4, heads=2, hidden=3, padding=1),
        federation(codes()),
    ),
    "nn.GRU": (lambda _: Recurrent(nn.GRU, num_layers=2), federation(codes())),
    "nn.GRU there and back": (lambda _: Recurrent(nn.GRU, bidirectional=True), federation(codes())),
    "nn.LSTM": (lambda _: Recurrent(nn.LSTM), federation(codes())),
    "nn.MultiheadAttention by name": (lambda _: Attending(), federation(masked())),
    "nn.TransformerEncoder": (lambda _: Encoding(), federation(codes())),
    "nn.TransformerEncoder, norm first": (lambda _: Encoding(norm_first=True), federation(codes())),
    "nn.EmbeddingBag": (
        lambda _: nn.Sequential(nn.EmbeddingBag(CODES, 4), nn.Linear(4, 3)),
        federation(codes()),
    ),
    "two inputs in order": (lambda _: Two(), federation((random(1, 4, 4), random(3) + 1))),
    "tied": (lambda _: Tied(), federation(codes(), CODES)),
    "tied, trained by its other name": (
        lambda _: training_only(Tied(), ("output.weight", "again.bias")),
        federation(codes(), CODES),
    ),
    "frozen": (lambda _: frozen_body(), federation(random(4))),
    "adapters": (lambda _: adapted(), federation(random(4))),
}


def plain_torch(model: nn.Module, data: Federation) -> dict[str, Tensor]:
    """FedAvg as a loop."""
    batches = Batches(data, SEED, BATCH, torch.float64)
    model = copy.deepcopy(model)
    for round_number in range(ROUNDS):
        trained = []
        for client in range(len(data)):
            own = copy.deepcopy(model)
            parameters = [p for p in own.parameters() if p.requires_grad]
            optimizer = torch.optim.SGD(parameters, lr=RATE, weight_decay=DECAY)
            for step in range(STEPS):
                size = int(batches.batch_sizes[client])
                rows = batches.draw(torch.tensor(client), round_number, torch.tensor(step), size)
                arguments, keywords = as_arguments(take_rows(data.inputs, rows))
                optimizer.zero_grad()
                nn.functional.cross_entropy(own(*arguments, **keywords), data.targets[rows]).backward()
                optimizer.step()
            trained.append({name: p.detach() for name, p in own.named_parameters()})
        mean = tree.weighted_sum(tree.stack(trained), torch.tensor(SIZES, dtype=torch.float64) / sum(SIZES))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.requires_grad:
                    parameter.copy_(mean[name])
    return {name: p.detach() for name, p in model.named_parameters()}


@pytest.mark.parametrize("case", CASES)
def test_both_engines_are_the_plain_loop(case):
    make, data = CASES[case]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        model = make(data).double()
    expected = plain_torch(model, data)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for engine in ("sequential", "vectorised"):
        params, fixed = trained_by(engine, model, data)
        assert params.keys() | fixed.keys() == expected.keys()
        for name, value in params.items():
            assert torch.allclose(value, expected[name], rtol=1e-9, atol=1e-11), (engine, name)
            assert not torch.equal(value, before[name])
        for name, value in fixed.items():
            assert torch.equal(value, before[name])


def trained_by(engine: EngineName, model: nn.Module, data: Federation):
    method = FedAvg(learning_rate=Constant(RATE), local_steps=STEPS, weighting="samples")
    simulation = Simulation(
        method,
        copy.deepcopy(model),
        data,
        seed=SEED,
        batch_size=BATCH,
        weight_decay=DECAY,
        dtype=torch.float64,
        engine=engine,
    ).play(ROUNDS)
    evaluated = simulation.evaluate()
    assert evaluated["value"].notna().all()
    return simulation.global_model(), simulation.engine.setting.objective.fixed_params()
