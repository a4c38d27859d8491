"""What a coordinator gets that asks for more than was agreed: a refusal, and the silo is as before."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from idiolect.core import tree
from idiolect.methods.fedavg import FedAvg
from idiolect.silo.coordinator import coordinate
from idiolect.silo.limits import Limits
from idiolect.silo.serve_settings import serve_settings
from idiolect.silo.served_run import ServedRun
from idiolect.silo.service import Silo
from idiolect.silo.wire import describe_object, pack, unpack
from silo.letters import answer, asked, changed, honest, north, refusal
from silo.problem import LENIENT, Direct, assert_same, config, own_rows

Files = dict[str, bytes]


def kept(folder: Path) -> Files:
    """All that the silo remembers of its runs."""
    return {str(path): path.read_bytes() for path in sorted(folder.glob("*/*")) if path.is_file()}


def agreed(folder: Path, method: str = "apfl", **options: Any) -> Silo:
    """A silo that has agreed to an honest run."""
    silo = north(folder, **options)
    assert "refused" not in answer(silo, asked(honest(method), "hello")).header
    return silo


def crafted(content: Any, factor: float = 7.0) -> Any:
    """A model that nobody trained."""
    return tree.map_tree(lambda leaf: leaf * factor if leaf.is_floating_point() else leaf, content)


# ---- the exchange, its settings, its place


def test_who_agreed_to_local_is_not_asked_for_a_model(tmp_path: Path) -> None:
    silo = agreed(tmp_path, "local")
    down = unpack(asked(honest("fedavg"), "work")).trees
    exchange = describe_object(FedAvg(local_steps=2))
    stolen = changed(asked(honest("local"), "work"), down, exchange=exchange)
    assert "which is no exchange of the agreed method local" in refusal(silo, stolen)


@pytest.mark.parametrize("change", [{"learning_rate": 1e300}, {"learning_rate": 0.2}, {"local_steps": 1}])
def test_hyper_parameters_are_the_agreed_ones(change: dict[str, Any], tmp_path: Path) -> None:
    silo = agreed(tmp_path, "fedavg")
    work = asked(honest("fedavg"), "work")
    exchange = dict(unpack(work).header["exchange"])
    rate = change.get("learning_rate")
    fields = {"learning_rate": {**exchange["fields"]["learning_rate"]}} if rate else {}
    if rate:
        fields["learning_rate"]["fields"] = {
            **fields["learning_rate"]["fields"],
            "initial": rate,
        }
    asks = changed(work, exchange={**exchange, "fields": {**exchange["fields"], **(fields or change)}})
    assert "no exchange of the agreed method fedavg" in refusal(silo, asks)


def test_settings_that_only_the_exchange_has_are_the_agreed_ones_too(tmp_path: Path) -> None:
    """EFL's exchange says whether Fisher terms are reported in this round, which no setting of EFL does."""
    silo = agreed(tmp_path, "efl")
    work = asked(honest("efl"), "work")
    exchange = unpack(work).header["exchange"]
    for name in ("reports", "tells"):
        fields = {**exchange["fields"], name: not exchange["fields"][name]}
        asks = changed(work, exchange={**exchange, "fields": fields})
        assert "no exchange of the agreed method efl" in refusal(silo, asks)


@pytest.mark.parametrize(
    "header",
    [
        {"round": 10**9},
        {"round": 3},
        {"round": -1},
        {"round": "0"},
        {"round": 0.5},
        {"place": 1},
        {"place": -1},
        {"place": None},
        {"work": 0.4},
        {"work": 2.0},
        {"work": "all"},
        {"clock_steps": 10**12},
        {"clock_steps": 1},
    ],
    ids=str,
)
def test_a_place_that_the_run_does_not_have_is_refused(header: dict[str, Any], tmp_path: Path) -> None:
    silo = agreed(tmp_path)
    before = kept(tmp_path)
    sentence = refusal(silo, changed(asked(honest("apfl"), "work"), **header))
    assert "made" not in sentence  # foreseen, not an error on the way
    assert kept(tmp_path) == before


def test_the_same_exchange_is_not_asked_for_twice_in_a_round(tmp_path: Path) -> None:
    """DRFA has two exchanges: losses do not follow by another training."""
    silo = agreed(tmp_path, "drfa")
    training = asked(honest("drfa"), "work", 0)
    assert "refused" not in answer(silo, training).header
    again = changed(training, crafted(unpack(training).trees), place=1)
    assert "twice" in refusal(silo, again)


def test_another_spelling_is_no_other_exchange(tmp_path: Path) -> None:
    """The same settings in another order, or 2.0 for 2."""
    training = asked(honest("drfa"), "work", 0)
    exchange = unpack(training).header["exchange"]
    fields = exchange["fields"]
    turned = {**exchange, "fields": dict(reversed(fields.items()))}
    decimal = {**exchange, "fields": {**fields, "local_steps": float(fields["local_steps"])}}
    for number, spelling in enumerate((turned, decimal)):
        silo = agreed(tmp_path / str(number), "drfa")
        assert "refused" not in answer(silo, training).header
        again = changed(training, crafted(unpack(training).trees), place=1, exchange=spelling)
        assert "twice" in refusal(silo, again)


# ---- repetition


def test_only_an_identical_message_is_answered_again(tmp_path: Path) -> None:
    silo = agreed(tmp_path)
    work = asked(honest("apfl"), "work")
    first = answer(silo, work).trees["upload"]
    attack = changed(work, {"down": crafted(unpack(work).trees["down"])})
    before = kept(tmp_path)
    for again in (silo, north(tmp_path)):  # the same after a restart
        assert "was asked for already, by another message" in refusal(again, attack)
        assert_same(answer(again, changed(work, request="other")).trees["upload"], first)
    assert kept(tmp_path) == before


def test_a_round_that_is_past_is_not_played_again(tmp_path: Path) -> None:
    silo = agreed(tmp_path)
    for number in range(3):
        assert "refused" not in answer(silo, asked(honest("apfl"), "work", number)).header
    for number in range(2):
        work = asked(honest("apfl"), "work", number)
        refusal(silo, changed(work, {"down": crafted(unpack(work).trees["down"])}))
    assert "refused" not in answer(silo, asked(honest("apfl"), "work", 2)).header


def test_a_second_run_of_the_same_kind_is_counted(tmp_path: Path) -> None:
    """New names for the same attack do not help."""
    silo = north(tmp_path, limits=Limits(**{**vars(LENIENT), "runs": 2}))
    hello = asked(honest("apfl"), "hello")
    for name in ("one", "two"):
        assert "refused" not in answer(silo, changed(hello, run=name)).header
    assert "runs" in refusal(silo, changed(hello, run="three"))
    assert "refused" not in answer(north(tmp_path), changed(hello, run="two")).header


# ---- what is agreed to


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rounds", float("nan")),
        ("rounds", 10**9),
        ("rounds", "many"),
        ("rounds", None),
        ("batch_size", 1),
        ("method", {"name": "apfl", "learning_rate": 1e300}),
        ("method", {"name": "apfl", "learning_rate": float("inf")}),
        ("method", "apfl"),
        ("model", None),
        ("dtype", "float16"),
        ("weight_decay", 1e300),
        ("evaluation", {"metrics": [], "every": 0}),
        ("evaluation", {"metrics": [], "every": "often"}),
        ("evaluation", {"metrics": [], "every": float("nan")}),
        ("evaluation", []),
    ],
    ids=str,
)
def test_a_run_that_cannot_be_meant_is_refused(key: str, value: Any, tmp_path: Path) -> None:
    silo = north(tmp_path, limits=Limits())
    hello = asked(honest("apfl"), "hello")
    shared = unpack(hello).header["config"]
    sentence = refusal(silo, changed(hello, config={**shared, key: value}))
    assert "made" not in sentence
    assert not kept(tmp_path)


def test_what_was_agreed_is_not_spelt_anew(tmp_path: Path) -> None:
    """1 is not true: less work was not agreed to, and is not by a second greeting that is equal to Python."""
    hello, work = asked(honest("apfl"), "hello"), asked(honest("apfl"), "work")
    shared = unpack(hello).header["config"]
    silo = north(tmp_path)
    for spelling in (1, True):
        greeting = changed(hello, config={**shared, "incomplete_work": spelling})
        assert "refused" not in answer(silo, greeting).header
    assert "all work is completed" in refusal(silo, changed(work, work=0.4))


@pytest.mark.parametrize("key", ["name", "number", "clients", "config", "schema", "run"])
@pytest.mark.parametrize("value", [None, [], {}, "a/../x", -1, 10**30, "\x1b[2Jrun", "flower"], ids=repr)
def test_a_malformed_hello_is_refused(key: str, value: Any, tmp_path: Path) -> None:
    sentence = refusal(north(tmp_path), changed(asked(honest("apfl"), "hello"), **{key: value}))
    assert sentence.isprintable()
    assert not kept(tmp_path)


def test_losses_are_metrics(tmp_path: Path) -> None:
    silo = north(tmp_path, shares_metrics=False)
    for method in ("drfa", "agnostic-apfl", "fedfomo"):
        assert "--no-share-metrics" in refusal(silo, asked(honest(method), "hello"))
    work = asked(honest("drfa"), "work", 1)
    assert unpack(work).header["exchange"]["object"].endswith("DRFALosses")
    open_silo = agreed(tmp_path / "open", "drfa")
    answer(open_silo, asked(honest("drfa"), "work", 0))
    closed = north(tmp_path / "open", shares_metrics=False)  # it changed its mind
    assert "--no-share-metrics" in refusal(closed, work)


def test_rows_that_changed_are_noticed(tmp_path: Path) -> None:
    agreed(tmp_path)
    table = own_rows("north")
    table.loc[3, "age"] += 0.5
    other = north(tmp_path, table)
    for message in (asked(honest("apfl"), "work"), asked(honest("apfl"), "hello")):
        assert "rows have changed since the run was agreed" in refusal(other, message)
    assert "refused" not in answer(north(tmp_path), asked(honest("apfl"), "work")).header


# ---- numbers and shapes


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("which", ["down", "first"])
def test_models_that_are_not_finite_are_refused_and_not_kept(
    which: str, value: float, tmp_path: Path
) -> None:
    silo = agreed(tmp_path)
    work = asked(honest("apfl"), "work")
    before = kept(tmp_path)
    bad = {which: tree.map_tree(lambda leaf: torch.full_like(leaf, value), unpack(work).trees[which])}
    assert "not finite" in refusal(silo, changed(work, bad))
    assert kept(tmp_path) == before
    assert "refused" not in answer(silo, work).header


def test_a_brief_that_is_not_finite_replaces_no_models(tmp_path: Path) -> None:
    silo = agreed(tmp_path)
    look = asked(honest("apfl"), "evaluate")
    answer(silo, look)
    before = kept(tmp_path)
    bad = {"brief": tree.scale(unpack(look).trees["brief"], torch.nan)}
    assert "not finite" in refusal(silo, changed(asked(honest("apfl"), "evaluate", 1), bad))
    assert kept(tmp_path) == before


def states(folder: Path) -> Files:
    """The states of its runs that a silo keeps."""
    return {name: content for name, content in kept(folder).items() if "state-" in name}


def test_work_that_diverges_is_not_kept(tmp_path: Path) -> None:
    """A finite model so large that the local steps overflow: the state stays, and the run goes on."""
    silo = agreed(tmp_path)
    works = [asked(honest("apfl"), "work", number) for number in range(3)]
    answer(silo, works[0])
    before = states(tmp_path)
    assert "not finite" in refusal(
        silo, changed(works[1], {"down": crafted(unpack(works[1]).trees["down"], 1e200)})
    )
    assert states(tmp_path) == before
    assert "refused" not in answer(silo, works[2]).header


def test_whether_work_overflows_is_told_once_a_round(tmp_path: Path) -> None:
    """Else one model after the other, each of which overflows if some row is beyond a bound, tells rows."""
    silo = agreed(tmp_path)
    work = asked(honest("apfl"), "work")
    trees = unpack(work).trees
    first = changed(work, {"down": crafted(trees["down"], 1e200)})
    probes = [
        changed(work, {"down": crafted(trees["down"], 1e199)}),
        changed(work, {"down": crafted(trees["down"], 1e200), "first": crafted(trees["first"])}),
        work,
    ]
    assert "not finite" in refusal(silo, first)
    for again in (silo, north(tmp_path)):  # the same after a restart
        for probe in probes:
            assert "was asked for already, by another message" in refusal(again, probe)
        assert "not finite" in refusal(again, first)


def test_a_silo_that_was_killed_at_work_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was asked is known, and the answer is that of a silo that was not."""
    works = [asked(honest("apfl"), "work", number) for number in range(2)]
    undisturbed = [answer(silo := agreed(tmp_path / "a"), works[0]), answer(silo, works[1])]
    killed = agreed(tmp_path / "b")
    with monkeypatch.context() as patch:
        patch.setattr(killed._engagement(unpack(works[0]).header["run"]).engine, "work", _killed)
        with pytest.raises(KeyboardInterrupt):
            killed.answer(works[0])
    restarted = north(tmp_path / "b")
    for work, expected in zip(works, undisturbed, strict=True):
        assert_same(answer(restarted, work).trees["upload"], expected.trees["upload"])


def _killed(*_: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("which", ["down", "first", "brief"])
def test_models_of_another_shape_are_refused(which: str, tmp_path: Path) -> None:
    """A wider hidden layer is another model than the agreed one."""
    silo = agreed(tmp_path)
    message = asked(honest("apfl"), "evaluate" if which == "brief" else "work")
    wide = tree.map_tree(
        lambda leaf: torch.cat([leaf, leaf], 0) if leaf.ndim else leaf, unpack(message).trees[which]
    )
    assert "another structure, shape or type" in refusal(silo, changed(message, {which: wide}))
    for nonsense in ({}, torch.zeros(3), (torch.zeros(2),)):
        assert "another structure, shape or type" in refusal(silo, changed(message, {which: nonsense}))


def test_a_message_without_its_parts_is_refused(tmp_path: Path) -> None:
    silo = agreed(tmp_path)
    for what in ("work", "evaluate"):
        header = unpack(asked(honest("apfl"), what)).header
        assert "made" not in refusal(silo, pack(header))
        for key in ("round", "run"):
            assert "made" not in refusal(silo, pack({k: v for k, v in header.items() if k != key}))


WEIGHTS: dict[str, Any] = {
    "not finite": {"output.bias": torch.full((3,), torch.nan, dtype=torch.float64)},
    "another shape": {"output.bias": torch.zeros(7, dtype=torch.float64)},
    "no part of the model": {"elsewhere": torch.zeros(3)},
    "a tensor": torch.zeros(3),
    "a deeper tree": {"output": {"bias": torch.zeros(3)}},
}


@pytest.mark.parametrize("kind", WEIGHTS)
def test_weights_that_do_not_fit_are_refused_and_not_kept(kind: str, tmp_path: Path) -> None:
    sentence = refusal(north(tmp_path), changed(asked(honest("apfl"), "hello"), {"weights": WEIGHTS[kind]}))
    assert "made" not in sentence
    assert not kept(tmp_path)


# ---- evaluation


def test_one_evaluation_of_a_round(tmp_path: Path) -> None:
    """Crafted models would tell one row after the other."""
    silo = agreed(tmp_path)
    look = asked(honest("apfl"), "evaluate")
    told = answer(silo, look).trees["metrics"]
    for factor in (2.0, 3.0):
        attack = changed(look, {"brief": crafted(unpack(look).trees["brief"], factor)})
        for again in (silo, north(tmp_path)):
            assert "was evaluated already" in refusal(again, attack)
    assert_same(answer(north(tmp_path), changed(look, request="other")).trees["metrics"], told)


def test_one_evaluation_whatever_first_state_is_sent_along(tmp_path: Path) -> None:
    """APFL's personal model is in the state that a coordinator sends before the first round."""
    silo = agreed(tmp_path)
    look = asked(honest("apfl"), "evaluate")
    told = answer(silo, look).trees["metrics"]
    attack = changed(look, {"first": crafted(unpack(look).trees["first"])})
    for again in (silo, north(tmp_path)):
        assert "was evaluated already" in refusal(again, attack)
        assert_same(answer(again, look).trees["metrics"], told)


def test_evaluations_follow_the_run(tmp_path: Path) -> None:
    silo = agreed(tmp_path)
    late = asked(honest("apfl"), "evaluate", 1)  # after round 2
    for number in (10**9, -1, 4, None, "2"):
        assert "made" not in refusal(silo, changed(late, round=number))
    for number in range(2):
        answer(silo, asked(honest("apfl"), "work", number))
    assert "refused" not in answer(silo, late).header
    assert "past" in refusal(silo, changed(late, round=0))
    silo = agreed(tmp_path / "skipped")  # it was not asked in round 1
    answer(silo, asked(honest("apfl"), "work"))
    answer(silo, late)
    assert "past" in refusal(silo, asked(honest("apfl"), "work", 1))


def test_evaluations_are_those_that_were_agreed(tmp_path: Path) -> None:
    """With `evaluation.every: 2` of three rounds: at first, after the second and after the last."""
    messages = honest("fedavg")
    silo = north(tmp_path)
    answer(silo, asked(messages, "hello"))
    look = asked(messages, "evaluate")
    headers = [unpack(message).header for message in messages]
    assert [header["round"] for header in headers if header["ask"] == "evaluate"] == [0, 2, 3]
    assert "refused" not in answer(silo, look).header
    assert "an evaluation after round 1 was not agreed, but with evaluation.every=2" in refusal(
        silo, changed(look, round=1)
    )
    assert all("refused" not in answer(silo, changed(look, round=done)).header for done in (2, 3))


def test_metrics_are_rounded_and_of_enough_rows(tmp_path: Path) -> None:
    limits = Limits(**{**vars(LENIENT), "metric_digits": 3})
    silo = agreed(tmp_path / "a", limits=limits)
    told = answer(silo, asked(honest("apfl"), "evaluate")).trees["metrics"]
    for value in map(float, tree.leaves(told)):
        assert value == float(f"{value:.3g}")
    exact = answer(agreed(tmp_path / "b"), asked(honest("apfl"), "evaluate")).trees["metrics"]
    assert [float(v) for v in tree.leaves(told)] != [float(v) for v in tree.leaves(exact)]
    few = agreed(tmp_path / "c", limits=Limits(**{**vars(LENIENT), "metric_rows": 5}))
    assert "metrics" not in answer(few, asked(honest("apfl"), "evaluate")).trees  # 4 validation, 4 test rows


def told_metrics(table: pd.DataFrame, metrics: list[str], folder: Path) -> set[str]:
    """The metrics that silos tell of classes no, rare and yes, where they need five rows."""
    classes = ["no", "rare", "yes"]
    rows = {"target": "outcome", "classes": classes, "columns": {"age": {"mean": 50, "scale": 30}}}
    settings = config({"name": "fedavg", "local_steps": 1}, rounds=1, evaluation={"metrics": metrics})
    served = serve_settings({**settings, "silos": ["north", "south"], "schema": rows}, folder)
    link = Direct({name: Silo(name, table, folder / name, Limits(metric_rows=5)) for name in served.silos})
    run = ServedRun.create(folder / "run", served)
    coordinate(run, link)
    told = run.folder.metrics()
    return set(told[told.value.notna()].metric)


def some_rows(rare: slice) -> pd.DataFrame:
    table = pd.DataFrame({"age": np.arange(100.0), "outcome": ["yes", "no"] * 50})
    table.loc[rare, "outcome"] = "rare"
    return table


def test_metrics_of_a_class_are_of_enough_of_its_rows(tmp_path: Path) -> None:
    """A recall tells whether there is a patient with a rare outcome, and what a model takes it for."""
    told = told_metrics(some_rows(slice(None, None, 40)), ["recall:each"], tmp_path)
    assert {"recall:yes", "recall:no", "accuracy"} <= told
    assert "recall:rare" not in told


@pytest.mark.parametrize("step", [40, 1000], ids=["rare", "absent"])
def test_metrics_by_classes_are_of_enough_rows_of_each(step: int, tmp_path: Path) -> None:
    """A model that always says no has a balanced accuracy of 1/2, or of 1/3 if there is a rare one."""
    by_classes = {"balanced_accuracy", "auc", "average_precision", "f1"}
    others = {"loss", "accuracy", "log_loss", "calibration_error"}
    asked_for = sorted(by_classes | others)
    assert told_metrics(some_rows(slice(1, None, step)), asked_for, tmp_path / "few") == others
    many = told_metrics(some_rows(slice(None, None, 3)), asked_for, tmp_path / "many")
    assert many == by_classes | others


# ---- what uploads are of


@pytest.mark.parametrize("method", ["fedproto", "fedpac"])
def test_sums_over_a_class_are_of_enough_rows(method: str, tmp_path: Path) -> None:
    """The sum of one row is that row, and the coordinator says what a class is: an age, or a postal code."""
    hello = asked(honest(method), "hello")
    all_for_training = changed(hello, schema={**unpack(hello).header["schema"], "fractions": [1.0, 0.0, 0.0]})
    table = pd.concat([own_rows("north")] * 4, ignore_index=True)
    common = table.assign(outcome=["better", "same"] * (len(table) // 2))
    rare = common.assign(outcome=["worse", *common.outcome[1:]])
    assert "refused" not in answer(north(tmp_path / "a", common, limits=Limits()), all_for_training).header
    silo = north(tmp_path / "b", rare, limits=Limits())
    sentence = refusal(silo, all_for_training)
    assert "a class has fewer than 4 of them here (--min-batch)" in sentence
    assert "worse" not in sentence
    assert json.loads((tmp_path / "b" / "misfits.json").read_text()) == {"count": 1}
    assert "refused" not in answer(north(tmp_path / "c", rare), all_for_training).header  # it says otherwise
    assert "refused" not in answer(silo, asked(honest("fedavg"), "hello")).header


# ---- summaries


def ask_summary(silo: Silo, **search: Any) -> dict[str, Any]:
    plain = {"target": "outcome", "classes": [], "categories": [], "fractions": [0.6, 0.2, 0.2], **search}
    return answer(silo, pack({"ask": "summary", "run": "r", "name": "north", "search": plain})).header


def test_a_table_is_summarised_once(tmp_path: Path) -> None:
    """Sums of growing sets of rows would tell each row by their differences."""
    first = ask_summary(north(tmp_path))["summary"]
    for fractions in ([0.65, 0.15, 0.2], [0.7, 0.1, 0.2], [0.9, 0.05, 0.05]):
        for seed in (0, 1):
            told = ask_summary(north(tmp_path), fractions=fractions, split_seed=seed)
            assert told["summary"] == first
    assert "refused" in ask_summary(north(tmp_path), target="ward")
    grown = pd.concat([own_rows("north"), own_rows("south").head(1)], ignore_index=True)
    assert "refused" in ask_summary(north(tmp_path, grown))
    assert ask_summary(north(tmp_path))["summary"] == first


def test_codes_are_no_histogram(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    table = pd.DataFrame({"age": random.integers(20, 90, 200), "outcome": random.choice(["a", "b"], 200)})
    table["ward"] = ["rare"] + ["common"] * 199
    limits = Limits()
    for number, missing in enumerate(("refuse", "impute", "indicate")):
        silo = north(tmp_path / str(number), table, limits=limits)
        header = ask_summary(silo, categories=["age"], missing=missing)
        told = json.dumps(header)
        assert "rare" not in told
        ages = table.age.value_counts()
        columns = {c["name"]: c["counts"] for c in header.get("summary", {"columns": []})["columns"]}
        assert not {int(age) for age in columns.get("age", ())} & set(ages[ages < 5].index)
    silo = north(tmp_path / "target", table, limits=limits)
    header = ask_summary(silo, target="age", task="classification")
    assert not {
        int(age) for age in header.get("summary", {"target": {"counts": ()}})["target"]["counts"]
    } & set(ages[ages < 5].index)


@pytest.mark.parametrize("first", [(), ("age",)], ids=["numbers first", "codes first"])
def test_numbers_and_codes_together_would_show_rare_values(first: tuple[str, ...], tmp_path: Path) -> None:
    """The sum of all ages, less that of those which five and more rows have, is the oldest patient's."""
    table = pd.DataFrame({"age": [30] * 40 + [50] * 59 + [97], "outcome": ["a", "b"] * 50})
    everything = {"fractions": [1.0, 0.0, 0.0], "missing": "impute"}
    silo = north(tmp_path, table, limits=Limits())
    second = () if first else ("age",)
    told = [ask_summary(silo, categories=list(codes), **everything) for codes in (first, second)]
    assert "refused" not in told[0]
    if "refused" not in told[1]:
        columns = {column["kind"]: column for header in told for column in header["summary"]["columns"]}
        moments, counts = columns["number"]["moments"], columns["category"]["counts"]
        rest = moments["count"] * moments["mean"] - sum(float(age) * n for age, n in counts.items())
        pytest.fail(f"the oldest patient is {rest:.0f}")
    assert "'age'" in told[1]["refused"]
    assert "refused" in ask_summary(north(tmp_path, table), categories=list(second), **everything)
    assert ask_summary(silo, categories=list(first), **everything)["summary"] == told[0]["summary"]


@pytest.mark.parametrize(
    "search", [None, [], {"target": 3}, {"target": "outcome", "fractions": "all"}], ids=str
)
def test_a_malformed_search_is_refused(search: Any, tmp_path: Path) -> None:
    header = {"ask": "summary", "run": "r", "name": "north", "search": search}
    assert "made" not in refusal(north(tmp_path), pack(header))


def test_a_table_is_not_probed_with_one_schema_after_the_other(tmp_path: Path) -> None:
    """Whether all targets are among some classes is told a few times, not as often as there are values."""
    hello = asked(honest("apfl"), "hello")
    schema = unpack(hello).header["schema"]
    begun = north(tmp_path)
    answer(begun, changed(hello, run="begun"))
    sentences = []
    for number in range(5):
        rows = {**schema["rows"], "class_names": ["better", f"class {number}"]}
        probe = changed(hello, run=f"probe-{number}", schema={**schema, "rows": rows})
        assert "was agreed with another schema" in refusal(begun, changed(probe, run="begun"))
        limits = Limits(**{**vars(LENIENT), "misfits": 3})
        sentences.append(refusal(north(tmp_path, limits=limits), probe))
    assert all("none of the agreed classes" in sentence for sentence in sentences[:3])
    assert all("and says no more" in sentence for sentence in sentences[3:])


@pytest.mark.parametrize(
    "change",
    [{"scale": 0}, {"scale": -1.0}, {"scale": "1"}, {"scale": True}, {"mean": "x"}, {"mean": 10**400}],
    ids=str,
)
@pytest.mark.parametrize("whose", ["column", "target"])
def test_columns_are_not_divided_by_nothing(whose: str, change: dict[str, Any], tmp_path: Path) -> None:
    """By zero all values but the mean are infinite, so that work which is refused would tell it."""
    hello = asked(honest("apfl"), "hello")
    schema = unpack(hello).header["schema"]
    rows = schema["rows"]
    if whose == "column":
        rows = {**rows, "columns": [{**rows["columns"][0], **change}, *rows["columns"][1:]]}
    else:
        rows = {**rows, **{f"target_{name}": value for name, value in change.items()}}
    sentence = refusal(north(tmp_path), changed(hello, schema={**schema, "rows": rows}))
    (name,) = change
    place = "schema.columns.age." if whose == "column" else "schema.target_"
    assert f"{place}{name}={change[name]} is not possible" in sentence
    assert not kept(tmp_path)


def test_what_is_refused_shows_no_value_of_the_table(tmp_path: Path) -> None:
    table = own_rows("north")
    table["age"] = table.age.astype(object)
    table.loc[4, "age"] = "Mr Smith"
    table.loc[5, "outcome"] = "a rare disease"
    sentence = refusal(north(tmp_path, table), asked(honest("apfl"), "hello"))
    assert "Smith" not in sentence
    assert "rare" not in sentence
    assert "age" in sentence
    assert "outcome" in sentence
