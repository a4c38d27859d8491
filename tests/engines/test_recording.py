"""Recorded steps compute what the step itself computes, whatever shares memory with what."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from idiolect.core.rng import uniform
from idiolect.engines.compiler.recorder import Arguments, Recording, record

CLIENTS, ROWS, INPUTS, OUTPUTS, STEPS = 3, 2, 5, 6, 4
RATE = torch.tensor(0.07, dtype=torch.float64)

Step = Callable[[Arguments], list[Tensor]]


def numbers(seed: int, *shape: int) -> Tensor:
    return uniform(torch.tensor(seed), *shape) - 0.4


def models(count: int) -> list[Tensor]:
    return [numbers(seed, CLIENTS, OUTPUTS, INPUTS) for seed in range(count)]


def fixed_arguments() -> list[Tensor]:
    """A model, a number for each client, a mask for each side of a matrix, and a shared model."""
    return [
        numbers(10, CLIENTS, OUTPUTS, INPUTS),
        numbers(11, CLIENTS, 1, 1),
        (numbers(12, CLIENTS, OUTPUTS, 1) > 0).double(),
        (numbers(13, CLIENTS, 1, INPUTS) > 0).double(),
        numbers(14, OUTPUTS, INPUTS),
    ]


def drawn(step: int) -> list[Tensor]:
    return [numbers(100 + step, CLIENTS, ROWS, INPUTS), numbers(200 + step, CLIENTS, ROWS, OUTPUTS)]


def gradient(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Of half the squared error of x wᵀ: a product of two matrices."""
    return (x @ w.mT - y).mT @ x


def descent(a: Arguments) -> list[Tensor]:
    (w,) = a.changing
    return [w - RATE * gradient(w, *a.drawn)]


def decayed(a: Arguments) -> list[Tensor]:
    (w,) = a.changing
    return [w - RATE * (gradient(w, *a.drawn) + 0.3 * w)]


def pulled_and_corrected(a: Arguments) -> list[Tensor]:
    (w,), (anchor, weight, _, _, shared) = a.changing, a.fixed
    correction = weight * (anchor - shared)
    return [torch.lerp(w, anchor, 0.2) - RATE * (gradient(w, *a.drawn) + correction)]


def pulled_to_multiples(a: Arguments) -> list[Tensor]:
    """A factor of what is fixed is free in a sum, but not in a mixture."""
    (w,), anchor = a.changing, a.fixed[0]
    return [torch.lerp(w, 0.5 * anchor, 0.2) + 0.3 * anchor - RATE * gradient(w, *a.drawn)]


def masked_on_both_sides(a: Arguments) -> list[Tensor]:
    (w,), (_, weight, rows, columns, _) = a.changing, a.fixed
    return [w - weight * (gradient(w, *a.drawn) * rows * columns)]


def two_parts_with_one_gradient(a: Arguments) -> list[Tensor]:
    v, w = a.changing
    g = gradient(v + w, *a.drawn)
    return [v - RATE * g, w - 0.03 * g]


def mixture(a: Arguments) -> list[Tensor]:
    (v, w), weight = a.changing, a.fixed[1]
    w_gradient = gradient(w, *a.drawn)
    g = gradient(torch.lerp(w, v, weight), *a.drawn)
    return [v - RATE * (weight * g), w - RATE * w_gradient]


def mixture_with_a_learned_weight(a: Arguments) -> list[Tensor]:
    alpha, v, w = a.changing
    w_gradient = gradient(w, *a.drawn)
    g = gradient(torch.lerp(w, v, alpha), *a.drawn)
    slope = ((v - w) * g).sum((1, 2), keepdim=False)
    return [alpha - RATE * slope.reshape(-1, 1, 1), v - RATE * (alpha * g), w - RATE * w_gradient]


def squared_along_the_anchor(a: Arguments) -> list[Tensor]:
    """An inner product with a product of matrices that nothing else needs, and one of large matrices."""
    (w,), anchor = a.changing, a.fixed[0]
    x, y = a.drawn
    slope = (gradient(w, x, y) * anchor).sum((1, 2))
    wide = ((w.mT @ anchor) * (w.mT @ w)).sum((1, 2))
    return [w - (RATE * (slope + 0.1 * wide)).reshape(-1, 1, 1) * anchor]


def square_matrices(a: Arguments) -> list[Tensor]:
    """A product with a model is not one with its transpose, even if both have the same shape."""
    v, w = a.changing
    x = a.drawn[0]
    plain, turned = x @ w, x @ torch.lerp(w, v, a.fixed[1]).mT
    return [v - RATE * plain.mT @ turned, w - RATE * turned.mT @ x]


def alternating(a: Arguments) -> list[Tensor]:
    """The second model follows the first one's new value."""
    v, w = a.changing
    w = w - RATE * gradient(w, *a.drawn)
    return [v - RATE * gradient(torch.lerp(w, v, 0.3), *a.drawn), w]


def momentum(a: Arguments) -> list[Tensor]:
    velocity, w = a.changing
    velocity = 0.9 * velocity + gradient(w, *a.drawn)
    return [velocity, w - RATE * velocity]


def inner_steps(a: Arguments) -> list[Tensor]:
    theta, w = a.changing
    for _ in range(3):
        theta = torch.lerp(theta, w, 0.1) - RATE * gradient(theta, *a.drawn)
    return [theta, w - 0.4 * (w - theta)]


def inner_steps_of_each_client(a: Arguments) -> list[Tensor]:
    """Rates that are tensors: numbers of the clients, and one that they share."""
    (theta, w), weight = a.changing, a.fixed[1]
    for _ in range(3):
        theta = torch.lerp(theta, w, weight) - (RATE * weight) * gradient(theta, *a.drawn)
    for _ in range(2):
        theta = theta - RATE * (gradient(theta, *a.drawn) + 0.2 * (theta - w))
    return [theta, torch.lerp(w, theta, RATE)]


def shrinking_inner_steps(a: Arguments) -> list[Tensor]:
    """Coefficients that do not sum to one, and one that is an option of the sum."""
    theta, w = a.changing
    for _ in range(3):
        theta = torch.add(0.9 * theta + 0.3 * w - RATE * gradient(theta, *a.drawn), w, alpha=-0.2)
    for _ in range(2):
        theta = 0.9 * theta + 0.3 * w - RATE * gradient(theta, *a.drawn)
    return [theta, torch.lerp(w, theta, 0.1)]


def masked_inner_steps(a: Arguments) -> list[Tensor]:
    """Factors and weights that are not the same for all of a matrix."""
    (theta, w), (_, _, rows, columns, _) = a.changing, a.fixed
    for _ in range(2):
        theta = torch.lerp(theta, w, 0.3 * rows) - RATE * gradient(theta, *a.drawn)
    for _ in range(2):
        theta = theta - RATE * (columns * gradient(theta, *a.drawn))
    for _ in range(2):
        theta = (theta - RATE * gradient(theta, *a.drawn)) * columns
    return [theta, torch.lerp(w, theta, 0.1)]


def inner_steps_that_are_looked_at(a: Arguments) -> list[Tensor]:
    """Models between the steps are needed for more than products and sums, and one gradient is, too."""
    theta, w = a.changing
    sizes = []
    for _ in range(2):
        slope = gradient(theta, *a.drawn)
        theta = torch.lerp(theta, w, 0.1) - RATE * slope
        sizes.append(theta.square().sum((-2, -1), keepdim=True))
    theta = theta - RATE * gradient(theta, *a.drawn) - 0.01 * slope.abs()
    return [theta, w - RATE * (sizes[0] * w - 0.1 * sizes[1] * slope)]


def inner_steps_on_many_rows(a: Arguments) -> list[Tensor]:
    """The products are larger than the models."""
    theta, w = a.changing
    x, y = (torch.cat([half, half + 0.1, half - 0.2, -half], -2) for half in a.drawn)
    for _ in range(2):
        theta = torch.lerp(theta, w, 0.1) - RATE * gradient(theta, x, y)
    return [theta, w - 0.4 * (w - theta)]


def steps_there_and_back(a: Arguments) -> list[Tensor]:
    """A step, the gradient after it on other rows, and the difference of two on both sides of the model."""
    (w,), (x, y) = a.changing, a.drawn
    ahead = gradient(w - RATE * gradient(w, x, y), x + 1, y)
    curved = gradient(w + 0.1 * ahead, x - 1, y) - gradient(w - 0.1 * ahead, x - 1, y)
    return [w - RATE * (ahead - 0.5 * curved)]


def doubled_sixty_times(a: Arguments) -> list[Tensor]:
    """Whoever takes such a sum apart never comes to an end."""
    (w,) = a.changing
    g = gradient(w, *a.drawn)
    for _ in range(60):
        g = g + g
    return [w - RATE * 2.0**-60 * g]


def products_of_products(a: Arguments) -> list[Tensor]:
    """Without and with a transposition, and with a difference of models that has no other use."""
    (v, w), (x, y) = a.changing, a.drawn
    g = gradient(w, x, y)
    return [v - RATE * y.mT @ (x @ g.mT @ g), w - RATE * y.mT @ (y @ (v - 2 * g)) + y.mT @ (y @ v)]


def swapped(a: Arguments) -> list[Tensor]:
    v, w = a.changing
    return [w, v - RATE * gradient(v, *a.drawn)]


def remembered(a: Arguments) -> list[Tensor]:
    """The old value is a result too, so it may not be overwritten."""
    _, w = a.changing
    return [w, w - RATE * gradient(w, *a.drawn)]


def doubled(a: Arguments) -> list[Tensor]:
    """Two results of the first step are one tensor; later steps change each of them."""
    v, w = (model - RATE * gradient(model, *a.drawn) for model in a.changing)
    return [v, torch.where(a.step == 0, v, w)]


def restarted(a: Arguments) -> list[Tensor]:
    """Results of the first step are an argument that must stay as it is, and a view of one."""
    v, w = (model - RATE * gradient(model, *a.drawn) for model in a.changing)
    anchor, shared = a.fixed[0], a.fixed[4]
    return [torch.where(a.step == 0, anchor, v), torch.where(a.step == 0, shared.expand_as(w), w)]


def from_the_anchor(a: Arguments) -> list[Tensor]:
    """What is updated is needed in the next step too."""
    (w,), anchor = a.changing, a.fixed[0]
    return [anchor - RATE * gradient(w, *a.drawn)]


def from_a_view_of_the_anchor(a: Arguments) -> list[Tensor]:
    (w,), anchor = a.changing, a.fixed[0]
    return [(anchor.mT - RATE * gradient(w, *a.drawn).mT).mT]


def transposed_view(a: Arguments) -> list[Tensor]:
    """A view of the old value is read after the place where it could be overwritten."""
    (w,) = a.changing
    view = w.mT
    new = w - RATE * gradient(w, *a.drawn)
    return [new + 0.1 * (new @ view) @ new]


def self_product(a: Arguments) -> list[Tensor]:
    (w,) = a.changing
    return [w - RATE * w * w + RATE * w]


def of_the_first_step(a: Arguments) -> list[Tensor]:
    (w,) = a.changing
    moved = w - RATE * gradient(w, *a.drawn)
    return [torch.where(a.step == 0, moved, w) * torch.where(a.step > 0, w, moved)]


def followed_for_a_while(a: Arguments) -> list[Tensor]:
    w, snapshot = a.changing
    moved = w - RATE * gradient(w, *a.drawn)
    return [moved, torch.where(a.step < 2, moved, snapshot)]


def followed_and_read(a: Arguments) -> list[Tensor]:
    """The old value is read once more after the choice."""
    w, snapshot = a.changing
    moved = w - RATE * gradient(w, *a.drawn)
    chosen = torch.where(a.step < 2, moved, snapshot)
    return [moved + 0.1 * snapshot, chosen]


def counted(a: Arguments) -> list[Tensor]:
    """Integers are subtracted as integers."""
    count, w = a.changing
    return [count - 2 * a.step, w - RATE * gradient(w, *a.drawn) * (count.reshape(-1, 1, 1) % 3)]


CASES: dict[str, tuple[Step, list[Tensor]]] = {
    step.__name__: (step, models(count))
    for step, count in [
        (descent, 1),
        (decayed, 1),
        (pulled_and_corrected, 1),
        (pulled_to_multiples, 1),
        (masked_on_both_sides, 1),
        (two_parts_with_one_gradient, 2),
        (mixture, 2),
        (squared_along_the_anchor, 1),
        (alternating, 2),
        (momentum, 2),
        (inner_steps, 2),
        (inner_steps_of_each_client, 2),
        (shrinking_inner_steps, 2),
        (masked_inner_steps, 2),
        (inner_steps_that_are_looked_at, 2),
        (inner_steps_on_many_rows, 2),
        (steps_there_and_back, 1),
        (doubled_sixty_times, 1),
        (products_of_products, 2),
        (swapped, 2),
        (remembered, 2),
        (doubled, 2),
        (restarted, 2),
        (from_the_anchor, 1),
        (from_a_view_of_the_anchor, 1),
        (transposed_view, 1),
        (self_product, 1),
        (of_the_first_step, 1),
        (followed_for_a_while, 2),
        (followed_and_read, 2),
    ]
} | {
    "counted": (counted, [torch.arange(CLIENTS) + 5, *models(1)]),
    "mixture_with_a_learned_weight": (
        mixture_with_a_learned_weight,
        [numbers(20, CLIENTS, 1, 1), *models(2)],
    ),
    "square_matrices": (square_matrices, [numbers(seed, CLIENTS, INPUTS, INPUTS) for seed in (21, 22)]),
}


# Written with the axis of clients.
OF_STACKS = {"counted", "mixture_with_a_learned_weight", "squared_along_the_anchor", "restarted"}


def replayed(recording: Recording, arguments: Arguments) -> list[Tensor]:
    """One step of a recording."""
    replay = recording.at(arguments.step)
    return replay.step(*arguments.flat(), *replay.share(*arguments.fixed))


def assert_replayed(step: Step, start: list[Tensor], place: int | slice) -> None:
    """Some steps of a recording against the step itself, for some of the clients."""

    def chosen(leaves: list[Tensor]) -> list[Tensor]:
        return [leaf[place].clone() if len(leaf) == CLIENTS else leaf.clone() for leaf in leaves]

    fixed, expected, ours = chosen(fixed_arguments()), chosen(start), chosen(start)
    recording = None
    for number in range(STEPS):
        batch, step_number = chosen(drawn(number)), torch.tensor(number)
        arguments = Arguments(ours, fixed, batch, step_number)
        recording = recording or record(step, arguments)
        expected = step(Arguments(expected, chosen(fixed_arguments()), chosen(drawn(number)), step_number))
        ours = replayed(recording, arguments)
        torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-13)
        for kept, original in zip(
            (*fixed, *batch), chosen([*fixed_arguments(), *drawn(number)]), strict=True
        ):
            assert torch.equal(kept, original)


@pytest.mark.parametrize("case", CASES)
def test_replaying_is_the_step_itself(case: str) -> None:
    assert_replayed(*CASES[case], slice(None))


@pytest.mark.parametrize("case", sorted(CASES.keys() - OF_STACKS))
def test_a_client_alone_is_replayed_without_an_axis_of_clients(case: str) -> None:
    assert_replayed(*CASES[case], 1)


def test_a_second_round_does_not_know_the_first() -> None:
    """What steps share belongs to one round: with other fixed arguments it is another."""
    recording = None
    for seed in (10, 50):
        fixed = [numbers(seed, CLIENTS, OUTPUTS, INPUTS), *fixed_arguments()[1:]]
        expected = ours = models(1)
        ours = [leaf.clone() for leaf in ours]
        for number in range(3):
            arguments = Arguments(ours, fixed, drawn(number), torch.tensor(number))
            recording = recording or record(pulled_and_corrected, arguments)
            expected = pulled_and_corrected(arguments._replace(changing=expected))
            ours = replayed(recording, arguments)
        torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-13)


def full_passes(case: str) -> list[str]:
    """The operations of a later step that go over whole models."""
    step, start = CASES[case]
    arguments = Arguments([leaf.clone() for leaf in start], fixed_arguments(), drawn(0), torch.tensor(0))
    graph = record(step, arguments).later.step.__self__.graph  # type: ignore[attr-defined]
    sizes = {node: getattr(node.meta.get("tensor_meta"), "shape", None) for node in graph.nodes}
    return sorted(
        getattr(node.target, "overloadpacket", node.target).__name__
        for node, size in sizes.items()
        if node.op == "call_function" and size == (CLIENTS, OUTPUTS, INPUTS)
    )


@pytest.mark.parametrize(
    ("case", "operations"),
    [
        ("descent", ["baddbmm_"]),
        ("masked_on_both_sides", ["baddbmm_"]),
        ("mixture", ["baddbmm_", "baddbmm_"]),
        ("mixture_with_a_learned_weight", ["baddbmm_", "baddbmm_"]),
        ("two_parts_with_one_gradient", ["add", "baddbmm_", "baddbmm_"]),
        ("inner_steps", ["add", "add_", "baddbmm_", "lerp_"]),
        ("inner_steps_of_each_client", ["addcmul_", "baddbmm_", "lerp_", "mul_"]),
        ("steps_there_and_back", ["baddbmm_", "baddbmm_"]),
        ("pulled_and_corrected", ["add_", "baddbmm_", "lerp_"]),
        ("pulled_to_multiples", ["add_", "baddbmm_", "lerp_"]),
        ("followed_for_a_while", ["baddbmm_", "replace_if"]),
    ],
)
def test_updates_are_made_in_few_passes(case: str, operations: list[str]) -> None:
    assert full_passes(case) == operations


def loss_of_a_small_network(w: list[Tensor], x: Tensor) -> Tensor:
    """A convolution, which has several results, pooled; then a linear layer."""
    kernel, weight = w
    pooled = torch.nn.functional.max_pool2d(torch.nn.functional.conv2d(x, kernel), 2)
    return torch.nn.functional.linear(pooled.flatten(1), weight).square().sum()


def test_loss_and_gradient_of_a_client_alone_share_the_forward_pass() -> None:
    def step(a: Arguments) -> list[Tensor]:
        *w, _ = a.changing
        slopes = torch.func.grad(loss_of_a_small_network)(w, *a.drawn)
        moved = [v - RATE * slope for v, slope in zip(w, slopes, strict=True)]
        return [*moved, loss_of_a_small_network(w, *a.drawn)]

    start = [numbers(1, 2, 1, 2, 2), numbers(2, 3, 8), torch.tensor(0.0, dtype=torch.float64)]
    arguments = Arguments(start, [], [numbers(3, ROWS, 1, 5, 5)], torch.tensor(0))
    expected = step(arguments)
    recording = record(step, arguments)
    code = recording.first.step.__self__.code  # type: ignore[attr-defined]
    assert code.count("aten.convolution.default") == 1
    assert code.count("aten.addmm_.default") == 1  # the linear layer's update, with no pass besides
    torch.testing.assert_close(replayed(recording, arguments), expected, rtol=1e-12, atol=1e-13)
