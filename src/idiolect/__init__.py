"""Personalized federated learning: many clients learn together, each ends with a model of its own."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from idiolect.api import (
        compare,
        export,
        method,
        personalize,
        predict,
        report,
        reproduce,
        resume,
        run,
        show,
        train,
        tune,
    )
    from idiolect.bench.suite import benchmark
    from idiolect.data.arrays import from_arrays, from_datasets
    from idiolect.data.catalogue import describe, load
    from idiolect.data.federation import Federation
    from idiolect.data.picture import draw
    from idiolect.data.tables import from_frame
    from idiolect.errors import UserError
    from idiolect.estimators import FederatedClassifier, FederatedRegressor
    from idiolect.evaluation.metrics import evaluate
    from idiolect.models import build_model
    from idiolect.participation import Participation
    from idiolect.reproduction.reproduce import Reproduction, list_recipes
    from idiolect.result import Result
    from idiolect.runs.cards import list_datasets, list_methods
    from idiolect.runs.client_model import load_model
    from idiolect.runs.comparison import Comparison
    from idiolect.runs.folder import RunFolder
    from idiolect.runs.personal_model import PersonalModel
    from idiolect.runs.personalization import Newcomers
    from idiolect.silo.choosing import silo_choose
    from idiolect.silo.deployment import (
        join,
        serve,
        silo_add,
        silo_audit,
        silo_back,
        silo_init,
        silo_keys,
        silo_ledger,
        silo_renew,
        silo_revoke,
    )
    from idiolect.silo.health import silo_health
    from idiolect.simulation import Simulation
    from idiolect.tuning.tuning import Tuning

__all__ = [
    "Comparison",
    "FederatedClassifier",
    "FederatedRegressor",
    "Federation",
    "Newcomers",
    "Participation",
    "PersonalModel",
    "Reproduction",
    "Result",
    "RunFolder",
    "Simulation",
    "Tuning",
    "UserError",
    "benchmark",
    "build_model",
    "compare",
    "describe",
    "draw",
    "evaluate",
    "export",
    "from_arrays",
    "from_datasets",
    "from_frame",
    "join",
    "list_datasets",
    "list_methods",
    "list_recipes",
    "load",
    "load_model",
    "method",
    "personalize",
    "predict",
    "report",
    "reproduce",
    "resume",
    "run",
    "serve",
    "show",
    "silo_add",
    "silo_audit",
    "silo_back",
    "silo_choose",
    "silo_health",
    "silo_init",
    "silo_keys",
    "silo_ledger",
    "silo_renew",
    "silo_revoke",
    "train",
    "tune",
]

_HOMES = {
    "api": (
        "compare",
        "export",
        "method",
        "personalize",
        "predict",
        "report",
        "reproduce",
        "resume",
        "run",
        "show",
        "train",
        "tune",
    ),
    "bench.suite": ("benchmark",),
    "data.arrays": ("from_arrays", "from_datasets"),
    "data.catalogue": ("describe", "load"),
    "data.federation": ("Federation",),
    "data.picture": ("draw",),
    "data.tables": ("from_frame",),
    "errors": ("UserError",),
    "estimators": ("FederatedClassifier", "FederatedRegressor"),
    "evaluation.metrics": ("evaluate",),
    "models": ("build_model",),
    "participation": ("Participation",),
    "reproduction.reproduce": ("Reproduction", "list_recipes"),
    "result": ("Result",),
    "runs.cards": ("list_datasets", "list_methods"),
    "runs.client_model": ("load_model",),
    "runs.comparison": ("Comparison",),
    "runs.folder": ("RunFolder",),
    "runs.personal_model": ("PersonalModel",),
    "runs.personalization": ("Newcomers",),
    "silo.choosing": ("silo_choose",),
    "silo.deployment": (
        "join",
        "serve",
        "silo_add",
        "silo_audit",
        "silo_back",
        "silo_init",
        "silo_keys",
        "silo_ledger",
        "silo_renew",
        "silo_revoke",
    ),
    "silo.health": ("silo_health",),
    "simulation": ("Simulation",),
    "tuning.tuning": ("Tuning",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    # Only what is used is imported: the command line answers before torch is loaded.
    if name not in _HOME_OF:
        raise AttributeError(f"module 'idiolect' has no attribute {name!r}")
    return getattr(import_module(f"idiolect.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
