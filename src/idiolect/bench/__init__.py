"""Speed: the vectorised engine against a plain loop, methods against FedAvg, many clients against few."""

from idiolect.bench.render import render
from idiolect.bench.run import run_bench

__all__ = ["render", "run_bench"]
