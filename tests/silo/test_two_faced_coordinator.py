"""A coordinator that asks silos different things gets no secure sum of them.

If all uploads but one can be foreseen, as those of silos that were sent a model on which training stands
still, that did no step, or whose frozen part makes nothing of their rows, the sum shows the one that is left.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from idiolect.core import tree
from idiolect.errors import UserError
from idiolect.silo.requests import Unreachable
from idiolect.silo.served_run import ServedRun
from idiolect.silo.service import Silo
from idiolect.silo.wire import pack, unpack
from silo.letters import answer, asked, changed, refusal
from silo.problem import SILOS, Direct, config, deployed
from silo.secure_problem import serve, with_keys

FEDAVG = {"name": "fedavg", "local_steps": 2, "incomplete": "drop"}
VICTIM, *OTHERS = SILOS


class _Noting(Direct):
    """A link that notes what each silo is sent."""

    def __init__(self, silos: Mapping[str, Silo]) -> None:
        super().__init__(silos)
        self.sent: dict[str, list[bytes]] = {name: [] for name in silos}

    def ask(self, requests: Mapping[str, bytes], seconds: float) -> Iterator[tuple[str, bytes | Unreachable]]:
        for name, message in requests.items():
            self.sent[name].append(message)
        return super().ask(requests, seconds)


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, tuple[bytes, ...]]]:
    """The folder of an honest run's keys, and what its coordinator sent to each silo."""
    folder = tmp_path_factory.mktemp("honest")
    link = _Noting(with_keys(folder, SILOS))
    settings = config(FEDAVG, rounds=1, train="head", participation={"work": 0.9})
    serve(ServedRun.create(folder / "run", deployed(settings, folder, secure=True)), link, folder)
    return folder, {name: tuple(messages) for name, messages in link.sent.items()}


def half_of(message: bytes, part: str) -> bytes:
    """The same with other numbers in one of its trees."""
    content = unpack(message).trees[part]
    return changed(message, {part: tree.map_tree(lambda leaf: leaf / 2, content)})


class Asked:
    """Silos that are asked what an honest coordinator asks, or something else."""

    def __init__(self, honest: Any, folder: Path) -> None:
        keys, self.letters = honest
        (folder / "keys").symlink_to(keys / "keys")
        self.silos = with_keys(folder, SILOS)

    def letter(self, name: str, what: str) -> bytes:
        return asked(self.letters[name], what)

    def keys(self, name: str, message: bytes) -> dict[str, Any]:
        header = answer(self.silos[name], message).header
        assert "keys" in header, header
        return dict(header["keys"])

    def share(self, name: str, what: str, keys: dict[str, Any]) -> bytes:
        """The next question of the sum that work or an evaluation began."""
        header = unpack(self.letter(name, "sum")).header
        begun = unpack(self.letter(name, what)).header
        place = {"work": "work/0/0", "evaluate": "evaluate/0"}[what]
        label = f"{header['run']}/{place}"
        return pack({**begun, "ask": "sum", "sum": label, "stage": "share", "keys": keys})


CHANGES: dict[str, tuple[str, Any]] = {
    "frozen part": ("hello", lambda message: half_of(message, "weights")),
    "model": ("work", lambda message: half_of(message, "down")),
    "no step": ("work", lambda message: changed(message, work=0.1)),
    "brief": ("evaluate", lambda message: half_of(message, "brief")),
}


@pytest.mark.parametrize("change", [None, *CHANGES])
def test_silos_that_were_asked_different_things_are_not_summed(
    change: str | None, honest: Any, tmp_path: Path
) -> None:
    them = Asked(honest, tmp_path)
    altered, alter = CHANGES.get(change or "", ("nothing", None))
    what = "evaluate" if altered == "evaluate" else "work"
    keys = {}
    for name in SILOS:
        letters = {kind: them.letter(name, kind) for kind in ("hello", what)}
        if name in OTHERS and altered in letters:
            letters[altered] = alter(letters[altered])
        assert "refused" not in answer(them.silos[name], letters["hello"]).header
        keys[name] = them.keys(name, letters[what])
    question = them.share(VICTIM, what, keys)
    if change is None:
        assert answer(them.silos[VICTIM], question).header["boxes"].keys() == set(OTHERS)
    else:
        assert "did not sign what is said to be its keys" in refusal(them.silos[VICTIM], question)


@pytest.mark.parametrize("what", ["work", "evaluate"])
def test_a_first_state_follows_from_what_was_agreed(what: str, honest: Any, tmp_path: Path) -> None:
    them = Asked(honest, tmp_path)
    answer(them.silos[VICTIM], them.letter(VICTIM, "hello"))
    question = them.letter(VICTIM, what)
    assert "not the one that follows" in refusal(them.silos[VICTIM], half_of(question, "first"))
    assert "keys" in answer(them.silos[VICTIM], question).header


@pytest.mark.parametrize("work", ["uniform", "speed"])
def test_different_work_of_silos_is_refused_before_anybody_is_greeted(work: str, tmp_path: Path) -> None:
    them = with_keys(tmp_path, SILOS)
    settings = config(FEDAVG, participation={"work": work})
    run = ServedRun.create(tmp_path / "run", deployed(settings, tmp_path, secure=True))
    with pytest.raises(UserError, match="different parts of their work"):
        serve(run, Direct(them), tmp_path)
