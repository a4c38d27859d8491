"""For whoever writes a method, a codec or an engine: the contract that each of its kind keeps here."""

from idiolect.testing.codec_contract import check_codec
from idiolect.testing.contract import ContractError
from idiolect.testing.engine_contract import check_engine
from idiolect.testing.method_contract import FixedPoint, Reduction, check_fixed_point, check_method
from idiolect.testing.problems import Quadratics, small_network, uneven_classification

__all__ = [
    "ContractError",
    "FixedPoint",
    "Quadratics",
    "Reduction",
    "check_codec",
    "check_engine",
    "check_fixed_point",
    "check_method",
    "small_network",
    "uneven_classification",
]
