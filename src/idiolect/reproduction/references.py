"""Names in a recipe that stand for nothing: panels, lines, models, functions, metrics."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from idiolect.core.method import PredictorKind
from idiolect.errors import UserError, did_you_mean
from idiolect.evaluation.metrics import CATALOGUE as METRICS
from idiolect.evaluation.metrics import is_of_class
from idiolect.reproduction.functions import CATALOGUE as FUNCTIONS
from idiolect.reproduction.plan import Place, Plan
from idiolect.reproduction.quantities import OF_WEIGHTS, QUANTITIES, is_quantity
from idiolect.reproduction.recipe import Recipe, kind_and_line
from idiolect.runs.config import build_method


class Reference(NamedTuple):
    """A name, where it is written, and what it could be."""

    where: str
    word: str
    name: str
    known: Iterable[str]


class NamedModel(NamedTuple):
    """A model, LINE KIND or LINE KIND @ PANEL, and where it is written."""

    where: str
    model: str


def refuse_unknown_names(plan: Plan) -> None:
    """Say which one stands for nothing, before anything is played: a verdict would be inconclusive for it."""
    recipe = plan.recipe
    for reference in _references(recipe):
        _require(reference)
    for section, computed in (("functions", recipe.functions), ("constants", recipe.constants)):
        for name, of_theory in computed.items():
            FUNCTIONS.find(of_theory.of, f"{section}.{name}.of")
    for model in _models(recipe):
        _require_model(plan, model)
    for claim in recipe.claims:
        if claim.of is not None:
            _require_metric(plan, claim.of, f"the claim {claim.says!r}")


def _references(recipe: Recipe) -> Iterator[Reference]:
    for name, size in recipe.sizes.items():
        yield from (Reference(f"sizes.{name}", "panel", panel, recipe.panels) for panel in size.panels or ())
        yield from (Reference(f"sizes.{name}", "line", line, recipe.lines) for line in size.lines or ())
    for numbers in recipe.numbers:
        yield from (Reference("numbers", "panel", panel, recipe.panels) for panel in numbers.values)
    for claim in recipe.claims:
        where = f"the claim {claim.says!r}"
        yield from (Reference(where, "panel", panel, recipe.panels) for panel in claim.panels or ())
    for figure in recipe.figures:
        where = f"the figure {figure.title!r}"
        yield from (Reference(where, "panel", panel, recipe.panels) for panel in figure.panels or ())
        yield from (Reference(where, "function", name, recipe.functions) for name in figure.functions)


def _models(recipe: Recipe) -> Iterator[NamedModel]:
    for line, kind in recipe.judged.items():
        yield NamedModel("judged", f"{line} {kind}")
    for numbers in recipe.numbers:
        for models in numbers.values.values():
            yield from (NamedModel("numbers", model) for model in models)
    for figure in recipe.figures:
        yield from (NamedModel(f"the figure {figure.title!r}", model) for model in figure.models)
    for claim in recipe.claims:
        for relation in claim.relations:
            for model in (relation.first, relation.second):
                if isinstance(model, str) and model not in recipe.theory:
                    yield NamedModel(f"the claim {claim.says!r}", model)


def _require(reference: Reference) -> None:
    where, word, name, known = reference
    if name not in known:
        there = f"the {word}s are {', '.join(known)}" if any(known) else f"there are no {word}s"
        raise UserError(f"{where} names the {word} {name!r}{did_you_mean(name, known)}; {there}")


def _require_model(plan: Plan, named: NamedModel) -> None:
    model, _, panel = named.model.partition(" @ ")
    if panel:
        _require(Reference(named.where, "panel", panel, plan.recipe.panels))
    try:
        line, kind = kind_and_line(model, list(plan.recipe.lines))
    except UserError as error:
        raise UserError(f"{named.where}: {error}") from error
    kinds = _kinds(plan, line)
    if kind is not None and kind not in kinds:
        raise UserError(
            f"{named.where} names {model!r}, but {line} has no {kind} model; it has {', '.join(kinds)}"
        )


def _kinds(plan: Plan, line: str) -> tuple[PredictorKind, ...]:
    """The models that a line's method gives."""
    return build_method(plan.config_of(Place(plan.panels[0], line), plan.seeds[0], {}).method).kinds


def _require_metric(plan: Plan, name: str, where: str) -> None:
    """Refuse what is neither a quantity of runs nor a metric."""
    if is_quantity(name) or is_of_class(name) or METRICS.knows(name):
        return
    own = [METRICS.find(each).name for place in plan.places for each in _named_metrics(plan, place)]
    if name not in own:
        known = [*METRICS.built_in, *dict.fromkeys(own), *QUANTITIES, *OF_WEIGHTS]
        raise UserError(
            f"{where} is of {name!r}{did_you_mean(name, known)}, "
            "which is neither a metric nor a quantity of runs"
        )


def _named_metrics(plan: Plan, place: Place) -> list[str]:
    """The import paths of metrics that are no built-in ones."""
    chosen = plan.config_of(place, plan.seeds[0], {}).evaluation.metrics
    return [each for each in chosen if isinstance(each, str) and not is_of_class(each)]
