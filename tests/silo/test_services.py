"""The units and the container file of deploy/: what they call exists, and tools of the formats agree."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from idiolect.cli import app

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = ("idiolect-serve.service", "idiolect-join@.service")
PROGRAM = "/opt/idiolect/bin/idiolect"


def options_of(*command: str) -> set[str]:
    found = get_command(app)
    for name in command:
        found = found.commands[name]  # type: ignore[attr-defined]
    return {option for parameter in found.params for option in (*parameter.opts, *parameter.secondary_opts)}


def settings_of(unit: str) -> dict[str, str]:
    text = (DEPLOY / unit).read_text().replace("\\\n", "")
    lines = (line.partition("=") for line in text.splitlines() if re.match(r"[A-Z]\w+=", line))
    return {key: value for key, _, value in lines}


@pytest.mark.parametrize("unit", UNITS)
def test_a_unit_calls_a_command_with_options_that_it_has(unit: str) -> None:
    command = "serve" if "serve" in unit else "join"
    line = settings_of(unit)["ExecStart"]
    assert f"{PROGRAM} {command} " in line
    used = set(re.findall(r"--[a-z-]+", line))
    assert {"--keys"} < used <= options_of(command)


@pytest.mark.parametrize("unit", UNITS)
def test_systemd_takes_a_unit_and_calls_it_hardened(unit: str, tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    program = shutil.which("true")
    (tmp_path / unit).write_text((DEPLOY / unit).read_text().replace(PROGRAM, str(program)))
    verified = subprocess.run([analyze, "verify", unit], cwd=tmp_path, capture_output=True, text=True)
    assert (verified.returncode, verified.stderr) == (0, "")
    judged = subprocess.run(
        [analyze, "security", "--offline=true", "--threshold=20", unit],  # in tenths: 2.0 is OK
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert judged.returncode == 0, judged.stdout[-300:]


@pytest.mark.parametrize(
    ("begun", "asked"), [(False, "serve my.yaml --out runs/served"), (True, "serve --resume runs/served")]
)
def test_the_coordinators_unit_begins_a_run_or_goes_on_with_it(
    begun: bool, asked: str, tmp_path: Path
) -> None:
    (tmp_path / "program").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "program").chmod(0o700)
    if begun:
        (tmp_path / "runs" / "served").mkdir(parents=True)
    settings = settings_of(UNITS[0])
    script = re.fullmatch(r"/bin/sh -c '(.*)'", settings["ExecStart"])
    assert script is not None
    environment = dict(entry.split("=", 1) for entry in settings["Environment"].split())
    called = subprocess.run(
        ["/bin/sh", "-c", script.group(1).replace(PROGRAM, str(tmp_path / "program"))],
        cwd=tmp_path,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    assert called.stdout.strip() == f"{asked} --keys keys --listen 0.0.0.0:9092"


def test_the_container_file_copies_what_is_there_and_asks_for_health() -> None:
    text = (DEPLOY / "Containerfile").read_text().replace("\\\n", "")
    root = DEPLOY.parent
    for line in re.findall(r"^COPY (.*)$", text, re.MULTILINE):
        *sources, _ = line.split()
        assert all((root / source).exists() for source in sources)
    assert "idiolect silo health" in text
    assert options_of("silo", "health")  # there is such a command
    base = re.search(r"^FROM \S*python:(\d+)\.(\d+)-slim$", text, re.MULTILINE)
    assert base is not None
    assert (int(base.group(1)), int(base.group(2))) >= (3, 11)
    assert re.search(r"^USER 10001$", text, re.MULTILINE)


def test_a_linter_of_container_files_has_nothing_to_say() -> None:
    hadolint = shutil.which("hadolint") or shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if hadolint is None:
        pytest.skip("hadolint is not installed")
    checked = subprocess.run([hadolint, str(DEPLOY / "Containerfile")], capture_output=True, text=True)
    assert (checked.returncode, checked.stdout) == (0, "")
