"""What is to be tuned, from the settings that people give."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from idiolect.errors import UserError
from idiolect.methods.catalogue import find_method
from idiolect.runs.comparison import resolve_comparison
from idiolect.runs.config import RunConfig
from idiolect.runs.settings import Settings, write_settings
from idiolect.runs.signatures import spelled_out
from idiolect.strict_json import to_json
from idiolect.tuning.budget import Budget, read_budget


@dataclass(frozen=True)
class TuningConfig:
    """What is to be tuned, and how much."""

    configs: tuple[RunConfig, ...]  # one for each method
    given: Mapping[str, Settings]  # by method: what the user has decided about it
    shared: Settings  # what the user has decided for all of them, as plain data
    budget: Budget
    folder: Path

    @property
    def asked(self) -> Settings:
        """As settings that mean the same again, without the budget, which may grow."""
        methods = [config.method["name"] for config in self.configs]
        own = {name: given for name, given in self.given.items() if given}
        plain: Settings = json.loads(to_json({"methods": methods, **self.shared, **own}))
        return plain

    @property
    def words(self) -> Settings:
        """The same with the budget."""
        seconds, trials = self.budget
        return {**self.asked, **({"trials": trials} if seconds is None else {"budget": f"{seconds}s"})}


def resolve_tuning(settings: Settings) -> TuningConfig:
    """What `methods=local,apfl budget=20m ...` asks for; the rest is a comparison of one seed."""
    settings = dict(settings)
    budget = read_budget(settings)
    for name in ("budget", "trials"):
        settings.pop(name, None)
    if "seeds" in settings:
        raise UserError("seeds is not a setting of tune, which has one: give seed=1, and seeds to compare")
    configs = [replace(config, out=None) for config in resolve_comparison(settings).configs]
    given = {config.method_name: _given(config, settings) for config in configs}
    plain = configs[0].plain()
    # The split that is tuned on: in other seeds' splits its validation rows would be test rows.
    data = {"seed": configs[0].seed, **plain["data"]}
    shared = {name: plain[name] for name in plain if name in settings and name != "method"} | {"data": data}
    tuning = TuningConfig(tuple(configs), given, shared, budget, Path())
    return replace(tuning, folder=Path(settings.get("out") or _default_folder(tuning)))


def _given(config: RunConfig, settings: Settings) -> Settings:
    """What the user has decided about one method, by hyper-parameter."""
    kind = find_method(config.method["name"])
    own = spelled_out(kind, {**settings.get("method", {}), **settings.get(kind.name, {})})
    given = {name: config.method[name] for name in own if name in config.method}
    return given | ({"weight_decay": config.weight_decay} if "weight_decay" in own else {})


def _default_folder(tuning: TuningConfig) -> Path:
    """A name under runs/ that follows from what is tuned."""
    digest = hashlib.sha256(write_settings(tuning.words).encode()).hexdigest()[:8]
    return Path("runs") / f"{Path(tuning.configs[0].data_name).stem}-tune-{digest}"
