"""What the command line does, as functions with the same words; and training in memory.

>>> import idiolect
>>> federation = idiolect.load("vowels", seed=0)
>>> result = idiolect.train("apfl", federation, rounds=4, evaluate_every=2, local_steps=5)
>>> result.metrics.columns.tolist()
['round', 'client', 'kind', 'part', 'metric', 'value']
>>> result.summary.index.tolist()
['global', 'localized', 'personal']
>>> model = result.model("speaker-03")  # a torch.nn.Module
>>> model(federation.inputs[:2]).shape
torch.Size([2, 11])
>>> result.predict("speaker-03", federation.inputs[:2])[0] in federation.class_names
True
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn

from idiolect.core.method import Method
from idiolect.data.federation import Federation
from idiolect.data.reading import Reading, read_table
from idiolect.errors import UserError
from idiolect.methods.catalogue import find_method
from idiolect.reports import can_write_reports, require_libraries, write_report
from idiolect.reproduction.play import Told as ToldRuns
from idiolect.reproduction.reproduce import Reproduction, publish_results, reproduce_recipes
from idiolect.result import Memory, Result
from idiolect.runs.client_model import export_model, load_model
from idiolect.runs.comparison import (
    PAGE,
    Comparison,
    compare_methods,
    open_folder,
    read_seeds,
    resolve_comparison,
)
from idiolect.runs.config import resolve
from idiolect.runs.decisions import decide
from idiolect.runs.folder import RunFolder
from idiolect.runs.lifecycle import Watch, continue_run, nobody, refuse_newcomers, start_or_continue
from idiolect.runs.personal_model import PersonalModel
from idiolect.runs.personalization import Newcomers
from idiolect.runs.personalization import personalize as give_models
from idiolect.runs.privacy import ledger_of
from idiolect.runs.programs import export_program
from idiolect.runs.reported import CHOSEN
from idiolect.runs.rounds import play_rounds
from idiolect.runs.settings import Source, read_settings
from idiolect.runs.setup import build_simulation, load_parties
from idiolect.runs.signatures import build
from idiolect.store.files import write_bytes
from idiolect.tuning.budget import read_budget
from idiolect.tuning.config import resolve_tuning
from idiolect.tuning.page import write_page
from idiolect.tuning.play import tune_methods
from idiolect.tuning.study import Told
from idiolect.tuning.tuning import Tuning, is_tuning

FolderPath = str | Path
ONLY_IN_FOLDERS = ("out", "store", "checkpoint", "trackers")


def method(name: str, **hyper_parameters: Any) -> Method:
    """A method by its name, such as `method("apfl", mixing=0.5)`, or your own as package.module:Class."""
    return build(find_method(name), hyper_parameters, "method")


def train(
    method: Method | str | Mapping[str, Any],
    data: Federation | pd.DataFrame | str | Path | Mapping[str, Any],
    model: nn.Module | Callable[[], nn.Module] | str | Mapping[str, Any] | None = None,
    **settings: Any,
) -> Result:
    """Train in memory and evaluate every client as it goes on; `settings` are those of `run`.

    method, data, model: objects, or the words that `run` takes; a data frame as
        `data={"name": frame, "client": "hospital", "target": "outcome"}`.
    """
    named = {"method": method, "data": data} | ({} if model is None else {"model": model})
    chosen = read_settings([named, settings])
    for name in ONLY_IN_FOLDERS:
        if name in chosen:
            raise UserError(f"{name} is not a setting of train, which writes no files: use idiolect.run")
    config = resolve(chosen)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    federation, newcomers = load_parties(config)
    config, _ = decide(config, federation)
    simulation = build_simulation(config, federation)
    if newcomers is not None:
        refuse_newcomers(config, simulation, newcomers)
    measures = config.evaluation.measures(federation)
    memory = Memory()
    choose = config.evaluation.choose
    ledger = ledger_of(simulation, config.privacy, memory.table("privacy"))
    broke_off = play_rounds(simulation, config.pace, measures, memory, choice=choose, ledger=ledger)
    return Result(simulation, memory, measures, choose, broke_off, newcomers, config.newcomers.steps)


def run(*sources: Source, watch: Watch = nobody, **settings: Any) -> RunFolder:
    """Train one method and keep the run in a folder; the same run is continued where it stopped.

    sources: YAML files, and settings as on the command line, such as "method.mixing=0.5".
    settings: the same by name, `run(method="apfl", data="vowels", rounds=50, **{"method.mixing": 0.5})` or
        `run(method={"name": "apfl", "mixing": 0.5}, ...)`; the last one wins.
    watch: is called with the run's configuration, and gives those who are to be told what happens: objects
        with `played(round_number)` and `evaluated(round_number, metrics)`.
    """
    config = resolve(read_settings([*sources, settings]))
    return start_or_continue(config, watch)


def resume(
    folder: FolderPath, *, device: str | None = None, watch: Watch = nobody
) -> RunFolder | Comparison | Tuning:
    """Continue a run, a comparison or a tuning that was stopped, bitwise as if it had not been.

    Of a comparison, runs that failed are tried again.
    device: another one to continue a run on, as "cpu"; then equal up to rounding.
    """
    if device is not None:
        RunFolder(folder).move_to(device)
    if is_tuning(folder):
        return tune(Tuning(folder).words, out=folder)
    found = open_folder(folder)
    if isinstance(found, Comparison):
        return _with_page(compare_methods(found.config, watch))
    return continue_run(found, watch)


def compare(*sources: Source, watch: Watch = nobody, **settings: Any) -> Comparison:
    """Compare methods on the same clients, rows, batches and initial models; takes what `run` takes.

    Instead of `method` it takes `methods=["local", "fedavg", "apfl"]`, and `seeds`: how many, or which.
    Settings of one method are `apfl={"mixing": 0.5}`. A report page is written where the extra `report` is
    installed. A run that fails is a row with its reason; the same call again tries it again.
    """
    return _with_page(compare_methods(resolve_comparison(read_settings([*sources, settings])), watch))


def tune(*sources: Source, told: Told = lambda trial, share: None, **settings: Any) -> Tuning:
    """Choose settings of methods by their validation rows; takes what `compare` takes, of one seed.

    budget: the time of all methods together, `"20m"`, `"90s"` or `"2h"`, the same for each; or
    trials: how many each method has, which gives the same choice every time.
    told: is called with every finished trial and the share of its method's budget that is spent.

    What is given is not tuned. The same call goes on where it was stopped, and with a larger budget further.
    `idiolect.compare(tuning.settings)` takes the choice.
    """
    tuning = tune_methods(resolve_tuning(read_settings([*sources, settings])), told)
    if can_write_reports():
        write_page(tuning)
    return tuning


def reproduce(
    *recipes: str,
    size: str = "small",
    seeds: int | str | list[int] | None = None,
    budget: str | None = None,
    jobs: int | None = None,
    out: FolderPath = "runs/reproduce",
    publish: FolderPath | None = None,
    told: ToldRuns = lambda recipe, done, total: None,
) -> Reproduction:
    """Play the papers' experiments and say which of their claims hold; without recipes, all of them.

    recipes: names that `list_recipes` has, or YAML files of the same form.
    size: "small", or "paper" for the paper's own setting.
    seeds: how many, or which; None: as many as the recipe says.
    budget: a time, as "2h", after which no run begins.
    jobs: processes at once; None: as many as there are processors.
    publish: a folder to copy pages, tables and figures to, but no runs.
    told: is called with the recipe that is played, how many runs are done, and of how many.

    Runs are kept by their configurations: what was played before is not played again.
    """
    found = reproduce_recipes(
        recipes,
        size=size,
        seeds=None if seeds is None else read_seeds(seeds),
        out=Path(out),
        jobs=jobs,
        budget=None if budget is None else read_budget({"budget": budget}).seconds,
        told=told,
    )
    if publish is not None:
        publish_results(Path(out), Path(publish))
    return found


def _with_page(comparison: Comparison) -> Comparison:
    if can_write_reports():
        write_report([comparison.path], comparison.path / PAGE)
    return comparison


def show(folder: FolderPath) -> RunFolder | Comparison | Tuning:
    """The finished run, comparison or tuning in a folder: its tables, and every client's values."""
    if is_tuning(folder):
        return Tuning(folder)
    found = open_folder(folder)
    if isinstance(found, Comparison):
        found.require_finished()
    else:
        found.summary()  # says that it is not finished
    return found


def report(
    *folders: FolderPath | RunFolder | Comparison | Tuning, out: FolderPath = "runs/report.html"
) -> Path:
    """Write a page with tables and figures from one or more runs or comparisons, or from one tuning."""
    known = RunFolder | Comparison | Tuning
    paths = [each.path if isinstance(each, known) else Path(each) for each in folders]
    if (tuned := next((path for path in paths if is_tuning(path)), None)) is None:
        write_report(paths, Path(out))
        return Path(out)
    if len(paths) > 1:
        raise UserError(f"{str(tuned)!r} is a tuning, which has a page of its own: give it alone")
    require_libraries()
    return write_page(Tuning(tuned), Path(out))


def export(
    run: FolderPath | RunFolder | Comparison | None = None,
    *,
    client: str | None = None,
    state: FolderPath | None = None,
    out: FolderPath | None = None,
    to: FolderPath | None = None,
    kind: str | None = None,
) -> Path:
    """Write one client's model, in the state that the run reports; a silo writes its own.

    client: whose model of the run; the model of the kind global is everybody's and needs none.
    state: at a silo, its state folder; in place of `run` and `client`.
    out: a folder for `predict` and `load_model`: model.safetensors, model.json and model-card.md.
    to: instead of `out` a file for other programs: model.pt2 (PyTorch) or model.onnx; its card is beside it.
    kind: global, localized, personal or group; by default what the method is judged by. Of a comparison
        "chosen": what the client keeps by its own validation rows (`Comparison.kept_by` says which).
    """
    if (run is None) == (state is None):
        raise UserError("give either RUN, the folder of a run, or --state, the state folder of a silo")
    if state is not None:
        if client is not None or out is not None or to is None:
            raise UserError("--state goes with --to model.pt2 or --to model.onnx, not with --client or --out")
        from idiolect.silo import offline

        return offline.export_program(Path(state), Path(to), kind)
    assert run is not None
    if client is None and kind != "global":
        raise UserError("--client is missing: whose model of the run; or --kind global, for everybody's")
    if (out is None) == (to is None):
        raise UserError("give either --out, a folder, or --to, a file that ends in .pt2 or .onnx")
    found, kind = _run_and_kind(run, client, kind)
    if out is not None:
        return export_model(found, client, Path(out), kind)
    return export_program(found, client, Path(str(to)), kind)


def _run_and_kind(
    run: FolderPath | RunFolder | Comparison, client: str | None, kind: str | None
) -> tuple[RunFolder, str | None]:
    """Which run's model of which kind is meant; of a comparison the one that the client chose."""
    found = run if isinstance(run, RunFolder | Comparison) else open_folder(run)
    if isinstance(found, RunFolder):
        if kind == CHOSEN:
            raise UserError(
                f"--kind {CHOSEN} goes with the folder of a comparison: a client chooses between runs"
            )
        return found, kind
    if kind != CHOSEN or client is None:
        runs = ", ".join(each.path.name for each in found.runs[:3])
        raise UserError(
            f"{str(found.path)!r} is a comparison: give one of its runs ({runs}, ...), or --client with "
            f"--kind {CHOSEN} for the model that the client keeps by its validation rows"
        )
    kept = found.kept_by(client)
    return found.run_of(kept.model.method, kept.seed), kept.model.kind


def predict(
    model: FolderPath | PersonalModel | None = None,
    table: FolderPath | pd.DataFrame | None = None,
    *,
    state: FolderPath | None = None,
    kind: str | None = None,
    out: FolderPath | None = None,
    proba: bool = False,
    separator: str = "auto",
    decimal: str = "auto",
    encoding: str = "auto",
) -> "pd.Series[Any] | pd.DataFrame":
    """Predict the rows of a table: with an exported model, or at a silo with its own.

    model: a folder that `export` wrote, or what `load_model` read from it.
    table: a CSV or Parquet file with the features, or a data frame.
    state: at a silo, its state folder; in place of `model`. `kind` goes with it.
    out: a CSV file to write.
    proba: instead of classes their probabilities, a column for each class.
    separator, decimal, encoding: how the file is written, where that is not to be recognised.
    """
    if (model is None) == (state is None):
        raise UserError(
            "give either MODEL, an exported folder, or --state, the state folder of a silo (with --data)"
        )
    if table is None:
        raise UserError("give one table, as TABLE or with --data: a CSV or Parquet file with the features")
    if model is not None and kind is not None:
        raise UserError(f"--kind {kind} goes with --state: an exported model is of one kind already")
    if state is not None:
        from idiolect.silo.offline import personal_model

        chosen = personal_model(Path(state), kind)
    else:
        chosen = model if isinstance(model, PersonalModel) else load_model(str(model))
    if proba:
        chosen.require_classes()
    fitted = chosen.preprocessing
    missing_values = Reading.missing_values if fitted is None else fitted.missing_values
    reading = Reading(separator, decimal, encoding, missing_values, asked_as="--")
    rows = table if isinstance(table, pd.DataFrame) else read_table(table, reading)
    predictions = chosen.predict_proba(rows) if proba else chosen.predict(rows)
    if out is not None:
        write_bytes(Path(out), predictions.to_csv(index=False).encode())
    return predictions


def personalize(run: FolderPath | RunFolder, *sources: Source, **settings: Any) -> Newcomers:
    """Give clients that were not there in training a model, from the state that a run reports.

    data: their table; `data.client` and `data.fractions` are the run's unless given.
    steps: replaces the local steps of a round.
    out: a folder to write their models to, as `export` does; without it nothing is saved.
    """
    found = run if isinstance(run, RunFolder) else RunFolder(run)
    return give_models(found, read_settings([*sources, settings]))
