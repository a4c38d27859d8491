"""A rewritten step that is wrong is found in the run that it would spoil; one that is right is left alone."""

import logging
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import Graph, Node

from engines.test_equality import assert_equal_runs, federation
from idiolect import models
from idiolect.core.method import Method
from idiolect.core.rng import uniform
from idiolect.engines import local_work
from idiolect.engines.compiler import (
    common,
    compiler,
    doubt,
    fuse,
    hoist,
    in_place,
    linear,
    passes,
    products,
    simplify,
)
from idiolect.engines.compiler.recorder import Arguments
from idiolect.engines.compiler.warrant import unexplained_difference
from idiolect.methods.additive import Additive
from idiolect.methods.apfl import APFL
from idiolect.methods.fedavg import FedAvg
from idiolect.methods.pfedme import PFedMe
from idiolect.methods.scaffold import Scaffold
from idiolect.runs.config import resolve
from idiolect.runs.lifecycle import continue_run, find_run, start_or_continue
from idiolect.runs.settings import read_settings
from idiolect.runs.setup import build_simulation, load_federation
from idiolect.simulation import Simulation


def settled_the_wrong_way_round(step: Node, *, first: bool) -> None:
    simplify.settle_step_tests(step, first=not first)


def numbers_do_not_matter(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(numbers_do_not_matter(entry) for entry in value)
    return value if isinstance(value, Node) else type(value).__name__


def turned_and_scaled(graph: Graph, matrices: Node) -> Node:
    turned = products.call(graph, torch.ops.aten.transpose.int, matrices, 1, 2)
    return products.call(graph, torch.ops.aten.mul.Tensor, turned, 1.5)


aten = torch.ops.aten

# Of each pass one line, broken as a slip would break it: where, what stands there instead, and a method whose
# step goes through that line.
SLIPS: dict[str, tuple[ModuleType, str, Any, Method]] = {
    "settle": (passes, "settle_step_tests", settled_the_wrong_way_round, APFL(local_steps=3)),
    "simplify": (simplify, "is_like", lambda one, _: isinstance(one, Node), FedAvg(local_steps=3)),
    "common": (common, "_hashable", numbers_do_not_matter, Additive(personal_rate=0.02, local_steps=3)),
    "shrink": (products, "_turned", turned_and_scaled, APFL(local_steps=3)),
    "distribute": (
        products, "operands", lambda node: (*node.args[1::-1], *node.args[2:]), PFedMe(local_steps=3)
    ),
    "combine": (linear, "_times", lambda graph, *both: linear._plus(graph, *both), PFedMe(local_steps=3)),
    "hoist": (hoist, "reversed", list, Scaffold(local_steps=3)),
    "fuse": (fuse, "SUMS", dict.fromkeys(fuse.SUMS, 1.0), FedAvg(local_steps=3)),
    "in-place": (
        in_place,
        "IN_PLACE",
        in_place.IN_PLACE | {aten.relu.default: aten.abs_.default},
        FedAvg(local_steps=3),
    ),
    # It writes where a view still reads, which changes nothing as long as two models are the same.
    "in-place, later": (in_place, "owner", lambda node: node, APFL(local_steps=3)),
}  # fmt: skip


def test_every_pass_has_a_slip() -> None:
    assert {name.split(",")[0] for name in SLIPS} == passes.PASSES.keys()


def run(method: Method, engine: Any = "vectorised", rounds: int = 2) -> Simulation:
    """Layers that are larger than a batch, for there passes have most to do."""
    torch.manual_seed(0)
    module = models.Perceptron(30, 4, (24,))
    data = federation((30,), codes=False)
    return Simulation(method, module, data, batch_size=2, dtype=torch.float64, engine=engine).play(rounds)


@pytest.mark.parametrize("name", SLIPS)
def test_a_broken_pass_is_caught_in_a_run(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place, attribute, slip, method = SLIPS[name]
    expected = run(method, "sequential")
    monkeypatch.setattr(place, attribute, slip, raising=False)
    with caplog.at_level(logging.WARNING, logger="idiolect"):
        actual = run(method)
    (message,) = caplog.messages
    assert "rewritten local step" in message
    assert message.endswith("the run goes on with plain steps")
    assert_equal_runs(expected, actual, 1e-9)


def test_a_pass_that_cannot_cope_leaves_the_plain_step(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(products, "_is_transposition", lambda _: True)
    with caplog.at_level(logging.WARNING, logger="idiolect"):
        actual = run(PFedMe(local_steps=3))
    assert caplog.messages == [
        "a step cannot be recorded, so it is computed as it is written (tuple index out of range)"
    ]
    assert_equal_runs(run(PFedMe(local_steps=3), "sequential"), actual, 1e-9)


def test_what_goes_wrong_later_is_found_by_the_checks_of_the_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A model that computes something else from some moment on, which a recording cannot know."""
    monkeypatch.setattr(local_work, "CHECKED_ONE_IN", 4)

    class Changing(nn.Module):
        factor = 1.0

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(30, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.factor * self.linear(x)

    data = federation((30,), codes=False)
    simulation = Simulation(FedAvg(local_steps=2), Changing(), data, batch_size=2).play(2)
    assert not caplog.messages
    monkeypatch.setattr(Changing, "factor", 2.0)
    rounds = [simulation.advance() for _ in range(20)]
    assert sum(len(result.doubts) for result in rounds) == 1
    assert len(caplog.messages) == 1


def corrected(a: Arguments) -> list[Tensor]:
    (w,), (correction,), (x,) = a.changing, a.fixed, a.drawn
    return [w - 0.1 * (x + correction.sin())]


def first_step() -> Arguments:
    """Arguments that a step may use up."""
    return Arguments([torch.ones(3)], [torch.zeros(3)], [torch.ones(3)], torch.tensor(0))


def without_sums(graph: Graph) -> None:
    for node in graph.find_nodes(op="call_function", target=aten.add.Tensor):
        node.replace_all_uses_with(node.args[0])


def spoils_what_is_shared(graph: Graph, changing: Any) -> None:
    for node in graph.find_nodes(op="call_function", target=aten.add.Tensor):
        node.target, node.args = aten.add_.Tensor, node.args[::-1]


@pytest.mark.parametrize(
    ("name", "slip", "finding"),
    [
        ("remove_identities", without_sums, "result 0 of a rewritten local step differs"),
        ("overwrite_what_is_used_up", spoils_what_is_shared, "fails: it writes into what later steps read"),
    ],
)
def test_a_first_step_is_special_so_it_is_not_all_that_is_compared(
    name: str, slip: Any, finding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A correction that is still zero may be forgotten, or spoiled for the steps after this one."""
    monkeypatch.setattr(passes, name, slip)
    rewriting = compiler.Compiler()
    steps = rewriting.steps("signature", corrected, first_step())
    (after,) = steps.take(first_step(), 0, is_checked=False)
    assert after.allclose(torch.full((3,), 0.9))
    (found,) = rewriting.doubts
    assert finding in found.sentence


def test_a_step_need_not_be_defined_for_other_arguments(caplog: pytest.LogCaptureFixture) -> None:
    def root(a: Arguments) -> list[Tensor]:
        if a.fixed[0].max() > 0:
            raise ValueError("this cannot be")
        return corrected(a)

    rewriting = compiler.Compiler(())
    rewriting.steps("signature", root, first_step()).take(first_step(), 0, is_checked=True)
    assert not rewriting.doubts


def test_after_a_doubt_in_another_thread_steps_are_plain() -> None:
    rewriting = compiler.Compiler()
    mine, other = (rewriting.steps("signature", corrected, first_step()) for _ in range(2))
    mine.take(first_step(), 0, is_checked=False)
    wrong = first_step()._replace(changing=[torch.tensor([3.0])])
    rewriting._doubt(corrected, first_step(), "wrong", [], [])
    plain = corrected(wrong)
    assert other.take(wrong, 0, is_checked=False)[0].equal(plain[0])


@pytest.mark.parametrize("error", [RuntimeError, IndexError, TypeError, ZeroDivisionError])
def test_a_rewritten_step_that_fails_in_whatever_way_leaves_the_plain_one(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> Any:
        raise error("cannot do this. Please file an issue.")

    def failing(graph: Graph) -> None:
        for node in graph.find_nodes(op="call_function", target=aten.sub.Tensor):
            node.target = fails

    monkeypatch.setattr(passes, "fuse_updates", failing)
    rewriting = compiler.Compiler()
    (after,) = rewriting.steps("signature", corrected, first_step()).take(first_step(), 0, is_checked=False)
    assert after.allclose(torch.full((3,), 0.9))
    assert [found.sentence for found in rewriting.doubts] == ["a rewritten local step fails: cannot do this"]


def test_a_doubt_is_kept_in_the_runs_folder_and_the_run_goes_on_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {
        "method": {"name": "fedavg", "local_steps": 3},
        "data": {"name": "vowels"},
        "model": {"name": "mlp", "hidden": [12]},
        "rounds": 4,
        "dtype": "float64",
        "checkpoint": {"every": 1},
    }
    right = start_or_continue(resolve({**settings, "out": str(tmp_path / "right")}))
    monkeypatch.setattr(fuse, "SUMS", dict.fromkeys(fuse.SUMS, 1.0))

    class Killed(Exception):  # noqa: N818  (what stops a run in the middle)
        pass

    class Killer:
        def played(self, round_number: int) -> None:
            if round_number == 2:
                raise Killed

        def evaluated(self, round_number: int, metrics: Any) -> None:
            pass

    config = resolve({**settings, "out": str(tmp_path / "wrong")})
    with pytest.raises(Killed):
        start_or_continue(config, lambda _: [Killer()])
    folder = continue_run(find_run(config))  # type: ignore[arg-type]
    assert folder.config.engine.optimise is False
    torch.testing.assert_close(
        torch.tensor(folder.metrics()["value"].to_numpy()),
        torch.tensor(right.metrics()["value"].to_numpy()),
        rtol=1e-9,
        atol=1e-9,
    )
    (kept,) = (folder.path / "doubts").iterdir()
    found = doubt.reproduce(kept)
    assert {name for name, finding in found.items() if finding} == {"up to fuse", "up to in-place"}
    assert "rewritten local step" in (folder.path / "log.txt").read_text()
    monkeypatch.setattr(sys, "argv", ["doubt", str(kept)])
    doubt.main()
    assert "fuse        result 0 of a rewritten local step differs" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["doubt", str(folder.path)])
    with pytest.raises(SystemExit, match=r"give one folder with a doubt\.json"):
        doubt.main()


def test_a_run_can_be_had_without_rewriting(tmp_path: Path) -> None:
    settings = ["method=fedavg", "data=vowels", "rounds=1", "engine.optimise=false"]
    config = resolve(read_settings([*settings, f"out={tmp_path / 'plain'}"]))
    simulation = build_simulation(config, load_federation(config))
    assert simulation.engine._compiler is None  # type: ignore[attr-defined]
    assert start_or_continue(config).config.engine.optimise is False


def numbers(seed: int, *shape: int) -> Tensor:
    return (uniform(torch.tensor(seed), *shape) - 0.4).float()


def descent(a: Arguments) -> list[Tensor]:
    (w,), (x, y) = a.changing, a.drawn
    return [w - 0.01 * (x @ w - y).mT @ x]


ARGUMENTS = Arguments([numbers(1, 50, 50)], [], [numbers(2, 9, 50), numbers(3, 9, 50)], torch.tensor(0))


def test_other_orders_of_adding_are_explained_and_a_wrong_gradient_is_not() -> None:
    (w,), (x, y) = ARGUMENTS.changing, ARGUMENTS.drawn
    expected = descent(ARGUMENTS)
    in_parts = [w - (0.01 * x.mT @ (x @ w)).mT + (0.01 * y.mT) @ x]
    assert unexplained_difference(descent, ARGUMENTS, expected, in_parts) is None
    slightly_wrong = [w + 1.001 * (expected[0] - w)]
    assert unexplained_difference(descent, ARGUMENTS, expected, slightly_wrong) is not None


def test_cancellation_explains_what_it_causes() -> None:
    """Large numbers whose small difference is all that is left: seven digits become three."""
    (small,) = ARGUMENTS.changing

    def remainder(a: Arguments) -> list[Tensor]:
        return [a.changing[0] - 1e4]

    arguments = ARGUMENTS._replace(changing=[small + 1e4])
    expected = remainder(arguments)
    assert (small - expected[0]).norm() > 1e-4 * small.norm()
    assert unexplained_difference(remainder, arguments, expected, [small]) is None
    assert unexplained_difference(remainder, arguments, expected, [2 * small]) is not None


def test_a_kink_explains_what_it_causes() -> None:
    """At an exact tie any of the two is the largest; a few roundings away too."""

    def largest(a: Arguments) -> list[Tensor]:
        (w,) = a.changing
        return [(w == w.amax(-1, keepdim=True)).float()]

    tied = torch.ones(40, 2)
    arguments = ARGUMENTS._replace(changing=[tied])
    other = torch.tensor([1.0, 0.0]).expand(40, 2)
    assert unexplained_difference(largest, arguments, largest(arguments), [other]) is None
    apart = ARGUMENTS._replace(changing=[tied + torch.tensor([0.0, 0.1])])
    assert unexplained_difference(largest, apart, largest(apart), [other]) is not None


def test_whole_numbers_are_exact_and_what_is_not_finite_says_nothing() -> None:
    def count(a: Arguments) -> list[Tensor]:
        return [a.changing[0] + 1]

    arguments = ARGUMENTS._replace(changing=[torch.tensor([2**40])])
    assert unexplained_difference(count, arguments, count(arguments), [torch.tensor([2**40 + 2])]) is not None
    endless = ARGUMENTS._replace(changing=[torch.tensor([torch.inf])])
    assert unexplained_difference(count, endless, count(endless), [torch.tensor([0.0])]) is None
    finite = ARGUMENTS._replace(changing=[torch.tensor([1.0])])
    assert unexplained_difference(count, finite, count(finite), [torch.tensor([torch.nan])]) is not None


def test_what_is_finite_is_compared_beside_what_is_not() -> None:
    """A client that has diverged, or a best value so far that starts at infinity, hides nothing."""

    def count(a: Arguments) -> list[Tensor]:
        return [a.changing[0] + 1]

    arguments = ARGUMENTS._replace(changing=[torch.tensor([torch.inf, 1.0])])
    right, wrong = torch.tensor([torch.inf, 2.0]), torch.tensor([torch.inf, 2.1])
    assert unexplained_difference(count, arguments, count(arguments), [right]) is None
    assert unexplained_difference(count, arguments, count(arguments), [wrong]) is not None
