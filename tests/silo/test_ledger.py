"""A silo's ledger: what answers cost, over runs, restarts and repetitions; and where the silo stops."""

import json
import math
import stat
from pathlib import Path

import pytest

from cli.test_bad_inputs import invoke, refused, told
from idiolect.errors import UserError
from idiolect.privacy.accounting import Release, epsilon_of
from idiolect.privacy.settings import RowPrivacy
from idiolect.silo.privacy.account import Account
from idiolect.silo.privacy.demands import Demands
from idiolect.silo.privacy.ledger import ALL_THAT_THERE_IS, Ledger, Unit, epsilon_in_all
from idiolect.silo.privacy.statement import statement_of

DELTA = 1e-5
STEP = {Release(1.3, 0.1): 20}
SUM = {Release(4.0): 1}


def account(folder: Path, run: str, unit: Unit | None = "row", **demands: object) -> Account:
    return Account(Ledger(folder), Demands(**demands), run, unit)  # type: ignore[arg-type]


def epsilon(folder: Path, unit: Unit) -> float:
    return epsilon_in_all(Ledger(folder).runs, unit, DELTA)


def test_answers_compose_over_messages_and_runs(tmp_path: Path) -> None:
    for run, message in (("a", "1"), ("a", "2"), ("b", "1")):
        account(tmp_path, run).pay(message, STEP, "round 1")
    assert epsilon(tmp_path, "row") == epsilon_of({Release(1.3, 0.1): 60}, DELTA)
    assert epsilon(tmp_path, "silo") == math.inf


def test_the_same_message_costs_nothing_again(tmp_path: Path) -> None:
    for _ in range(3):
        account(tmp_path, "a").pay("1", STEP, "round 1")
    assert epsilon(tmp_path, "row") == epsilon_of(STEP, DELTA)


@pytest.mark.parametrize("rate", [1.0, 0.5])
@pytest.mark.parametrize("noise", [1e-12, 1e-160, 5e-324])
def test_noise_that_hides_nothing_is_beyond_every_budget(noise: float, rate: float, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="more than this silo's budget"):
        account(tmp_path, "a", epsilon=100.0).pay("1", {Release(noise, rate): 1}, "round 1")
    assert not Ledger(tmp_path).path.exists()


def test_a_name_is_not_taken_again_for_a_run_that_hides_something_else(tmp_path: Path) -> None:
    """What silo noise cost would count as if rows had had it."""
    account(tmp_path, "a", "silo").pay("1", SUM, "round 1")
    with pytest.raises(UserError, match="a run needs a name of its own"):
        account(tmp_path, "a").opened(RowPrivacy(noise=1.0))
    account(tmp_path, "b").opened(RowPrivacy(noise=1.0))


def test_a_row_pays_for_sums_with_half_of_the_noise(tmp_path: Path) -> None:
    """Of two uploads of length C the difference may be as long as 2C; of one and none it is C."""
    account(tmp_path, "a", "silo").pay("1", SUM, "round 1")
    assert epsilon(tmp_path, "silo") == epsilon_of(SUM, DELTA)
    assert epsilon(tmp_path, "row") == epsilon_of({Release(2.0): 1}, DELTA)
    account(tmp_path, "b", "row").pay("1", STEP, "round 1")
    assert epsilon(tmp_path, "row") == epsilon_of({Release(2.0): 1, **STEP}, DELTA)
    assert epsilon(tmp_path, "silo") == math.inf


def test_an_answer_without_noise_costs_everything_and_one_without_content_nothing(tmp_path: Path) -> None:
    account(tmp_path, "a", None).pay("1", {}, "round 1")
    assert not Ledger(tmp_path).path.exists()
    account(tmp_path, "a", None).pay("2", ALL_THAT_THERE_IS, "round 2")
    assert epsilon(tmp_path, "row") == epsilon(tmp_path, "silo") == math.inf


def test_it_is_readable_by_its_owner_only_and_has_a_format(tmp_path: Path) -> None:
    account(tmp_path, "a").pay("1", STEP, "round 1")
    path = tmp_path / "ledger.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    content = json.loads(path.read_text())
    assert content["format"] == "idiolect-ledger-1"
    path.write_text(json.dumps({**content, "format": "idiolect-ledger-2"}))
    with pytest.raises(UserError, match="is not a ledger of the format idiolect-ledger-1"):
        account(tmp_path, "a").pay("2", STEP, "round 2")


def test_a_budget_over_many_runs_and_restarts(tmp_path: Path) -> None:
    """Twenty runs of one message each: it stops at the one that would exceed the budget."""
    most = epsilon_of({Release(1.3, 0.1): 20 * 7}, DELTA)
    for run in range(7):
        account(tmp_path, f"run-{run}", epsilon=most).pay("1", STEP, "round 1")
    for run in range(7, 20):
        with pytest.raises(UserError, match="round 1 would spend more than this silo's budget"):
            account(tmp_path, f"run-{run}", epsilon=most).pay("1", STEP, "round 1")
    assert epsilon(tmp_path, "row") == most
    account(tmp_path, "run-3", epsilon=most).pay("1", STEP, "round 1")  # what is paid for is answered again


def test_what_was_spent_without_noise_leaves_nothing(tmp_path: Path) -> None:
    account(tmp_path, "a", None).pay("1", ALL_THAT_THERE_IS, "round 1")
    with pytest.raises(UserError, match="would spend more than this silo's budget"):
        account(tmp_path, "b", epsilon=1000.0).pay("1", STEP, "round 1")


@pytest.mark.parametrize(
    ("demands", "unit", "reason"),
    [
        (Demands(unit="row"), None, "takes part in private runs only (--require-private row)"),
        (Demands(epsilon=3.0), None, "takes part in private runs only (--max-epsilon 3)"),
        (
            Demands(unit="silo"),
            "row",
            "hides rows, and this silo is to be hidden as a whole",
        ),
        (Demands(unit="silo"), None, "set privacy.unit: silo"),
        (Demands(unit="row"), "row", None),
        (Demands(unit="row"), "silo", None),
        (Demands(unit="silo"), "silo", None),
        (Demands(), None, None),
    ],
)
def test_demands(demands: Demands, unit: Unit | None, reason: str | None) -> None:
    if reason is None:
        demands.admit(unit)
        return
    with pytest.raises(UserError) as refusal:
        demands.admit(unit)
    assert reason in str(refusal.value)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"unit": "table"}, "--require-private table is not possible: it is row or silo"),
        ({"epsilon": 0.0}, "--max-epsilon 0 is not possible"),
        ({"epsilon": math.inf}, "--max-epsilon inf is not possible"),
        ({"epsilon": math.nan}, "--max-epsilon nan is not possible"),
        ({"delta": 1.0}, "--delta 1 is not possible: it must be between 0 and 1"),
    ],
)
def test_demands_that_make_no_sense(options: dict[str, object], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        Demands(**options)  # type: ignore[arg-type]


def test_the_statement(tmp_path: Path) -> None:
    account(tmp_path, "a", "silo").pay("1", SUM, "round 1")
    account(tmp_path, "a", "silo").pay("2", SUM, "round 2")
    account(tmp_path, "b", "row").pay("1", STEP, "round 1")
    statement = statement_of(Ledger(tmp_path), DELTA)
    assert [(line.run, line.hides, line.answers) for line in statement.runs] == [
        ("a", "silo", 2),
        ("b", "row", 1),
    ]
    assert statement.runs[0].silo == epsilon_of({Release(4.0): 2}, DELTA)
    assert statement.in_all.row == epsilon_of({Release(2.0): 2, **STEP}, DELTA)
    assert statement.in_all.answers == 3
    with pytest.raises(UserError, match=r"has no ledger.json; give a silo's state folder"):
        statement_of(Ledger(tmp_path / "elsewhere"), DELTA)
    with pytest.raises(UserError, match="--delta 2 is not possible"):
        statement_of(Ledger(tmp_path), 2.0)


JOIN = "join --server 127.0.0.1:9092 --insecure --name north --data my.csv"
REFUSED = [
    (f"{JOIN} --max-epsilon 0", "--max-epsilon 0 is not possible: it must be above 0"),
    (f"{JOIN} --delta 1", "--delta 1 is not possible: it must be between 0 and 1"),
    (f"{JOIN} --require-private table", "--require-private table is not possible: it is row or silo"),
    ("silo ledger nowhere", "'nowhere' has no ledger.json; give a silo's state folder"),
]


@pytest.mark.parametrize(("command", "sentence"), REFUSED)
def test_mistakes_are_told_in_one_line(
    command: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = invoke(command)
    assert refused(result, sentence)
    told(command, result.stderr.strip(), tmp_path)
