"""All methods by name."""

import inspect
import re
from typing import Any

from pydantic.dataclasses import is_pydantic_dataclass

from idiolect.core import Method
from idiolect.methods.additive import Additive
from idiolect.methods.afl import AFL
from idiolect.methods.agnostic_apfl import AgnosticAPFL
from idiolect.methods.apfl import APFL
from idiolect.methods.ditto import Ditto
from idiolect.methods.drfa import DRFA
from idiolect.methods.efl import EFL
from idiolect.methods.fedala import FedALA
from idiolect.methods.fedamp import FedAMP, HeurFedAMP
from idiolect.methods.fedavg import FedAvg
from idiolect.methods.fedbabu import FedBABU
from idiolect.methods.fedfomo import FedFomo
from idiolect.methods.fedgate import FedGATE
from idiolect.methods.fedopt import FedAdagrad, FedAdam, FedAvgM, FedYogi
from idiolect.methods.fedpac import FedPAC
from idiolect.methods.fedproto import FedProto
from idiolect.methods.fedprox import FedProx
from idiolect.methods.fedrep import FedRep
from idiolect.methods.fedrod import FedRoD
from idiolect.methods.ifca import IFCA
from idiolect.methods.knn_per import KNNPer
from idiolect.methods.local import Local
from idiolect.methods.local_sgd import LocalSGD
from idiolect.methods.minibatch_sgd import MiniBatchSGD
from idiolect.methods.per_fedavg import PerFedAvg
from idiolect.methods.perm import PERM, PERMTwoStage
from idiolect.methods.personal_parts import FedBN, FedPer, LGFedAvg, SiloBN
from idiolect.methods.pfedkm import PFedKM
from idiolect.methods.pfedme import PFedMe
from idiolect.methods.scaffold import Scaffold
from idiolect.methods.submodels import FederatedDropout, FedRolex, HeteroFL
from idiolect.methods.vrl_sgd import VRLSGD
from idiolect.plugins import Catalogue, kind_of

METHODS: tuple[type[Method], ...] = (
    Local,
    FedAvg,
    APFL,
    EFL,
    PFedKM,
    PFedMe,
    IFCA,
    AFL,
    DRFA,
    AgnosticAPFL,
    Additive,
    LocalSGD,
    MiniBatchSGD,
    PERM,
    PERMTwoStage,
    HeteroFL,
    FedRolex,
    FederatedDropout,
    FedProx,
    Scaffold,
    FedGATE,
    VRLSGD,
    Ditto,
    PerFedAvg,
    FedPer,
    FedRep,
    FedBABU,
    LGFedAvg,
    FedBN,
    SiloBN,
    FedAvgM,
    FedAdagrad,
    FedAdam,
    FedYogi,
    FedRoD,
    FedALA,
    FedProto,
    FedPAC,
    FedAMP,
    HeurFedAMP,
    FedFomo,
    KNNPer,
)


def find_method(name: str) -> type[Method]:
    """The method of that name or alias, of an installed package, or at an import path."""
    return CATALOGUE.find(name)


def _flaw(found: Any) -> str | None:
    if not (inspect.isclass(found) and issubclass(found, Method)):
        return f"it must be a class derived from idiolect.core.Method, not {kind_of(found)}"
    if inspect.isabstract(found):
        lacking = sorted(found.__abstractmethods__)
        return f"the class {found.__name__} lacks {', '.join(lacking)}"
    unsaid = [fact for fact in ("name", "kinds", "judged_by") if not hasattr(found, fact)]
    if unsaid:
        return f"the class {found.__name__} does not say {' and '.join(unsaid)}"
    # It is part of folders' names and begins settings such as apfl.mixing=0.5.
    if not (isinstance(found.name, str) and re.fullmatch(r"[A-Za-z0-9_-]+", found.name)):
        return f"its name {found.name!r} must be of letters, digits, - and _"
    if not is_pydantic_dataclass(found):
        return (
            f"the class {found.__name__} must be a dataclass of pydantic: "
            "@dataclass(frozen=True, kw_only=True, config=STRICT)"
        )
    open_ended = [name for name, field in found.__pydantic_fields__.items() if field.is_required()]
    if open_ended:
        return f"its hyper-parameter {open_ended[0]} must have a default"
    return None


CATALOGUE: Catalogue[type[Method]] = Catalogue(
    word="method",
    several="methods",
    group="idiolect.methods",
    own="your own as package.module:Class",
    flaw=_flaw,
    built_in={method.name: method for method in METHODS},
    aliases={alias: method.name for method in METHODS for alias in method.aliases},
)
