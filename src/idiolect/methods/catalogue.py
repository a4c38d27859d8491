"""All methods by name."""

import difflib

from idiolect.core import Method
from idiolect.errors import UserError
from idiolect.methods.additive import Additive
from idiolect.methods.afl import AFL
from idiolect.methods.agnostic_apfl import AgnosticAPFL
from idiolect.methods.apfl import APFL
from idiolect.methods.ditto import Ditto
from idiolect.methods.drfa import DRFA
from idiolect.methods.efl import EFL
from idiolect.methods.fedavg import FedAvg
from idiolect.methods.fedgate import FedGATE
from idiolect.methods.fedprox import FedProx
from idiolect.methods.ifca import IFCA
from idiolect.methods.local import Local
from idiolect.methods.local_sgd import LocalSGD
from idiolect.methods.minibatch_sgd import MiniBatchSGD
from idiolect.methods.per_fedavg import PerFedAvg
from idiolect.methods.perm import PERM, PERMTwoStage
from idiolect.methods.pfedkm import PFedKM
from idiolect.methods.pfedme import PFedMe
from idiolect.methods.scaffold import Scaffold
from idiolect.methods.submodels import FederatedDropout, FedRolex, HeteroFL
from idiolect.methods.vrl_sgd import VRLSGD

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
)


def find_method(name: str) -> type[Method]:
    """The method of that name or alias; case, spaces, dashes and underscores do not matter."""
    names = {_plain(known): method for method in METHODS for known in (method.name, *method.aliases)}
    if _plain(name) in names:
        return names[_plain(name)]
    near = difflib.get_close_matches(_plain(name), names, n=3, cutoff=0.4)
    known = ", ".join(sorted({names[n].name for n in near} or {m.name for m in METHODS}))
    raise UserError(f"method '{name}' is not known; the nearest known ones are: {known}")


def _plain(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())
