"""The constants of the theorems for federations of diagonal quadratics, exactly. Spec 7.1, 7.2.

Client m minimises f_m(w) = ½ Σ_j h_mj (w_j - c_mj)². The federations `quadratics`, `quadratic-pair` and
`quadratic-line` are made of these; a row's gradient is that of f_m plus a deviation that does not depend on
w.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from idiolect.core.inputs import shown_shapes
from idiolect.data.federation import Federation
from idiolect.errors import UserError
from idiolect.evaluation.theory.elastic import ProblemConstants

_SAME = 1e-6  # relative: rows of one client whose curvatures differ by less have one


@dataclass(frozen=True)
class QuadraticProblem:
    """Quadratics of some clients; all means over clients are plain ones, as in the papers.

    >>> from idiolect.data.quadratics import quadratic_pair
    >>> pair = QuadraticProblem.of(quadratic_pair(double=True))
    >>> round(pair.strong_convexity, 9), round(pair.smoothness, 9), round(pair.condition_number, 9)
    (2.0, 4.0, 2.0)
    >>> [round(x, 4) for x in pair.optimum.tolist()]
    [14.3333, 16.3333]
    """

    curvatures: Tensor  # h, float64[clients, d]
    optima: Tensor  # c, float64[clients, d]
    row_variance: Tensor  # float64[clients]: E |∇f_m(w; one row) - ∇f_m(w)|², over all of its rows
    sizes: Tensor  # int64[clients]: training rows

    @classmethod
    def of(cls, federation: Federation) -> "QuadraticProblem":
        """From the training rows of a federation of quadratics (inputs √h, targets √h c + deviation / √h)."""
        inputs = federation.inputs
        if not (isinstance(inputs, Tensor) and inputs.shape == federation.targets.shape and inputs.ndim == 2):
            raise UserError(
                f"inputs {shown_shapes(inputs)} and targets {tuple(federation.targets.shape)} must "
                "have one shape [rows, d]: take data=quadratics, quadratic-pair or quadratic-line"
            )
        curvatures, optima, variances = [], [], []
        for rows in federation.train.index.split(federation.train.sizes.tolist()):
            roots, targets = federation.inputs[rows].double(), federation.targets[rows].double()
            if not torch.allclose(roots, roots[:1].expand_as(roots), rtol=_SAME, atol=0):
                raise UserError("the rows of a client must have one curvature: take data=quadratics")
            gradients = roots * targets  # a row's gradient is h w minus this
            curvatures.append(roots[0].square())
            optima.append(gradients.mean(0) / curvatures[-1])
            variances.append((gradients - gradients.mean(0)).square().sum(1).mean())
        return cls(
            torch.stack(curvatures), torch.stack(optima), torch.stack(variances), federation.train.sizes
        )

    @property
    def clients(self) -> int:
        """M."""
        return len(self.sizes)

    @property
    def strong_convexity(self) -> float:
        """μ: the smallest curvature."""
        return float(self.curvatures.min())

    @property
    def smoothness(self) -> float:
        """L: the largest curvature."""
        return float(self.curvatures.max())

    @property
    def condition_number(self) -> float:
        """κ = L / μ."""
        return self.smoothness / self.strong_convexity

    @property
    def radius(self) -> float:
        """B = max_m |c_m|: how far the clients' optima are from zero."""
        return float(self.optima.norm(dim=1).max())

    @property
    def optimum(self) -> Tensor:
        """w*, where the mean of all f_m is least: Σ_m h_m c_m / Σ_m h_m in each coordinate."""
        return (self.curvatures * self.optima).sum(0) / self.curvatures.sum(0)

    @property
    def optimum_gaps(self) -> Tensor:
        """Δ_m = |c_m - w*|², float64[clients]."""
        return (self.optima - self.optimum).square().sum(1)

    @property
    def heterogeneity(self) -> float:
        """ζ* of Additive's assumption 3, as small as it can be: L sqrt(mean_m |c_m - w*|²)."""
        return self.smoothness * float(self.optimum_gaps.mean().sqrt())

    @property
    def loss_gaps(self) -> Tensor:
        """f_m(w*) - min f_m, float64[clients]: what each client loses by sharing one model."""
        return 0.5 * (self.curvatures * (self.optimum - self.optima).square()).sum(1)

    def gradients(self, w: Tensor) -> Tensor:
        """∇f_m(w), float64[clients, d]."""
        return self.curvatures * (w.double() - self.optima)

    def gradient_diversity(self, w: Tensor | None = None) -> Tensor:
        """ζ_m = |∇F(w) - ∇f_m(w)|² of each client, F the mean of all f_m, float64[clients].

        Without w its supremum over all w. That is finite only where all clients have the same curvatures,
        and is then |h (c_m - c̄)|².
        """
        if w is None:
            if not torch.allclose(self.curvatures, self.curvatures[:1].expand_as(self.curvatures)):
                raise UserError("w=None needs clients of equal curvatures: else ζ grows with w, so give w")
            w = self.optimum
        gradients = self.gradients(w)
        return (gradients - gradients.mean(0)).square().sum(1)

    def gradient_variance(self, batch_size: int | None) -> Tensor:
        """σ_m² of a batch without replacement, float64[clients]: σ²/b · (n - b)/(n - 1); None: all rows."""
        batch = self.sizes if batch_size is None else self.sizes.clamp_max(batch_size)
        return self.row_variance / batch * (self.sizes - batch) / (self.sizes - 1).clamp_min(1)

    def mean_squared_distance(self, models: Tensor) -> float:
        """(1/M) Σ_m |v_m - c_m|², which bounds for strongly convex losses are about; models [clients, d]."""
        return float((models.double() - self.optima).square().sum(1).mean())

    def mean_excess_loss(self, models: Tensor) -> float:
        """(1/M) Σ_m f_m(v_m) - min f_m, which bounds for convex losses are about."""
        return float(0.5 * (self.curvatures * (models.double() - self.optima).square()).sum(1).mean())

    def for_elastic(self, start: Tensor, radius: float, batch_size: int | None) -> ProblemConstants:
        """What EFL's bound asks for, for models that stay within `radius` of zero in every coordinate."""
        largest = (self.curvatures * (radius + self.optima.abs())).square().sum(1)
        return ProblemConstants(
            strong_convexity=self.strong_convexity,
            smoothness=self.smoothness,
            shares=self.sizes / self.sizes.sum().double(),
            gradient_variance=self.gradient_variance(batch_size),
            gradient_bound=float((largest + self.row_variance).max()),
            gaps=self.loss_gaps,
            start_distance=float((start.double() - self.optimum).square().sum()),
        )
