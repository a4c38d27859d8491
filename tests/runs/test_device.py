"""A run keeps its device and how clients are computed, and can go on on another device."""

from dataclasses import replace

import pytest

import idiolect
from idiolect.errors import UserError
from idiolect.runs.folder import RunFolder
from idiolect.store.files import read_json, write_bytes

SETTINGS = {"method": "ditto", "data": "vowels", "rounds": 4, "lr": 0.1, "threads": 1}


class _Stop:
    """Stops a run after two rounds."""

    def played(self, round_number: int) -> None:
        if round_number == 2:
            raise KeyboardInterrupt

    def evaluated(self, round_number: int, metrics: object) -> None:
        pass


def test_a_run_that_began_on_a_device_that_is_not_here_goes_on_on_the_cpu(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    out, every = tmp_path / "run", {"checkpoint.every": 1, "evaluation.every": 1}
    with pytest.raises(KeyboardInterrupt):
        idiolect.run(**SETTINGS, **every, out=out, watch=lambda config: [_Stop()])
    folder = RunFolder(out)
    # As if it had begun on a GPU: what is saved is the same.
    write_bytes(out / "config.yaml", replace(folder.config, device="cuda").to_yaml().encode())
    with pytest.raises(UserError, match="device=cuda is not available"):
        idiolect.resume(out)
    finished = idiolect.resume(out, device="cpu")
    assert finished.config.device == "cpu"
    whole = idiolect.run(**SETTINGS, **every, out=tmp_path / "whole")
    assert finished.metrics().equals(whole.metrics())
    assert finished.way == whole.way
    assert finished.way.reason == read_json(tmp_path / "whole" / "run.json")["way"]["reason"]


def test_models_of_a_gpu_are_taken_home_without_one(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    run = idiolect.run(**SETTINGS, out=tmp_path / "run")
    write_bytes(run.path / "config.yaml", replace(run.config, device="cuda").to_yaml().encode())
    from idiolect.runs.lifecycle import reported_simulation

    assert str(reported_simulation(RunFolder(run.path)).engine.setting.device) == "cpu"


def test_auto_is_what_there_is(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: False)
    run = idiolect.run(**SETTINGS, device="auto", out=tmp_path / "run")
    assert run.config.device == "cpu"
