"""Synthetic federations with known heterogeneity: the generators of the papers' experiments.

Each client's rows are a pure function of (seed, client): more clients or another method change nothing in
those that were there before.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from idiolect.core.task import Task
from idiolect.data.draws import generator
from idiolect.data.federation import Federation
from idiolect.data.splits import DEFAULT_FRACTIONS, Fractions, split_clients
from idiolect.errors import UserError

INPUTS = 60
CLASSES = 10
# Σ = diag(j^-1.2): the standard deviation of input j
INPUT_DEVIATIONS = np.arange(1, INPUTS + 1) ** -0.6
BLOCKS = 3
BLOCK_WEIGHT_NOISE = 0.3

SizeLaw = Literal["fedprox", "pfedme", "fedtorch"]


def synthetic(
    *,
    seed: int,
    clients: int = 100,
    gamma: float = 0.0,
    beta: float = 0.0,
    variant: SizeLaw = "fedprox",
    iid: bool = False,
    model_spread: float | None = None,
    fractions: Fractions = DEFAULT_FRACTIONS,
) -> Federation:
    """FedProx's synthetic classes, one linear rule for each client; used by APFL.

    For client k, with 60 inputs and 10 classes:
        u_k ~ Normal(0, γ);  B_k ~ Normal(0, β);  W_k, b_k entries ~ Normal(u_k, 1);
        ν_k entries ~ Normal(B_k, 1);  x ~ Normal(ν_k, diag(j^-1.2));  y = argmax(W_kᵀx + b_k).
    γ and β are standard deviations, as in the reference codes, although they are written as variances.

    variant: "fedprox" has int(LogNormal(4, 2)) + 50 rows, "pfedme" five times as many; "fedtorch" has
        min(int(LogNormal(3, 2)) + 500, 1000) rows, two classes, the bias as a weight of a constant input
        and Normal(u_k, 0.1) noise on every logit. (Papers' splits: 80/20, 90/10 and 80/20.)
    iid: one W, b ~ Normal(0, 1) for all and ν_k = B_k·1: identically distributed if β = 0.
    model_spread: s in W_k = W_0 + s·E_k (b_k alike), heterogeneity of the models that can be controlled.

    Caveats. Adding u_k to all columns of W_k shifts all logits equally, so the labels do not depend on γ
    at all. Every client draws its own W_k, so synthetic(0, 0) is not i.i.d.: only β makes clients more or
    less alike. Use `iid` for a reference that is, and `model_spread` to vary how far models differ.
    """
    _check_count("clients", clients)
    _check_not_negative(gamma=gamma, beta=beta, model_spread=model_spread or 0.0)
    if iid and model_spread is not None:
        raise UserError("iid=True gives all clients one model: leave model_spread out")
    classes = 2 if variant == "fedtorch" else CLASSES
    common = _Labeller.draw(generator(seed, "synthetic-common"), classes)
    samples = []
    for client in range(clients):
        draw = generator(seed, "synthetic", client)
        rows = power_law_size(draw, variant)
        location, centre = draw.normal(0.0, gamma), draw.normal(0.0, beta)
        own = _Labeller.draw(draw, classes, location)
        if iid:
            own, means = common, np.full(INPUTS, centre)
        else:
            own = own if model_spread is None else common.plus(own, model_spread, location)
            means = draw.normal(centre, 1.0, INPUTS)
        inputs = _inputs(draw, means, rows)
        noise = draw.normal(location, 0.1, (rows, classes)) if variant == "fedtorch" else 0.0
        samples.append((inputs, own.labels(inputs, noise)))
    return assemble(samples, Task("multiclass", classes), seed=seed, fractions=fractions)


def three_clusters(
    *,
    seed: int,
    clients: int = 60,
    alpha: float = 0.5,
    beta: float = 0.5,
    shared_weights: bool = False,
    fractions: Fractions = DEFAULT_FRACTIONS,
) -> Federation:
    """Three blocks of clients with inputs in three places, of the pFedKM paper.

    B_k ~ Normal(-3β, β), Normal(0, β) or Normal(3β, β) by block and u_k = (α/β)·B_k; the rest as in
    `synthetic` with FedProx's sizes. `groups` holds the blocks. (The paper's split: 75/25.)

    shared_weights: W_k = W_block + 0.3·noise (b_k alike), so that a block shares its labelling too.

    Caveat: without it the blocks share the location of their inputs only, since labels ignore u_k and
    every W_k is drawn on its own; k-means on models then finds the blocks in part, and personal models
    need not gain from them. Judge clustering methods with shared_weights=True.
    """
    _check_count("clients", clients, BLOCKS)
    if not beta > 0:
        raise UserError(f"beta={beta} must be above 0: it is the scale of the three blocks")
    block_of = np.arange(clients) * BLOCKS // clients
    blocks = [_Labeller.draw(generator(seed, "clusters-block", b), CLASSES) for b in range(BLOCKS)]
    samples = []
    for client, block in enumerate(block_of):
        draw = generator(seed, "clusters", client)
        rows = power_law_size(draw, "fedprox")
        centre = draw.normal((block - 1) * 3 * beta, beta)
        location = alpha / beta * centre
        own = _Labeller.draw(draw, CLASSES, location)
        if shared_weights:
            own = blocks[block].plus(own, BLOCK_WEIGHT_NOISE, location)
        inputs = _inputs(draw, draw.normal(centre, 1.0, INPUTS), rows)
        samples.append((inputs, own.labels(inputs)))
    return assemble(
        samples,
        Task("multiclass", CLASSES),
        seed=seed,
        fractions=fractions,
        groups=torch.as_tensor(block_of, dtype=torch.int64),
    )


def opposed_signs(
    *,
    seed: int,
    clients: int = 50,
    samples: int = 500,
    balanced: bool = False,
    fractions: Fractions = DEFAULT_FRACTIONS,
) -> Federation:
    """Two halves of clients with opposite labels, of the PERM paper.

    One w ~ Normal(0.1·1, I). First half: x ~ Normal(0.2·1, diag(j^-1.2)), y = [wᵀx > 0]; second half:
    x ~ Normal(-0.2·1, same), y = [-wᵀx > 0]. `groups` holds the halves. (No split is stated: 80/20, say.)

    balanced: centre w so that Σ w_j = 0, hence both classes are equally likely on both halves.

    Caveats. Without `balanced` the majority class has a share of 0.68 to 0.96 that depends on the draw of
    w. The halves are mirror images (x to -x with the same y), so a global model with a bias reaches the
    majority share, while without one it is at chance: for the paper's contrast use a linear model with
    bias=False (an option of the model, not of the data). With samples=40 joining helps most.
    """
    _check_count("clients", clients, 2)
    _check_count("samples", samples)
    weights = generator(seed, "signs-weights").normal(0.1, 1.0, INPUTS)
    if balanced:
        weights = weights - weights.mean()
    half_of = np.arange(clients) * 2 // clients
    data = []
    for client, half in enumerate(half_of):
        sign = 1.0 - 2.0 * half
        inputs = _inputs(generator(seed, "signs", client), np.full(INPUTS, 0.2 * sign), samples)
        data.append((inputs, (sign * (inputs @ weights) > 0).astype(np.int64)))
    return assemble(
        data,
        Task("binary", 1),
        seed=seed,
        fractions=fractions,
        groups=torch.as_tensor(half_of, dtype=torch.int64),
    )


def power_law_size(draw: np.random.Generator, variant: SizeLaw) -> int:
    """How many rows a client has."""
    match variant:
        case "fedprox":
            return int(draw.lognormal(4, 2)) + 50
        case "pfedme":
            return (int(draw.lognormal(4, 2)) + 50) * 5
        case "fedtorch":
            return min(int(draw.lognormal(3, 2)) + 500, 1000)


def assemble(
    samples: Sequence[tuple[np.ndarray, np.ndarray]],
    task: Task,
    *,
    seed: int,
    fractions: Fractions,
    groups: Tensor | None = None,
) -> Federation:
    """A federation from each client's inputs and class labels; clients are named by number."""
    sizes = [len(labels) for _, labels in samples]
    names = [f"client-{i}" for i in range(len(samples))]
    split = split_clients(
        list(torch.split(torch.arange(sum(sizes)), sizes)), names, seed=seed, fractions=fractions
    )
    return Federation(
        inputs=torch.as_tensor(np.concatenate([x for x, _ in samples]), dtype=torch.float32),
        targets=torch.as_tensor(np.concatenate([y for _, y in samples]), dtype=torch.int64),
        task=task,
        names=tuple(names),
        train=split.train,
        validation=split.validation,
        test=split.test,
        groups=groups,
    )


@dataclass(frozen=True)
class _Labeller:
    """A linear rule x -> argmax(Wᵀx + b)."""

    weights: np.ndarray  # [inputs, classes]
    bias: np.ndarray  # [classes]

    @classmethod
    def draw(cls, draw: np.random.Generator, classes: int, location: float = 0.0) -> "_Labeller":
        """All entries ~ Normal(location, 1)."""
        return cls(draw.normal(location, 1.0, (INPUTS, classes)), draw.normal(location, 1.0, classes))

    def plus(self, other: "_Labeller", spread: float, location: float) -> "_Labeller":
        """The rule with spread·E added, where E is the other rule's deviation from its location."""
        return _Labeller(
            self.weights + spread * (other.weights - location),
            self.bias + spread * (other.bias - location),
        )

    def labels(self, inputs: np.ndarray, noise: np.ndarray | float = 0.0) -> np.ndarray:
        """The class of each row (softmax does not change which logit is the largest)."""
        logits: np.ndarray = inputs @ self.weights + self.bias + noise
        classes: np.ndarray = logits.argmax(1)
        return classes


def _inputs(draw: np.random.Generator, means: np.ndarray, rows: int) -> np.ndarray:
    return means + draw.normal(size=(rows, INPUTS)) * INPUT_DEVIATIONS


def _check_count(name: str, value: int, minimum: int = 1) -> None:
    if value < minimum:
        raise UserError(f"{name}={value} must be at least {minimum}")


def _check_not_negative(**values: float) -> None:
    for name, value in values.items():
        if not (np.isfinite(value) and value >= 0):
            raise UserError(f"{name}={value} must be a number that is not negative")
