"""What a configuration leaves open, decided by the data: rates, batches, rounds.

Rates are 1/L and what each method makes of it (`Method.suited_rates`), where L is the smoothness of the
clients' losses (`smoothness.py`) or one over a rate that was found (`rate_finder.py`). The same data, seed
and model give the same L to every method, so methods are compared with rates of one origin.
"""

from dataclasses import replace
from typing import Any, NamedTuple

from idiolect.core.task import Task
from idiolect.data.federation import Federation
from idiolect.engines.engine import Setting
from idiolect.engines.ways import why_one_by_one
from idiolect.models.adapters import has_free_factors
from idiolect.privacy.settings import PrivacyChoice, RowPrivacy
from idiolect.runs.config import RunConfig, build_method
from idiolect.runs.privacy import with_noise
from idiolect.runs.rate_finder import find_rate
from idiolect.runs.setup import bound_plan, build_setting
from idiolect.runs.signatures import dump
from idiolect.runs.smoothness import linear_layer, smoothness_of

LINEAR_BATCH, OTHER_BATCH = 128, 20  # a linear model's batches are cheap, and their noise is what limits it
LINEAR_ROUNDS, OTHER_ROUNDS = 1000, 200
PATIENCE = 100
UNSEEN_SMOOTHNESS = 10.0  # where no row may be looked at: a step of 0.1, the default of most methods
_UNUSUAL = 3.0  # times the median's: a client that slows all others down is worth a note


class Decision(NamedTuple):
    """A configuration in which nothing is open, and why it is what it is."""

    config: RunConfig
    notes: tuple[str, ...]


def decide(config: RunConfig, federation: Federation) -> Decision:
    """Fill in what suits the data."""
    config = decide_all_but_rates(config, federation)
    notes = notes_on_model(config, _setting(config, federation))
    if config.open_rates:
        smoothness, reason = smoothness_for(config, federation)
        config, own = with_rates(config, smoothness, len(federation), reason)
        notes = (*own, *notes)
    config, own = decide_noise(config, federation)
    return Decision(config, (*own, *notes))


def decide_noise(config: RunConfig, federation: Federation) -> Decision:
    """Fill in the noise that privacy needs, once rates, rounds and batches are decided."""
    if config.privacy is None:
        return Decision(config, ())
    assert config.rounds is not None, "decided before"
    privacy = config.privacy
    # What a run releases does not depend on how much noise there is in it.
    rehearsed = replace(config, privacy=replace(privacy, noise=privacy.noise or 1.0))
    setting, plan = _setting(rehearsed, federation), bound_plan(config, federation)
    privacy, found = with_noise(privacy, setting, plan, config.rounds)
    return Decision(replace(config, privacy=privacy), (found, *_notes_on_clip(privacy, federation.task)))


def _notes_on_clip(privacy: PrivacyChoice, task: Task) -> tuple[str, ...]:
    """What is to be known where errors, and with them rows' gradients, may be as large as a target is."""
    if not isinstance(privacy, RowPrivacy) or task.is_classification or task.unit != 1:
        return ()
    return (
        "the target is in units of its own, and a row's gradient counts for "
        f"privacy.clip={privacy.clip:g} at most: a model that has far to go gets there slowly; "
        "data.scale_target=true or a larger clip may help",
    )


def notes_on_model(config: RunConfig, setting: Setting) -> tuple[str, ...]:
    """What is to be known of how the model is trained: what of it, and whether clients run one at a time."""
    objective, notes = setting.objective, []
    if objective.fixed_params():
        trained = sum(value.numel() for value in objective.initial_params().values())
        whole = sum(parameter.numel() for parameter in objective.module.parameters())
        notes.append(f"{trained} of {whole} parameters are trained; the others are fixed and not sent")
    if has_free_factors(objective.module):
        notes.append(
            "both factors of adapters are trained, and the average of products is not the product of "
            "averages; model.adapter.freeze_a=true makes averages exact"
        )
    if config.engine.name != "sequential" and (reason := why_one_by_one(setting)) is not None:
        notes.append(reason)
    return tuple(notes)


def decide_all_but_rates(config: RunConfig, federation: Federation) -> RunConfig:
    """Fill in batches, rounds and patience, which are the same for all methods."""
    setting = _setting(config, federation)
    is_linear = linear_layer(setting.objective.module) is not None
    patience = config.evaluation.patience
    if patience is None:
        patience = PATIENCE if config.rounds is None and config.evaluation.choose == "validation" else 0
    return replace(
        config.decided(),
        batch_size=config.batch_size or (LINEAR_BATCH if is_linear else OTHER_BATCH),
        rounds=config.rounds or (LINEAR_ROUNDS if is_linear else OTHER_ROUNDS),
        evaluation=replace(config.evaluation, patience=patience),
    )


def with_rates(config: RunConfig, smoothness: float, clients: int, reason: str) -> Decision:
    """The rates that are open, as the method makes them of the smoothness."""
    rates = build_method(config.method).suited_rates(smoothness, clients)
    chosen = {name: rates[name] for name in config.open_rates}
    section = config.method | {name: _like_default(config, name, rate) for name, rate in chosen.items()}
    shown = ", ".join(f"{name} {rate:.3g}" for name, rate in chosen.items())
    return Decision(replace(config, method=section), (f"{shown}, {reason}",))


def smoothness_for(config: RunConfig, federation: Federation) -> tuple[float, str]:
    """What rates follow from, the same for all methods, and where it comes from."""
    if config.privacy is not None:
        return UNSEEN_SMOOTHNESS, "the same for all data: what suits them would tell of rows"
    setting = _setting(config, federation)
    if linear_layer(setting.objective.module) is None:
        return 1 / find_rate(setting), "from trials on training rows of some clients"
    batch_size = None if config.batch_size == "all" else config.batch_size
    known = smoothness_of(setting.objective, setting.federation, batch_size)
    reason = "from the smoothness of the clients' losses"
    if known.largest > _UNUSUAL * known.median:
        reason += (
            f"; client {known.client!r} alone makes steps {known.largest / known.median:.1f} times shorter "
            "than a usual client needs them: look at its rows, or set clip and a larger lr"
        )
    return known.largest, reason


def _setting(config: RunConfig, federation: Federation) -> Setting:
    return build_setting(replace(config, batch_size=config.batch_size or OTHER_BATCH), federation)


def _like_default(config: RunConfig, name: str, rate: float) -> Any:
    """The rate as the method's default has it: a number, or the start of the same schedule."""
    default = dump(build_method(config.method))[name]
    rounded = float(f"{rate:.4g}")  # so that it can be read and typed
    return default | {"initial": rounded} if isinstance(default, dict) else rounded
