"""What a coordinator gets of silos that hide their rows: noise that it cannot take off, however it asks."""

import json
import random
import secrets
import shutil
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.privacy.accounting import Release, epsilon_of
from idiolect.silo.engagement import Engagement
from idiolect.silo.privacy.demands import Demands
from idiolect.silo.privacy.ledger import Ledger, epsilon_in_all
from idiolect.silo.privacy.protection import Protection
from idiolect.silo.service import Silo
from idiolect.silo.wire import unpack
from silo.letters import answer, asked, changed, north, refusal, sent_in
from silo.problem import config, simulate

DELTA = 1e-5
# One step on all rows: w - (rate / rows) (sum of clipped gradients + noise).
ONE_STEP = {"name": "fedavg", "local_steps": 1, "learning_rate": 0.5}
NOISE, CLIP = 2.0, 0.8


def settings(noise: float = NOISE, clip: float = CLIP, **options: Any) -> dict[str, Any]:
    privacy = {"unit": "row", "noise": noise, "clip": clip}
    return config(ONE_STEP, rounds=3, **{"batch_size": "all", "privacy": privacy, **options})


@cache
def letters(noise: float = NOISE, clip: float = CLIP) -> tuple[bytes, ...]:
    return sent_in(settings(noise, clip))


def agreed(folder: Path, messages: tuple[bytes, ...], **options: Any) -> Silo:
    silo = north(folder, **options)
    assert "refused" not in answer(silo, asked(messages, "hello")).header
    return silo


def flat(content: Any) -> Tensor:
    return torch.cat([leaf.double().reshape(-1) for leaf in tree.leaves(content)])


def upload(silo: Silo, message: bytes) -> Tensor:
    return flat(answer(silo, message).trees["upload"])


def noise_by_the_seed() -> Tensor:
    """What a coordinator computes that knows the seed and how many rows there are: noise needs no rows."""
    with_noise, without = (
        simulate(settings(noise), data="at-silos").play(1).clients() for noise in (NOISE, 0.0)
    )
    return flat(tree.row(with_noise, 0)) - flat(tree.row(without, 0))


@pytest.fixture(autouse=True)
def same_secrets_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise is held to bounds here, which a new secret each time would break once in a hundred times."""
    monkeypatch.setattr(secrets, "token_bytes", random.Random(5).randbytes)


def upload_without_noise(folder: Path) -> Tensor:
    messages = letters(noise=0.0)
    return upload(agreed(folder, messages), asked(messages, "work"))


def test_whoever_knows_the_seed_takes_public_noise_off_and_secret_noise_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = upload_without_noise(tmp_path / "without")
    secret = upload(agreed(tmp_path / "secret", letters()), asked(letters(), "work"))
    monkeypatch.setattr(Protection, "own_randomness", lambda *_: nullcontext())
    public = upload(agreed(tmp_path / "public", letters()), asked(letters(), "work"))
    guess = noise_by_the_seed()
    torch.testing.assert_close(public - guess, exact, rtol=0, atol=1e-9)
    deviation = 0.5 * NOISE * CLIP / 12  # the rate, and north's training rows
    assert (public - exact).std() == pytest.approx(deviation, rel=0.4)
    assert (secret - guess - exact).std() == pytest.approx(2**0.5 * deviation, rel=0.4)


def test_the_same_message_has_the_same_noise_also_after_a_restart(tmp_path: Path) -> None:
    """Noise of repeated answers cannot be averaged away."""
    silo, work = agreed(tmp_path, letters()), asked(letters(), "work")
    first = silo.answer(work)
    assert silo.answer(work) == first
    assert north(tmp_path).answer(work) == first


def test_another_message_has_other_noise(tmp_path: Path) -> None:
    """After `silo back` a round is played again: with the same noise the difference would have none."""
    messages = letters(noise=1e8, clip=1e-8)  # nearly nothing but noise
    silo, work = agreed(tmp_path, messages), asked(messages, "work")
    down = unpack(work).trees["down"]
    first = upload(silo, work) - flat(down)
    silo._engagement(unpack(work).header["run"]).vault.go_back(0)
    moved = tree.map_tree(lambda leaf: leaf + 0.1, down)
    second = upload(silo, changed(work, {"down": moved})) - flat(moved)
    deviation = float(first.std())
    assert deviation > 0.01
    assert (first - second).std() == pytest.approx(2**0.5 * deviation, rel=0.4)


def test_the_same_message_in_another_state_has_other_noise(tmp_path: Path) -> None:
    """Back to the beginning, another first round, and then the second one as before: it is paid for again."""
    apfl = {"name": "apfl", "local_steps": 1}
    messages = sent_in({**settings(noise=1e8, clip=1e-8), "method": apfl})
    silo, work = agreed(tmp_path, messages), [asked(messages, "work", number) for number in range(2)]
    upload(silo, work[0])
    first = upload(silo, work[1])
    silo._engagement(unpack(work[0]).header["run"]).vault.go_back(0)
    moved = tree.map_tree(lambda leaf: leaf + 0.1, unpack(work[0]).trees["down"])
    upload(silo, changed(work[0], {"down": moved}))
    assert (upload(silo, work[1]) - first).std() > 1e-3  # with the same noise it would be of the clip's size
    assert [len(entry.answers) for entry in Ledger(tmp_path).runs.values()] == [4]


def test_each_silo_and_each_run_has_other_noise(tmp_path: Path) -> None:
    work = asked(letters(), "work")
    one, other = (upload(agreed(tmp_path / name, letters()), work) for name in ("one", "other"))
    assert (one - other).std() > 0.01


# ---- what is paid


def spent(folder: Path) -> float:
    return epsilon_in_all(Ledger(folder).runs, "row", DELTA)


def test_an_answer_is_paid_once(tmp_path: Path) -> None:
    silo = agreed(tmp_path, letters())
    assert spent(tmp_path) == 0
    first, second = asked(letters(), "work", 0), asked(letters(), "work", 1)
    silo.answer(first)
    once = spent(tmp_path)
    assert once == pytest.approx(_one_release(1))
    for _ in range(3):
        silo.answer(first)
        silo = north(tmp_path)
    assert spent(tmp_path) == once
    silo.answer(second)
    assert spent(tmp_path) == pytest.approx(_one_release(2))


def _one_release(times: int) -> float:
    """A Gaussian mechanism on all rows, by the accountant itself."""
    return epsilon_of({Release(NOISE): times}, DELTA)


def test_a_silo_that_is_killed_after_it_has_paid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was paid for stays paid, and is answered when the same message comes again, for nothing."""
    silo, work = agreed(tmp_path, letters()), asked(letters(), "work")

    class PowerCutError(BaseException):
        pass

    def cut(*_: Any) -> None:
        raise PowerCutError

    with monkeypatch.context() as patch:
        patch.setattr(Engagement, "_require_shared", cut)
        with pytest.raises(PowerCutError):
            silo.answer(work)
    paid = spent(tmp_path)
    assert paid == pytest.approx(_one_release(1))
    again = north(tmp_path)
    expected = agreed(tmp_path / "undisturbed", letters())
    secret = next(tmp_path.glob("*/secret")).read_bytes()
    run = unpack(work).header["run"]
    (tmp_path / "undisturbed" / run / "secret").write_bytes(secret)
    assert again.answer(work) == expected.answer(work)
    assert spent(tmp_path) == paid


def test_a_silo_stops_before_the_work_that_would_exceed_its_budget(tmp_path: Path) -> None:
    budget = Demands(epsilon=_one_release(2) + 1e-6, delta=DELTA)
    silo = agreed(tmp_path, letters(), demands=budget)
    works = [asked(letters(), "work", number) for number in range(3)]
    for work in works[:2]:
        assert "refused" not in answer(silo, work).header
    before = {path: path.read_bytes() for path in tmp_path.glob("*/state-*")}
    told = refusal(silo, works[2])
    assert told == "round 3 would spend more than this silo's budget (--max-epsilon): it stops here"
    assert {path: path.read_bytes() for path in tmp_path.glob("*/state-*")} == before
    restarted = north(tmp_path, demands=budget)
    assert refusal(restarted, works[2]) == told
    assert "refused" not in answer(restarted, works[1]).header  # paid for
    assert spent(tmp_path) == pytest.approx(_one_release(2))


def test_a_budget_is_not_renewed_by_another_run(tmp_path: Path) -> None:
    budget = Demands(epsilon=_one_release(2) + 1e-6, delta=DELTA)
    silo = agreed(tmp_path, letters(), demands=budget)
    silo.answer(asked(letters(), "work"))
    for name in ("second", "third"):
        assert "refused" not in answer(silo, changed(asked(letters(), "hello"), run=name)).header
    assert "refused" not in answer(silo, changed(asked(letters(), "work"), run="second")).header
    assert "--max-epsilon" in refusal(silo, changed(asked(letters(), "work"), run="third"))


def test_a_run_without_privacy_is_paid_with_everything(tmp_path: Path) -> None:
    plain = sent_in(config(ONE_STEP, rounds=3))
    silo = agreed(tmp_path, plain)
    assert "refused" not in answer(silo, asked(plain, "work")).header
    assert spent(tmp_path) == float("inf")
    limited = north(tmp_path, demands=Demands(epsilon=50.0))
    assert "takes part in private runs only" in refusal(limited, asked(plain, "hello"))
    assert "refused" not in answer(limited, asked(letters(), "hello")).header
    assert "--max-epsilon" in refusal(limited, asked(letters(), "work"))


# ---- what was agreed binds


@pytest.mark.parametrize("change", [{"noise": 0.1}, {"clip": 100.0}, {"delta": 0.5}, {"unit": "silo"}])
def test_privacy_cannot_be_changed_afterwards(change: dict[str, Any], tmp_path: Path) -> None:
    silo, hello = agreed(tmp_path, letters()), asked(letters(), "hello")
    agreement = unpack(hello).header["config"]
    weaker = {**agreement, "privacy": {**agreement["privacy"], **change}}
    assert "was agreed with another config" in refusal(silo, changed(hello, config=weaker))


def test_privacy_without_noise_is_refused(tmp_path: Path) -> None:
    agreement = unpack(asked(letters(), "hello")).header["config"]
    open_noise = {**agreement, "privacy": {"unit": "row", "epsilon": 3.0, "noise": None}}
    told = refusal(north(tmp_path), changed(asked(letters(), "hello"), config=open_noise))
    assert "says privacy, and no privacy.noise" in told


def test_noise_of_zero_is_no_privacy(tmp_path: Path) -> None:
    """A silo that demands privacy, without saying how much, does not mean none."""
    hello = asked(letters(), "hello")
    agreement = unpack(hello).header["config"]
    without = changed(hello, config={**agreement, "privacy": {**agreement["privacy"], "noise": 0.0}})
    told = refusal(north(tmp_path / "a", demands=Demands(unit="row")), without)
    assert "takes part in private runs only (--require-private row)" in told
    assert "refused" not in answer(north(tmp_path / "b"), without).header


def test_the_secret_is_in_no_answer_and_no_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    silo = agreed(tmp_path, letters())
    answers = b"|".join(silo.answer(message) for message in letters()[1:])
    secret = next(tmp_path.glob("*/secret")).read_bytes()
    told = answers + caplog.text.encode() + (tmp_path / "audit.jsonl").read_bytes()
    assert secret not in told
    assert secret.hex().encode() not in told
    assert json.loads((tmp_path / "ledger.json").read_text())["runs"]


def test_a_run_whose_folder_was_removed_is_paid_for_again(tmp_path: Path) -> None:
    """Its secret is gone with it: two answers to the same question would have different noise."""
    first = upload(agreed(tmp_path, letters()), asked(letters(), "work"))
    run = unpack(asked(letters(), "hello")).header["run"]
    shutil.rmtree(tmp_path / run)
    again = upload(agreed(tmp_path, letters()), asked(letters(), "work"))
    assert not torch.equal(first, again)
    assert len(Ledger(tmp_path).runs[run].answers) == 2
