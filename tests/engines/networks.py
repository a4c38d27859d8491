"""Networks drawn from blocks, federations for them, and methods: what the engines must agree on."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor, nn

from engines.blocks import BLOCKS, CODES, SHAPES, VOCABULARY, Block, Shape
from idiolect.core.method import Method
from idiolect.core.task import Task
from idiolect.data.federation import Federation, Rows
from idiolect.methods.apfl import APFL
from idiolect.methods.catalogue import METHODS
from idiolect.methods.fedavg import FedAvg

TASKS = (Task("multiclass", 3), Task("regression", 2), Task("binary", 1))
_PROBE_ROWS = 2


class Fit(nn.Module):
    """A linear map between rows of any two shapes."""

    def __init__(self, before: Shape, after: Shape) -> None:
        super().__init__()
        self.after = after
        self.linear = nn.Linear(torch.Size(before).numel(), torch.Size(after).numel())

    def forward(self, x: Tensor) -> Tensor:
        """[rows, *before] -> [rows, *after]."""
        return self.linear(x.flatten(1)).unflatten(1, self.after)


class Joined(nn.Module):
    """A block whose result is joined with its input, or that is used twice."""

    def __init__(self, inner: nn.Module, way: str) -> None:
        super().__init__()
        self.inner = inner
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        """As `way` says."""
        match self.way:
            case "residual":
                return x + self.inner(x)
            case "residual in place":
                y = self.inner(x).clone()
                y += x
                return y
            case "dense":
                return torch.cat([x, self.inner(x)], 1)
            case _:
                return self.inner(torch.tanh(self.inner(x)))

    def extra_repr(self) -> str:
        """The way."""
        return self.way


# Blocks that torch cannot turn into a graph without side effects.
UNRECORDABLE = {"features: own_derivative": "functionalize has no rule for derivatives of one's own"}

WAYS = ("plain", "residual", "residual in place", "dense", "twice")


class Piece(NamedTuple):
    """A block in a network."""

    block: str
    way: str = "plain"


@dataclass(frozen=True)
class Network:
    """A chain of blocks between an input and a linear output; everything follows from these few words."""

    pieces: tuple[Piece, ...]
    task: Task = TASKS[0]
    first_is_linear: bool = True  # whether gradients go through the first block, or stop in it
    size: int = 0  # which of the shapes
    seed: int = 0

    @property
    def takes_codes(self) -> bool:
        """Whether rows are whole numbers."""
        return self._blocks[0].takes == CODES

    @property
    def cannot_be_recorded(self) -> bool:
        """Whether its steps are computed as they are written."""
        return any(piece.block in UNRECORDABLE for piece in self.pieces)

    @property
    def shape(self) -> Shape:
        """Of a row of the input."""
        return self._shape_for(self._blocks[0])

    @property
    def _blocks(self) -> list[Block]:
        return [BLOCKS[piece.block] for piece in self.pieces]

    def _shape_for(self, block: Block) -> Shape:
        shapes = SHAPES[block.takes]
        return shapes[self.size % len(shapes)]

    def inputs(self, rows: int, generator: torch.Generator) -> Tensor:
        """Rows, no number of which is there twice, so that nothing ties."""
        if self.takes_codes:
            orders = torch.rand(rows, VOCABULARY, generator=generator).argsort(1)
            return orders[:, : self.shape[0]].contiguous()
        return torch.randn(rows, *self.shape, generator=generator)

    def build(self) -> nn.Module:
        """The module, with parameters of the seed; none is zero or one, as torch's own first values are."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            module = self._chain()
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter += 0.05 * torch.randn_like(parameter)
        return module

    def _chain(self) -> nn.Module:
        layers: list[nn.Module] = []
        rows = self.inputs(_PROBE_ROWS, torch.Generator().manual_seed(self.seed))
        for place, (piece, block) in enumerate(zip(self.pieces, self._blocks, strict=True)):
            shape = self._shape_for(block)
            is_linear_first = place == 0 and self.first_is_linear and not self.takes_codes
            if is_linear_first or (place and rows.shape[1:] != shape):
                layers.append(Fit(tuple(rows.shape[1:]), shape))
                rows = layers[-1](rows)
            layers.append(_joined(block, piece.way, rows))
            rows = layers[-1](rows.clone())
        layers.append(Fit(tuple(rows.shape[1:]), (self.task.outputs,)))
        return nn.Sequential(*layers)

    def __repr__(self) -> str:
        pieces = ", ".join(f"Piece{tuple(piece)!r}" for piece in self.pieces)
        return (
            f"Network(({pieces},), {self.task}, first_is_linear={self.first_is_linear}, size={self.size}, "
            f"seed={self.seed}) which is\n{self.build()}\n"
        )


def _joined(block: Block, way: str, rows: Tensor) -> nn.Module:
    """The block in its way; what joins needs results of the input's shape, and codes cannot be joined."""
    shape = tuple(rows.shape[1:])
    inner = block.build(shape)
    if way == "plain" or block.takes == CODES:
        return inner
    after = tuple(inner(rows.clone()).shape[1:])
    return Joined(inner if after == shape else nn.Sequential(inner, Fit(after, shape)), way)


def federation(network: Network, sizes: tuple[int, ...]) -> Federation:
    """Clients with so many rows each."""
    generator = torch.Generator().manual_seed(network.seed + 1)
    rows = sum(sizes)
    inputs = network.inputs(rows, generator)
    task = network.task
    if task.kind == "regression":
        targets = torch.randn(rows, task.outputs, generator=generator)
    else:
        targets = torch.randint(max(task.outputs, 2), (rows,), generator=generator)
    owned = Rows.of_clients(list(torch.arange(rows).split(sizes)))
    names = tuple(f"client-{number}" for number in range(len(sizes)))
    return Federation(inputs, targets, task, names, owned, owned, owned)


@st.composite
def networks(draw: st.DrawFn) -> Network:
    """Chains of up to four blocks; codes are taken first or not at all."""
    of_codes = [name for name, block in BLOCKS.items() if block.takes == CODES]
    others = [name for name, block in BLOCKS.items() if block.takes != CODES]
    first = draw(st.sampled_from(others + of_codes))
    later = draw(st.lists(st.sampled_from(others), max_size=3))
    pieces = tuple(Piece(name, draw(st.sampled_from(WAYS))) for name in (first, *later))
    return Network(
        pieces,
        task=draw(st.sampled_from(TASKS)),
        first_is_linear=draw(st.booleans()),
        size=draw(st.integers(0, 1)),
        seed=draw(st.integers(0, 2**16)),
    )


GENTLE = 0.02  # a learning rate with which no drawn network overflows soon
# Options whose steps are of another kind. Not Adam: it divides gradients that are zero up to rounding by
# themselves, as those of a bias below a normalisation are.
OTHER_STEPS: tuple[tuple[type[Method], dict[str, Any]], ...] = (
    (FedAvg, {"optimizer": "momentum"}),
    (FedAvg, {"local_steps": {"epochs": 1}}),
    (APFL, {"mixing_update": "step", "order": "shared_first"}),
    (APFL, {"mixture_of": "outputs"}),
    (APFL, {"mixing": 0.3, "average_offset": 2.0, "ball_radius": 1.5}),
)


@st.composite
def methods(draw: st.DrawFn) -> Method:
    """Every method of the catalogue, with little local work unless it prescribes another."""
    kinds = [(FedAvg, {}), *((method, {}) for method in METHODS if method is not FedAvg), *OTHER_STEPS]
    kind, options = draw(st.sampled_from(kinds))
    little_work = {"lr": GENTLE, "local_steps": draw(st.integers(1, 3))}
    try:
        return kind(**(little_work | options))
    except ValidationError:
        return kind(lr=GENTLE, **options)  # type: ignore[call-arg]
