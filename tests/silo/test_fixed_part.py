"""Silos are sent what no seed gives, once: the fixed part of the model, and the weights of a file."""

from pathlib import Path

import pytest
from safetensors.torch import save_file

import idiolect
from idiolect.core.tree import map_tree
from idiolect.silo.coordinator import coordinate
from idiolect.silo.served_run import ServedRun
from idiolect.silo.wire import pack, unpack
from silo.parity import assert_deployment_equals_simulation
from silo.problem import SILOS, Direct, config, deployed, own_rows, silos_in, simulate

METHOD = {"name": "apfl", "local_steps": 3}


@pytest.fixture
def weights(tmp_path: Path) -> str:
    module = simulate(config(METHOD, seed=11)).engine.setting.objective.module
    save_file(module.state_dict(), tmp_path / "first.safetensors")
    return str(tmp_path / "first.safetensors")


@pytest.mark.parametrize("part", [None, "head", ["output.bias", "hidden.*"]])
def test_a_deployment_from_a_file_equals_a_simulation(part, weights, tmp_path):
    settings = config(METHOD, train=part)
    settings["model"]["weights"] = weights
    assert_deployment_equals_simulation(settings, tmp_path)


def test_adapters_between_silos(tmp_path):
    settings = config(METHOD)
    settings["model"]["adapter"] = {"rank": 2}
    assert_deployment_equals_simulation(settings, tmp_path)


def test_a_silo_takes_its_model_home_and_keeps_the_best(weights, tmp_path):
    settings = config(METHOD, train="head")
    settings["model"]["weights"] = weights
    served = ServedRun.create(tmp_path / "run", deployed(settings, tmp_path))
    coordinate(served, Direct(silos_in(tmp_path / "silos")))
    Path(weights).unlink()  # it is the coordinator's
    rows = own_rows("west")
    state = tmp_path / "silos" / "west"
    said = idiolect.predict(state=state, table=rows.drop(columns="outcome"), kind="personal")
    simulation = simulate({**settings, "model": {"name": "mlp", "hidden": [4]}})
    fixed = silos_in(tmp_path / "silos")["west"]._vault(served.name).weights
    assert fixed.keys() == simulation.engine.setting.objective.module.state_dict().keys()
    assert len(said) == len(rows)
    choice = idiolect.silo_choose(state=state, data=rows)
    assert choice.kept in choice.values


class Altering(Direct):
    """A coordinator whose greetings have another fixed part, or none."""

    def __init__(self, silos, alter):
        super().__init__(silos)
        self.alter = alter
        self.refusals = []

    def ask(self, requests, seconds):
        for name, reply in super().ask({n: self._altered(m) for n, m in requests.items()}, seconds):
            if "refused" in (header := unpack(reply).header):
                self.refusals.append(header["refused"])
            yield name, reply

    def _altered(self, message):
        header, trees = unpack(message)
        if header["ask"] != "hello":
            return message
        return pack(*self.alter(header, trees))


def refusals(tmp_path, alter, silos):
    run = tmp_path / "run"
    if not run.exists():
        settings = deployed(config(METHOD, train="head"), tmp_path, patience_seconds=0)
        ServedRun.create(run, settings)
    link = Altering(silos, alter)
    with pytest.raises(idiolect.UserError):
        coordinate(ServedRun(run), link)
    return link.refusals


def test_a_silo_refuses_a_model_without_its_fixed_part(tmp_path):
    told = refusals(tmp_path, lambda header, trees: (header, {}), silos_in(tmp_path / "silos"))
    assert told
    assert all("the fixed part of the model lacks" in sentence for sentence in told)


def test_a_silo_refuses_another_fixed_part_than_it_agreed_to(tmp_path):
    silos = silos_in(tmp_path / "silos")
    settings = deployed(config(METHOD, train="head"), tmp_path, patience_seconds=0)
    coordinate(ServedRun.create(tmp_path / "run", settings), Direct(silos))
    told = refusals(tmp_path, lambda header, trees: (header, map_tree(lambda leaf: leaf + 1, trees)), silos)
    assert len(told) >= len(SILOS)
    assert all("was agreed with another weights" in sentence for sentence in told)


def test_a_silo_opens_no_file_that_a_coordinator_names(tmp_path, weights):
    def alter(header, trees):
        header["config"]["model"]["weights"] = weights
        return header, trees

    told = refusals(tmp_path, alter, silos_in(tmp_path / "silos"))
    assert told
    assert all("would read a file of the silo's" in sentence for sentence in told)


def test_fixed_parts_are_sent_once(tmp_path):
    """Rounds carry the head alone."""
    sizes: dict[str, list[int]] = {}

    class Weighed(Direct):
        def ask(self, requests, seconds):
            for message in requests.values():
                header, trees = unpack(message)
                has_body = any("hidden" in name for name in str(trees).split("'"))
                sizes.setdefault(header["ask"], []).append(int(has_body))
            yield from super().ask(requests, seconds)

    served = ServedRun.create(tmp_path / "run", deployed(config(METHOD, train="head"), tmp_path))
    coordinate(served, Weighed(silos_in(tmp_path / "silos")))
    assert set(sizes.pop("hello")) == {1}
    assert sizes.keys() >= {"work", "evaluate"}
    assert not any(any(found) for found in sizes.values())
