"""Speed: the vectorised engine against a plain loop, methods against FedAvg, many clients against few."""

from idiolect.bench.display import render
from idiolect.bench.suite import benchmark

__all__ = ["benchmark", "render"]
