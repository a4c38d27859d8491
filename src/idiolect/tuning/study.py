"""The trials of one method: Optuna proposes settings and says which trials are worth going on with.

The first trial has the settings that are not tuned, and is always played to its end. Optuna's sampler (TPE)
proposes the others from those before; its successive halving (Li et al. 2020, the asynchronous kind) looks at
a trial after 1/27, 1/9 and 1/3 of the rounds and ends it unless it is among the best third of those that came
so far. A finished trial is a file. The sampler's seed is a function of the run's seed, the method and the
trial's number, so a study that was killed goes on as if it had not been.
"""

import math
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idiolect.core import rng
from idiolect.core.hyper import Tunable
from idiolect.data.federation import Federation
from idiolect.errors import UserError
from idiolect.evaluation.metrics import Measures
from idiolect.runs.config import RunConfig
from idiolect.store.files import clear_write_errors, read_json, write_json
from idiolect.tuning.budget import Budget
from idiolect.tuning.space import Space, chosen_settings, configured, default_point
from idiolect.tuning.trials import Clock, Follow, Outcome, State, Stop, Trial, from_record, play_trial

if TYPE_CHECKING:
    import optuna

REDUCTION = 3  # of three trials at a rung one goes on
FIRST_SHARE = 27  # the first rung is after this part of the rounds
MOST_FAILURES = 5  # in a row, from the first trial on: then a method is given up

Told = Callable[[Trial, float], None]  # a trial, and the share of the method's budget that is spent


@dataclass(frozen=True)
class MethodStudy:
    """The trials of one method, in a folder that holds those of all methods."""

    config: RunConfig  # decided but for rates
    smoothness: float  # that rates follow from
    space: Space
    federation: Federation  # without test rows
    measures: Measures
    budget: Budget  # of this method
    folder: Path

    @property
    def name(self) -> str:
        """The method's."""
        return self.config.method_name

    def trials(self) -> list[Trial]:
        """Those that are finished, in their order."""
        return read_trials(self.folder, self.name, self.measures.main.higher_is_better)

    def play(self, told: Told) -> None:
        """Play the trials that the budget has left."""
        trials = self.trials()
        with _quiet_optuna() as optuna:
            study = self._restored(optuna, trials)
            while not self._is_over(trials):
                trials.append(self._next(optuna, study, trials))
                self._write(trials[-1])
                told(trials[-1], min(1.0, self._spent(trials)))

    def _is_over(self, trials: list[Trial]) -> bool:
        hopeless = len(trials) >= MOST_FAILURES and all(trial.state == "failed" for trial in trials)
        nothing_to_tune = bool(trials) and not self.space
        return self._spent(trials) >= 1 or hopeless or nothing_to_tune

    def _spent(self, trials: list[Trial]) -> float:
        """The share of the budget; the first trial is played whatever it takes."""
        if self.budget.seconds is None:
            assert self.budget.trials is not None
            return len(trials) / self.budget.trials
        return sum(trial.seconds for trial in trials) / self.budget.seconds

    def _restored(self, optuna: Any, trials: list[Trial]) -> "optuna.Study":
        """Optuna's memory of finished trials."""
        study = optuna.create_study(
            direction="maximize" if self.measures.main.higher_is_better else "minimize",
            pruner=optuna.pruners.SuccessiveHalvingPruner(
                min_resource=self._first_rung, reduction_factor=REDUCTION, min_early_stopping_rate=0
            ),
        )
        for trial in trials:
            state = _optuna_state(optuna, trial.state)
            study.add_trial(
                optuna.trial.create_trial(
                    state=state,
                    value=trial.value if trial.state == "complete" else None,
                    params=trial.point,
                    distributions={name: _distribution(optuna, self.space[name]) for name in trial.point},
                    intermediate_values=trial.reported,
                    system_attrs=trial.rungs,
                )
            )
        return study

    @property
    def _first_rung(self) -> int:
        assert self.config.rounds is not None
        return max(self.config.evaluation.every, math.ceil(self.config.rounds / FIRST_SHARE))

    def _next(self, optuna: Any, study: "optuna.Study", trials: list[Trial]) -> Trial:
        number = len(trials)
        left = math.inf
        if self.budget.seconds is not None:
            left = self.budget.seconds - sum(trial.seconds for trial in trials)
        clock = Clock(left)
        distributions = {name: _distribution(optuna, tried) for name, tried in self.space.items()}
        if number == 0:
            point = default_point(self.config, self.space)
            study.enqueue_trial(point)
            distributions = {name: distributions[name] for name in point}
        seed = rng.generator_seed(rng.key(self.config.seed, f"tune {self.name}", number)) % 2**32
        study.sampler = optuna.samplers.TPESampler(seed=seed)
        asked = study.ask(distributions)
        assert asked.number == number

        def follow(round_number: int, value: float) -> None:
            asked.report(value, round_number)
            if asked.should_prune() and number > 0:
                raise Stop("stopped")
            if number > 0 and clock.over:
                raise Stop("late")

        outcome, settings = self._play(asked.params, follow)
        complete = outcome.state == "complete"
        told = study.tell(
            asked, outcome.value if complete else None, state=_optuna_state(optuna, outcome.state)
        )
        rungs = {
            name: value for name, value in told.system_attrs.items() if name.startswith("completed_rung")
        }
        return Trial(
            method=self.name,
            number=number,
            **outcome._asdict(),
            seconds=clock.seconds,
            point=asked.params,
            settings=settings,
            reported=told.intermediate_values,
            rungs=rungs,
        )

    def _play(self, point: dict[str, Any], follow: Follow) -> tuple[Outcome, dict[str, Any]]:
        """Play a trial; what goes wrong ends the trial and not the study."""
        settings: dict[str, Any] = {}
        try:
            decided = configured(self.config, point, self.smoothness, len(self.federation))
            settings = chosen_settings(self.config, decided, self.space)
            return play_trial(decided, self.federation, self.measures, follow), settings
        except UserError as error:
            reason = " ".join(str(error).split())
        except Exception as error:
            self._log(error)
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return Outcome("failed", math.nan, math.inf, 0, 0, reason), settings

    def _write(self, trial: Trial) -> None:
        write_json(self.folder / f"{self.name}-{trial.number:04}.json", trial._asdict())

    def _log(self, error: Exception) -> None:
        path = self.folder.parent / "log.txt"
        with clear_write_errors(path), path.open("a", encoding="utf-8") as file:
            file.write("".join(traceback.format_exception(error)))


def read_trials(folder: Path, method: str, higher_is_better: bool) -> list[Trial]:
    """The finished trials of a method, in their order."""
    trials: list[Trial] = []
    while (path := folder / f"{method}-{len(trials):04}.json").is_file():
        trials.append(from_record(read_json(path), higher_is_better))
    return trials


def best_trial(trials: list[Trial], higher_is_better: bool) -> Trial | None:
    """The complete trial with the best validation value, the earlier one of equals; so tuning never loses."""
    best: Trial | None = None
    for trial in trials:
        if trial.state == "complete" and (
            best is None or trial.score(higher_is_better).better_than(best.score(higher_is_better))
        ):
            best = trial
    return best


def _distribution(optuna: Any, tried: Tunable) -> Any:
    if isinstance(tried, list):
        return optuna.distributions.CategoricalDistribution(tried)
    return optuna.distributions.FloatDistribution(*tried, log=True)


def _optuna_state(optuna: Any, state: State) -> Any:
    """Diverged trials are among those that are not worth going on with: the sampler keeps away from them."""
    states = optuna.trial.TrialState
    if state == "failed":
        return states.FAIL
    return states.COMPLETE if state == "complete" else states.PRUNED


@contextmanager
def _quiet_optuna() -> Iterator[Any]:
    """Optuna, without its log: what there is to say is said by those who are told."""
    try:
        import optuna
    except ImportError as missing:
        raise UserError("tuning needs optuna: pip install 'idiolect[tune]'") from missing
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield optuna
    finally:
        optuna.logging.set_verbosity(verbosity)
