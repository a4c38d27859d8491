"""Round plans are pure functions of (seed, round), and every number in them means what it says."""

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

import idiolect
from idiolect.core import tree
from idiolect.core.cohort import Cohort, Population
from idiolect.core.method import Method
from idiolect.core.schedule import Constant
from idiolect.core.task import Task
from idiolect.data.federation import Federation, Rows, upper_class_shares
from idiolect.errors import UserError
from idiolect.methods.efl import EFL
from idiolect.methods.fedavg import FedAvg
from idiolect.methods.ifca import IFCA
from idiolect.methods.pfedme import PFedMe
from idiolect.participation import Participation, Proportional, RoundPlan, Uniform
from idiolect.simulation import EngineName, Simulation
from idiolect.testing.problems import small_network, uneven_classification

NAMES = tuple(f"client_{number}" for number in range(12))
SIZES = torch.tensor([5, 9, 14, 20, 27, 35, 44, 54, 65, 77, 90, 104])
READ = TypeAdapter(Participation).validate_python


def plan(**section: object) -> RoundPlan:
    return READ(section).bind(NAMES)


def cohorts(section: dict[str, object], rounds: int, seed: int = 0) -> list[Cohort]:
    bound = plan(**section)
    return [bound.cohort(seed, number, SIZES) for number in range(rounds)]


SECTIONS = st.fixed_dictionaries(
    {
        "sampling": st.sampled_from(["uniform", "proportional"]),
        "rate": st.floats(0.05, 1.0),
        "work": st.one_of(st.floats(0, 1), st.sampled_from(["uniform", "speed", "size"])),
        "inactive": st.floats(0, 1),
        "lost_replies": st.floats(0, 1),
        "clients": st.dictionaries(
            st.sampled_from(NAMES),
            st.builds(
                lambda join, stay, work: {"join": join, "leave": join + stay, "work": work},
                st.integers(0, 6),
                st.integers(1, 6),
                st.one_of(st.none(), st.floats(0, 1)),
            ),
        ),
    }
)


@settings(max_examples=30, deadline=None)
@given(section=SECTIONS, seed=st.integers(0, 2**40), number=st.integers(0, 12))
def test_a_cohort_is_well_formed_and_a_pure_function_of_seed_and_round(section, seed, number):
    bound = plan(**section)
    cohort, again = bound.cohort(seed, number, SIZES), plan(**section).cohort(seed, number, SIZES)
    here = bound.present(number, len(NAMES))
    assert here[cohort.ids].all()
    assert (cohort.ids.diff() > 0).all()
    assert ((cohort.work >= 0) & (cohort.work <= 1)).all()
    assert torch.equal(cohort.population.present, here)
    assert (len(cohort) > 0) == bool(here.any())
    for field in ("ids", "work", "replied", "inclusion"):
        assert torch.equal(getattr(cohort, field), getattr(again, field))


@pytest.mark.parametrize(("rate", "asked"), [(0.29, 29), (0.3, 30), (0.001, 1), (1.0, 100)])
def test_a_rate_asks_the_floor_of_rate_times_clients_and_at_least_one(rate, asked):
    assert len(Uniform(rate=rate).cohort(0, 0, torch.full((100,), 5))) == asked


def test_uniform_sampling_asks_each_client_as_often_as_its_inclusion_says():
    counts = torch.zeros(len(SIZES))
    for number in range(800):
        cohort = Uniform(count=5).cohort(3, number, SIZES)
        counts[cohort.ids] += 1
    assert float(cohort.inclusion[0]) == 5 / 12
    # Four standard deviations of a binomial with 800 trials.
    assert (counts / 800 - 5 / 12).abs().max() < 4 * math.sqrt(5 / 12 * 7 / 12 / 800)


def test_proportional_sampling_draws_in_proportion_to_rows():
    counts = torch.zeros(len(SIZES), dtype=torch.float64)
    expected = 5 * SIZES / SIZES.sum()
    for number in range(800):
        cohort = plan(sampling="proportional", count=5).cohort(3, number, SIZES)
        counts[cohort.ids] += cohort.multiplicity
        assert cohort.multiplicity.sum() == 5
        torch.testing.assert_close(cohort.inclusion, expected[cohort.ids].double())
    assert ((counts / 800 - expected).abs() < 4 * torch.sqrt(expected / 800)).all()


def test_absent_clients_are_never_drawn_and_present_ones_share_the_chance():
    clients = {"client_11": {"join": 3}, "client_0": {"leave": 2}}
    for sampler in ("uniform", "proportional"):
        rounds = cohorts({"sampling": sampler, "rate": 1.0, "clients": clients}, 5)
        assert [11 in c.ids for c in rounds[:3]] == [False] * 3
        assert all(0 not in c.ids for c in rounds[2:])
        assert rounds[1].population.count == 11
        assert rounds[2].population.count == 10
        assert int(rounds[2].population.rows) == int(SIZES.sum()) - 5 - 104
    everybody = cohorts({"clients": clients}, 5)
    assert [len(c) for c in everybody] == [11, 11, 10, 11, 11]
    assert all((c.inclusion == 1).all() for c in everybody)


def test_a_uniform_fraction_gives_uniform_steps():
    steps = []
    for number in range(400):
        cohort = plan(work="uniform").cohort(1, number, SIZES)
        full = torch.full_like(cohort.ids, 4)
        steps.append(Cohort(*[getattr(cohort, f) for f in cohort.__dataclass_fields__][:5], full).steps)
    share = torch.cat(steps).bincount() / (400 * 12)
    assert share.shape == (5,)
    assert (share - 0.2).abs().max() < 4 * math.sqrt(0.16 / 4800)


def test_speed_belongs_to_the_client_and_size_to_its_rows():
    first, second = cohorts({"work": {"law": "speed", "slowest": 0.4}}, 2)
    assert torch.equal(first.work, second.work)
    assert first.work.min() >= 0.4
    assert len(set(first.work.tolist())) == len(NAMES)
    median = 35.0
    large_slow, small_slow = (
        cohorts({"work": {"law": "size", "power": power}}, 1)[0].work for power in (1.0, -0.5)
    )
    torch.testing.assert_close(large_slow, (median / SIZES).double().clamp(max=1))
    torch.testing.assert_close(small_slow, (SIZES / median).sqrt().double().clamp(max=1))


@pytest.mark.parametrize(("share", "slow"), [(0.5, [0, 2, 4, 5, 6, 7]), (0.25, [0, 2, 4]), (0.0, [])])
def test_who_has_most_of_the_upper_classes_is_slow(share, slow):
    """Of twelve; clients 1, 3, 5, 6 and 7 have the same share, and the later ones are slow first."""
    upper = torch.tensor([0.9, 0.3, 1.0, 0.3, 0.8, 0.3, 0.3, 0.3, 0.0, 0.1, 0.2, 0.25], dtype=torch.float64)
    section = {"work": {"law": "classes", "slow": 0.2, "share": share}, "rate": 0.5}
    bound = READ(section).bind(NAMES, upper)
    expected = torch.ones(12, dtype=torch.float64)
    expected[slow] = 0.2
    for number in range(4):
        cohort = bound.cohort(3, number, SIZES)
        assert torch.equal(cohort.work, expected[cohort.ids])


def test_the_upper_half_of_the_classes():
    """Of three classes the upper half is the last one, of two the second."""
    rows = Rows.of_clients([torch.tensor([0, 1, 2, 3]), torch.tensor([4]), torch.tensor([5, 6, 7])])
    nobody = Rows.of_clients([torch.tensor([], dtype=torch.int64)] * 3)

    def shares(task: Task, targets: list[float]) -> list[float] | None:
        values = torch.tensor(targets)
        data = Federation(torch.zeros(8, 1), values, task, ("a", "b", "c"), rows, nobody, nobody)
        found = upper_class_shares(data)
        return None if found is None else found.tolist()

    assert shares(Task("multiclass", 3), [0, 1, 2, 2, 1, 2, 2, 0]) == pytest.approx([0.5, 0.0, 2 / 3])
    assert shares(Task("multiclass", 4), [0, 1, 2, 3, 2, 0, 1, 3]) == pytest.approx([0.5, 1.0, 1 / 3])
    assert shares(Task("binary", 1), [0, 1, 1, 1, 0, 1, 0, 0]) == pytest.approx([0.75, 0.0, 1 / 3])
    assert shares(Task("regression", 1), [0.0] * 8) is None


def test_slow_clients_of_a_run_are_those_of_the_study_of_efl():
    """Half of the clients, by the share of rows that show one of the upper five of ten classes."""
    data = {
        "name": "image-like",
        "clients": 9,
        "samples_per_class": 60,
        "partition": "classes",
        "per_client": 2,
    }
    work = {"law": "classes", "slow": 0.4}
    result = idiolect.train("local", data, rounds=1, local_steps=5, participation={"work": work})
    federation = result.simulation.federation
    upper = [float((federation.targets[federation.train.of(k)] >= 5).double().mean()) for k in range(9)]
    slow = sorted(range(9), key=lambda k: upper[k])[9 // 2 :]
    cohort = result.simulation.plan.cohort(0, 0, federation.train.sizes)
    assert [k for k in range(9) if cohort.work[k] < 1] == sorted(slow)
    assert set(cohort.work.tolist()) == {0.4, 1.0}


def test_own_work_comes_before_the_law():
    cohort = cohorts({"work": 0.5, "clients": {"client_7": {"work": 0.3}, "client_2": {"work": 0}}}, 1)[0]
    expected = torch.full((12,), 0.5, dtype=torch.float64)
    expected[7], expected[2] = 0.3, 0.0
    assert torch.equal(cohort.work, expected)


def test_a_trace_is_followed_and_repeated(tmp_path):
    file = tmp_path / "trace.csv"
    file.write_text("round,client,work\n0,client_1,0.25\n1,client_1,1\n1,client_4,0.5\n")
    rounds = cohorts({"work": {"law": "trace", "file": str(file)}}, 4)
    assert [c.work[1].item() for c in rounds] == [0.25, 1, 0.25, 1]
    assert [c.work[4].item() for c in rounds] == [0, 0.5, 0, 0.5]
    assert [c.work.sum().item() for c in rounds] == [0.25, 1.5, 0.25, 1.5]


def test_lost_replies_and_inactivity_come_at_their_rates():
    rounds = cohorts({"inactive": 0.2, "lost_replies": 0.1}, 300)
    idle = torch.cat([c.work == 0 for c in rounds]).double().mean()
    lost = torch.cat([~c.replied for c in rounds]).double().mean()
    assert abs(idle - 0.2) < 4 * math.sqrt(0.16 / 3600)
    assert abs(lost - 0.1) < 4 * math.sqrt(0.09 / 3600)


def test_arrivals_restart_the_clock_of_a_schedule():
    section = READ({"clients": {"client_1": {"join": 20}, "client_2": {"join": 5}, "client_3": {"leave": 9}}})
    assert section.arrival_rounds == (5, 20)
    assert section.restarting(Constant(0.1)).rounds == (5, 20)


@pytest.mark.parametrize(
    ("section", "sentence"),
    [
        ({"clients": {"clint_7": {"join": 2}}}, "no client 'clint_7'.*client_7"),
        ({"work": {"law": "trace", "file": "nowhere.csv"}}, "nowhere.csv"),
    ],
)
def test_names_and_files_that_do_not_exist_are_told_in_one_sentence(section, sentence):
    with pytest.raises(UserError, match=sentence):
        plan(**section).cohort(0, 0, SIZES)


@pytest.mark.parametrize(
    "line", ["0,client_1,2", "x,client_1,0.5", "0,client_1", "-1,client_1,0.5", "0,client_99,0.5"]
)
def test_a_bad_line_of_a_trace_is_named(tmp_path, line):
    file = tmp_path / "trace.csv"
    file.write_text(f"round,client,work\n0,client_0,1\n{line}\n")
    with pytest.raises(UserError, match="line 3"):
        plan(work={"law": "trace", "file": str(file)}).cohort(0, 0, SIZES)


@pytest.mark.parametrize(
    "section",
    [
        {"clients": {"client_7": {"join": 20, "leave": 20}}},
        {"clients": {"client_7": {"jion": 20}}},
        {"work": {"law": "uniform", "low": 0.9, "high": 0.2}},
        {"work": "sometimes"},
        {"work": 1.5},
        {"rate": 0},
        {"lost_replies": -0.1},
    ],
)
def test_sections_that_make_no_sense_are_refused(section):
    with pytest.raises(ValidationError):
        READ(section)


def test_proportional_sampling_of_nobody_is_nobody():
    bound = plan(sampling="proportional", clients={name: {"join": 3} for name in NAMES})
    assert len(bound.cohort(0, 0, SIZES)) == 0
    assert isinstance(bound.sampler, Proportional)


@dataclass(frozen=True)
class AsListed:
    """A user's plan: some clients in the order in which they are listed, each with a fate of its own."""

    ids: tuple[int, ...]

    def cohort(self, seed: int, round_number: int, sizes: Tensor) -> Cohort:
        ids = torch.tensor(self.ids)
        return Cohort(
            ids=ids,
            work=1 - ids.double() / 10,
            replied=ids != 3,
            inclusion=(1 + ids).double() / 8,
            population=Population(sizes, self.present(round_number, len(sizes))),
            multiplicity=(1 + ids % 2).double(),
        )

    def present(self, round_number: int, clients: int) -> Tensor:
        return torch.ones(clients, dtype=torch.bool)


def simulate(method: Method, engine: EngineName, *ids: int) -> Simulation:
    return Simulation(
        method,
        small_network,
        uneven_classification(),
        plan=AsListed(ids),
        seed=2,
        batch_size=4,
        dtype=torch.float64,
        engine=engine,
    )


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
@pytest.mark.parametrize(
    "method", [FedAvg(weighting="samples"), EFL(), PFedMe(), IFCA()], ids=lambda method: method.name
)
def test_the_order_in_which_a_plan_lists_clients_does_not_matter(method: Method, engine: EngineName) -> None:
    """All that belongs to a client goes with it: its work, its reply, its chance, how often it was drawn."""
    listed, ascending = simulate(method, engine, 4, 0, 3, 1), simulate(method, engine, 0, 1, 3, 4)
    for _ in range(3):
        a, b = listed.advance(), ascending.advance()
        assert torch.equal(a.up_bits, b.up_bits)
        assert torch.equal(a.down_bits, b.down_bits)
    ours, theirs = (tree.to_named((s.server, s.clients())) for s in (listed, ascending))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ((2, 0, 2), "asks client 2 more than once in a round; .* multiplicity"),
        ((0, 5), "asks client 5, but the clients are numbered from 0 to 4"),
        ((1, -1), "asks client -1, but the clients are numbered from 0 to 4"),
    ],
)
def test_a_plan_that_asks_no_set_of_clients_is_refused(ids: tuple[int, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        simulate(FedAvg(), "vectorised", *ids).advance()
