"""Additive and the baselines end where mathematics says on quadratics.

f_i(w) = ½ Σ_j h_ij (w_j - c_ij)², so k steps of rate η shrink the distance to c by (1 - ηh)^k.
"""

import pytest

from idiolect.methods.additive import Additive
from idiolect.methods.ditto import Ditto
from idiolect.methods.fedgate import FedGATE
from idiolect.methods.fedprox import FedProx
from idiolect.methods.minibatch_sgd import MiniBatchSGD
from idiolect.methods.per_fedavg import PerFedAvg
from idiolect.methods.scaffold import Scaffold
from idiolect.methods.vrl_sgd import VRLSGD
from idiolect.testing import check_fixed_point

RATE, STEPS = 0.3, 3


def mean_of_optima(problem, weights):
    return ((weights * problem.optimum).sum(0) / weights.sum(0)).expand_as(problem.optimum)


def minimum_of_the_mean(problem):
    return {"global": mean_of_optima(problem, problem.curvature)}


def local_sgd_point(problem):
    return mean_of_optima(problem, 1 - (1 - RATE * problem.curvature) ** STEPS)


def fedprox_point(problem):
    """Local steps end at p + ρ^k (w - p), p = (h c + μ w) / (h + μ), ρ = 1 - η (h + μ); their mean is w."""
    h, mu = problem.curvature, 0.8
    return {"global": mean_of_optima(problem, (1 - (1 - RATE * (h + mu)) ** STEPS) * h / (h + mu))}


def ditto_point(problem):
    w, h, lam = local_sgd_point(problem), problem.curvature, 0.7
    return {"global": w, "personal": (h * problem.optimum + lam * w) / (h + lam)}


def per_fedavg_point(problem):
    """f(w - α∇f(w)) = ½ h (1 - αh)² (w - c)²."""
    h, alpha = problem.curvature, 0.3
    w = mean_of_optima(problem, h * (1 - alpha * h) ** 2)
    return {"global": w, "personal": w - alpha * h * (w - problem.optimum)}


def own_optima(problem):
    return {"personal": problem.optimum}


@pytest.mark.parametrize(
    ("method", "fixed_point"),
    [
        (Additive(lr=0.2, personal_rate=0.15, outer_step=1.2, local_steps=STEPS), own_optima),
        (MiniBatchSGD(lr=RATE, local_steps=STEPS), minimum_of_the_mean),
        (FedProx(lr=RATE, mu=0.8, local_steps=STEPS), fedprox_point),
        (Scaffold(lr=RATE, local_steps=STEPS, outer_step=0.9), minimum_of_the_mean),
        (Scaffold(lr=RATE, local_steps=STEPS, control="gradient"), minimum_of_the_mean),
        (FedGATE(lr=RATE, local_steps=STEPS, outer_step=0.9), minimum_of_the_mean),
        (VRLSGD(lr=RATE, local_steps=STEPS), minimum_of_the_mean),
        (Ditto(lr=RATE, proximal=0.7, local_steps=STEPS), ditto_point),
        (PerFedAvg(lr=RATE, adaptation_rate=0.3, hessian="exact", local_steps=1), per_fedavg_point),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_models_end_at_the_known_point(method, fixed_point):
    check_fixed_point(method, fixed_point, 150)
