"""Settings that were added later do not rename what was kept before there were any."""

import hashlib
import json

import pytest

from idiolect.errors import UserError
from idiolect.runs import identity as module
from idiolect.runs.config import RunConfig, resolve
from idiolect.runs.lifecycle import find_run, start_or_continue
from idiolect.runs.signatures import dump, fields_of
from idiolect.store.files import read_json, write_json

SETTINGS = {
    "method": {"name": "fedavg"},
    "data": {"name": "synthetic", "clients": 3},
    "rounds": 1,
    "threads": 1,
}


def test_what_was_added_later_has_the_default_that_is_left_out():
    config = resolve(SETTINGS)
    for path, default in module.ADDED_LATER.items():
        first, *rest = path.split(".")
        assert first in fields_of(RunConfig)
        value = dump(config)[first]
        for name in rest:
            value = value.get(name, default)
        assert value == default, path


def test_a_run_is_named_as_before_a_setting_was_added(monkeypatch):
    config = resolve(SETTINGS)
    before = {key: value for key, value in config.plain().items() if key not in module.ADDED_LATER}
    without_clip = {key: value for key, value in before.items() if key != "clip"}
    monkeypatch.setitem(module.ADDED_LATER, "clip", None)
    assert config.identity() == without_clip
    assert resolve({**SETTINGS, "clip": 1.0}).identity() == {**before, "clip": 1.0}
    names = {resolve({**SETTINGS, "clip": clip}).folder.name for clip in (None, 1.0, 2.0)}
    assert len(names) == 3


def test_a_folder_from_before_a_setting_was_added_is_the_same_run(tmp_path, monkeypatch):
    config = resolve({**SETTINGS, "out": str(tmp_path / "run")})
    folder = start_or_continue(config)
    facts = read_json(folder.path / "run.json")
    del facts["asked"]["clip"]
    write_json(folder.path / "run.json", facts)
    text = (folder.path / "config.yaml").read_text()
    (folder.path / "config.yaml").write_text(text.replace("clip: null\n", ""))
    monkeypatch.setitem(module.ADDED_LATER, "clip", None)
    assert find_run(config).path == folder.path
    with pytest.raises(UserError, match="holds another run"):
        find_run(resolve({**SETTINGS, "clip": 1.0, "out": str(tmp_path / "run")}))


def test_recipes_name_their_runs_by_identity(tmp_path):
    from idiolect.reproduction.plan import plans_of
    from idiolect.reproduction.recipe import find_recipe, recipe_names

    plan = plans_of([find_recipe(recipe_names()[0])], "small", [0], tmp_path)[0]
    config = plan.config_of(plan.places[0], 0, {})
    digest = hashlib.sha256(json.dumps(config.identity(), sort_keys=True).encode()).hexdigest()[:12]
    assert config.folder.name.endswith(digest)
