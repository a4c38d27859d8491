"""What EFL's server and clients remember, and what crosses between them (spec 3.2, 3.3)."""

from typing import NamedTuple

from torch import Tensor

from idiolect.core import Params
from idiolect.methods.efl.terms import Activity, Elastic, Terms


class Server(NamedTuple):
    """ω, U and V, who was heard how often, and the round."""

    w: Params
    elastic: Elastic
    activity: Activity
    round: Tensor


class Client(NamedTuple):
    """x: the model after the last local steps; U and V as last told, where that is not in every round."""

    localized: Params
    terms: Terms | tuple[()]


class Down(NamedTuple):
    """ω, and U, V (nothing while they are zero, before the first report)."""

    w: Params
    fisher: Terms | tuple[()]


class Up(NamedTuple):
    """The change x - ω, the Fisher terms u_k, v_k where they are due, the completed steps s_k."""

    delta: Params
    fisher: Terms | tuple[()]
    steps: Tensor
