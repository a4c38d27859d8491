"""Settings from files and overrides, and their resolution into a whole configuration."""

from pathlib import Path

import pytest

from idiolect.methods.catalogue import METHODS
from idiolect.runs.config import resolve
from idiolect.runs.settings import read_settings


def config(*arguments: str):
    return resolve(read_settings(arguments))


def test_a_name_and_its_options_combine_in_any_order() -> None:
    one = config("method=apfl", "method.mixing=0.25", "data=vowels")
    other = config("method.mixing=0.25", "data=vowels", "method=apfl")
    assert one == other
    assert one.method["mixing"] == 0.25


def test_short_names_reach_the_method() -> None:
    method = config("method=fedavg", "data=vowels", "lr=1e-3", "local_epochs=2").method
    assert method["learning_rate"] == {"name": "constant", "initial": 0.001}
    assert method["local_steps"] == {"epochs": 2}
    assert config("method=fedavg", "data=vowels", "method.lr=0.2").method["learning_rate"]["initial"] == 0.2


def test_overrides_win_over_the_file_and_another_method_starts_anew(tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text("method: {name: apfl, mixing: 0.75}\ndata: vowels\nseed: 3\nlr: 0.25\nmodel: mlp\n")
    assert config(str(file)).method["mixing"] == 0.75
    assert config(str(file), "seed=4", "method.mixing=0.5").seed == 4
    switched = config(str(file), "method=fedavg")
    assert switched.method["name"] == "fedavg"
    assert "mixing" not in switched.method
    assert switched.model["name"] == "mlp"


def test_part_of_a_schedule_can_be_changed() -> None:
    schedule = "lr={name: per_round, initial: 0.3, factor: 0.9}"
    method = config("method=fedavg", "data=vowels", schedule, "method.learning_rate.factor=0.5").method
    assert method["learning_rate"] == {"name": "per_round", "initial": 0.3, "factor": 0.5}


@pytest.mark.parametrize("method", [m.name for m in METHODS])
def test_the_written_configuration_is_the_same_run(method: str, tmp_path: Path) -> None:
    original = config(
        f"method={method}",
        "data=vowels",
        "data.fractions=[0.5, 0.25, 0.25]",
        "model=mlp",
        "model.hidden=[7, 5]",
        "participation.rate=0.4",
        "participation.clients.speaker-00.join=2",
        "batch_size=all",
        "engine=sequential",
    )
    file = tmp_path / "config.yaml"
    file.write_text(original.to_yaml())
    again = config(str(file))
    assert again == original
    assert again.folder == original.folder


def test_the_default_folder_follows_from_the_configuration() -> None:
    one, other = (config("method=fedavg", "data=vowels", f"seed={seed}").folder for seed in (0, 1))
    assert one != other
    assert one.parent == Path("runs")
