"""Small federations on which a wrong sign, factor or order cannot hide: nothing about them is symmetric."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from idiolect.core.task import Task
from idiolect.core.tree import Params
from idiolect.data.federation import Federation, Rows


def uneven_classification(clients: int = 5, features: int = 4, classes: int = 3) -> Federation:
    """Clients of 6, 10, 14, .. rows, each with its own centre and its own labelling rule."""
    generator = torch.Generator().manual_seed(20)
    inputs, targets, rows, start = [], [], [], 0
    for client in range(clients):
        size = 6 + 4 * client
        x = torch.randn(size, features, generator=generator, dtype=torch.float64) + 0.3 * client
        rule = torch.randn(features, classes, generator=generator, dtype=torch.float64)
        inputs.append(x)
        targets.append((x @ rule).argmax(1))
        rows.append(torch.arange(start, start + size))
        start += size
    everything = Rows.of_clients(rows)
    names = tuple(f"client-{c}" for c in range(clients))
    task = Task("multiclass", classes)
    return Federation(torch.cat(inputs), torch.cat(targets), task, names, everything, everything, everything)


def small_network(features: int = 4, classes: int = 3) -> nn.Module:
    """A network with one hidden layer."""
    return nn.Sequential(nn.Linear(features, 5), nn.Tanh(), nn.Linear(5, classes))


def in_halves() -> Federation:
    """The rows of `uneven_classification`, each in two inputs by name."""
    federation = uneven_classification()
    left, right = federation.inputs.chunk(2, dim=1)
    return replace(federation, inputs={"left": left, "right": right})


class NetworkOfHalves(nn.Module):
    """The network of `small_network`, with the same names, for rows in halves."""

    def __init__(self) -> None:
        super().__init__()
        for name, layer in small_network().named_children():
            self.add_module(name, layer)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """[rows, features / 2] twice -> [rows, classes]."""
        x = torch.cat([left, right], dim=1)
        for layer in self.children():
            x = layer(x)
        return x


class Residual(nn.Module):
    """x + inner(x)."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        """As many features as before."""
        return x + self.inner(x)


class Attention(nn.Module):
    """Each of the features is a position that looks at all."""

    def __init__(self, width: int = 2) -> None:
        super().__init__()
        self.embed = nn.Linear(1, width)
        self.look = nn.Linear(width, 3 * width)

    def forward(self, x: Tensor) -> Tensor:
        """[rows, features] -> [rows, features * width]."""
        queries, keys, values = self.look(self.embed(x[..., None])).chunk(3, dim=-1)
        return nn.functional.scaled_dot_product_attention(queries, keys, values).flatten(1)


class SignEmbedding(nn.Module):
    """An embedding of each feature's sign."""

    def __init__(self, features: int, width: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(2 * features, width)

    def forward(self, x: Tensor) -> Tensor:
        """[rows, features] -> [rows, features * width]."""
        codes = (x > 0).long() + 2 * torch.arange(x.shape[1], device=x.device)
        return self.embedding(codes).flatten(1)


def _grouped(features: int = 4, classes: int = 3) -> nn.Module:
    return nn.Sequential(
        nn.Linear(features, 8), nn.GroupNorm(2, 8), nn.ReLU(inplace=True), nn.Linear(8, classes)
    )


def _residual(features: int = 4, classes: int = 3) -> nn.Module:
    inner = nn.Sequential(nn.LayerNorm(features), nn.Linear(features, features), nn.Tanh())
    return nn.Sequential(Residual(inner), Residual(inner), nn.Linear(features, classes))


# Models of other kinds than a perceptron: a method or an engine that is right on one may be wrong on another.
ZOO: Mapping[str, Callable[[], nn.Module]] = {
    "a linear model": lambda: nn.Linear(4, 3),
    "a network with group norm": _grouped,
    # Without the bias that normalisation makes idle: only rounding moves it, and codecs choose among entries.
    "a network with batch norm and dropout": lambda: nn.Sequential(
        nn.Linear(4, 5, bias=False), nn.BatchNorm1d(5), nn.Tanh(), nn.Dropout(0.3), nn.Linear(5, 3)
    ),
    "a residual network that uses a layer twice": _residual,
    "a network with attention": lambda: nn.Sequential(Attention(), nn.Linear(8, 3)),
    "a network with an embedding": lambda: nn.Sequential(SignEmbedding(4), nn.Linear(8, 3)),
    "a network with a convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(6, 3)
    ),
}


class ProductModel(nn.Module):
    """Predicts weight * x elementwise: with x = √h and y = √h c the loss is ½ Σ h (weight - c)²."""

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(dimension, dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        """One prediction for each row."""
        return self.weight * inputs


@dataclass(frozen=True)
class Quadratics:
    """f_i(w) = ½ Σ_j h_ij (w_j - c_ij)², a different curvature h and optimum c for every client."""

    curvature: Tensor  # float64[clients, dimension]
    optimum: Tensor  # float64[clients, dimension]

    @classmethod
    def asymmetric(cls, clients: int = 4, dimension: int = 3) -> "Quadratics":
        """Curvatures between 0.4 and 1.6, optima of both signs and different sizes."""
        generator = torch.Generator().manual_seed(21)
        curvature = 0.4 + 1.2 * torch.rand(clients, dimension, generator=generator, dtype=torch.float64)
        optimum = torch.randn(clients, dimension, generator=generator, dtype=torch.float64)
        return cls(curvature, optimum + torch.arange(clients, dtype=torch.float64)[:, None])

    def federation(self) -> Federation:
        """One row for each client."""
        clients, dimension = self.optimum.shape
        root = self.curvature.sqrt()
        rows = Rows.of_clients([torch.tensor([c]) for c in range(clients)])
        names = tuple(f"client-{c}" for c in range(clients))
        task = Task("regression", dimension)
        return Federation(root, root * self.optimum, task, names, rows, rows, rows)

    def model(self) -> nn.Module:
        """The model whose parameter is w."""
        return ProductModel(self.optimum.shape[1])

    @staticmethod
    def weights(params: Params) -> Tensor:
        """W of a model, or of a stack of models."""
        return params["weight"]
