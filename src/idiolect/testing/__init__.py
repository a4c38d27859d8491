"""For whoever writes a method: put it through the contract that every method here keeps."""

from idiolect.testing.checks import FixedPoint, MethodError, Reduction, check_method
from idiolect.testing.problems import Quadratics, small_network, uneven_classification

__all__ = [
    "FixedPoint",
    "MethodError",
    "Quadratics",
    "Reduction",
    "check_method",
    "small_network",
    "uneven_classification",
]
