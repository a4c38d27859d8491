"""Methods that go the way of another one through everything but their own equations.

Engines, devices, facts, codecs and transcriptions take every method in `make test`. The contract of methods,
and crosses of methods with commands, newcomers, divergence and plans take one of each family there, and all
of them in `make test-slow`; whoever is not named here, as a new method, is its own family.
"""

from typing import Any

import pytest

from idiolect.core.method import Method
from idiolect.methods.catalogue import METHODS

LIKE = {
    "fedprox": "fedavg",
    "local-sgd": "fedavg",
    "minibatch-sgd": "fedavg",
    "fedavgm": "fedadam",
    "fedadagrad": "fedadam",
    "fedyogi": "fedadam",
    "fedgate": "scaffold",
    "vrl-sgd": "scaffold",
    "afl": "drfa",
    "fedrolex": "heterofl",
    "federated-dropout": "heterofl",
    "lg-fedavg": "fedper",
    "fedbn": "fedper",
    "silobn": "fedper",
    "fedrep": "fedper",
    "heur-fedamp": "fedamp",
}

assert {*LIKE, *LIKE.values()} <= {method.name for method in METHODS}

# Families first, so that those who are computed together are.
BY_FAMILY: tuple[type[Method], ...] = tuple(sorted(METHODS, key=lambda method: method.name in LIKE))


def of_family(name: str) -> Any:
    """The marks of a case of a method: `slow` for all but one of each family."""
    return pytest.mark.slow if name in LIKE else ()


def each_family(argument: str, *, methods: tuple[type[Method], ...] = BY_FAMILY) -> Any:
    """A mark for tests of every method, of which one of each family is often run."""
    cases = [pytest.param(method, marks=of_family(method.name), id=method.name) for method in methods]
    return pytest.mark.parametrize(argument, cases)
