"""Numpy generators by key, for the distributions that keyed uniform numbers do not offer."""

import numpy as np

from idiolect.core import rng


def generator(seed: int, purpose: str, *parts: int) -> np.random.Generator:
    """A fresh generator that is a pure function of its arguments."""
    return np.random.default_rng(rng.generator_seed(rng.key(seed, purpose, *parts)))
