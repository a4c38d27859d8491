"""From what is to be tuned to the choice in a folder."""

import os
from collections.abc import Iterator
from dataclasses import replace

from idiolect.data.federation import Federation, fingerprint
from idiolect.errors import UserError
from idiolect.evaluation.metrics import Measures, label_of
from idiolect.runs.decisions import decide_all_but_rates, smoothness_for
from idiolect.runs.lifecycle import check
from idiolect.runs.lock import LOCK, alone_in
from idiolect.runs.settings import write_settings
from idiolect.runs.setup import load_federation
from idiolect.store.files import clear_write_errors, remove_leftovers, write_bytes, write_json
from idiolect.tuning.config import TuningConfig
from idiolect.tuning.space import space_of
from idiolect.tuning.study import MethodStudy, Told
from idiolect.tuning.trials import without_test_rows
from idiolect.tuning.tuning import BEST, FORMAT, MARKER, Tuning, is_tuning


def tune_methods(config: TuningConfig, told: Told = lambda trial, share: None) -> Tuning:
    """Play the trials that are missing, and write the choice."""
    folder = config.folder
    others = folder.exists() and (not folder.is_dir() or set(os.listdir(folder)) - {LOCK})
    if others and not is_tuning(folder):
        raise UserError(f"out={str(folder)!r} exists and is not a tuning; choose another folder")
    federation = load_federation(config.configs[0])
    measures = _check(config, federation)
    with clear_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with alone_in(folder):
        _require_same(config, federation)
        remove_leftovers(folder)
        _write_marker(config, federation, measures)
        (folder / "trials").mkdir(exist_ok=True)
        for study in _studies(config, without_test_rows(federation), measures):
            study.play(told)
        tuning = Tuning(folder)
        if not tuning.best:
            raise UserError(f"no trial of the tuning {str(folder)!r} came to its end; {tuning.notes[0]}")
        write_bytes(folder / BEST, write_settings(tuning.settings).encode())
        for name in tuning.best:
            text = write_settings(tuning.settings_of(name))
            write_bytes(folder / f"best-{name}.yaml", text.encode())
    return tuning


def _studies(config: TuningConfig, federation: Federation, measures: Measures) -> Iterator[MethodStudy]:
    """One for each method, with the same budget."""
    configs = [decide_all_but_rates(run_config, federation) for run_config in config.configs]
    is_needed = any(run_config.open_rates for run_config in configs)
    smoothness = smoothness_for(configs[0], federation)[0] if is_needed else 0.0
    for run_config in configs:
        name = run_config.method_name
        yield MethodStudy(
            run_config,
            smoothness - configs[0].weight_decay,
            space_of(run_config, {*config.given[name], *config.shared}),
            federation,
            measures,
            config.budget.of_each(len(configs)),
            config.folder / "trials",
        )


def _check(config: TuningConfig, federation: Federation) -> Measures:
    """Say what is wrong with the settings before anything is written or played."""
    if not len(federation.validation.index):
        raise UserError(
            "nobody has validation rows, which settings are chosen by: "
            "leave some, as data.fractions=[0.6,0.2,0.2]"
        )
    for run_config in config.configs:
        check(decide_all_but_rates(run_config, federation), federation)
    # Trials are judged by validation rows alone.
    return replace(config.configs[0].evaluation.measures(federation), train=False)


def _require_same(config: TuningConfig, federation: Federation) -> None:
    """Refuse a folder of other settings or other data."""
    if not is_tuning(config.folder):
        return
    begun = Tuning(config.folder)
    if begun.asked != config.asked:
        raise UserError(
            f"out={str(config.folder)!r} holds another tuning; choose another folder or remove it"
        )
    if begun.data_sha256 != fingerprint(federation):
        raise UserError(
            f"the data {config.configs[0].data['name']!r} changed since the tuning {str(config.folder)!r} "
            "began; start a new one in another folder"
        )


def _write_marker(config: TuningConfig, federation: Federation, measures: Measures) -> None:
    content = {
        "format": FORMAT,
        "names": [run_config.method_name for run_config in config.configs],
        "asked": config.asked,
        "words": config.words,
        "metric": measures.main.name,
        "metric_label": label_of(measures.main.name, federation.task),
        "metric_reason": measures.reason,
        "higher_is_better": measures.main.higher_is_better,
        "data_name": config.configs[0].data_name,
        "clients": len(federation),
        "validation_rows": len(federation.validation.index),
        "data_sha256": fingerprint(federation),
    }
    write_json(config.folder / MARKER, content)
