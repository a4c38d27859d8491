"""Speed: the vectorised engine against a plain loop, methods against FedAvg, many clients against few."""

from idiolect.bench.benchmark import run_bench
from idiolect.bench.display import render

__all__ = ["render", "run_bench"]
