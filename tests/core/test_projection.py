"""Projections are the nearest points, by their optimality conditions."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from idiolect.core.projection import onto_ball, onto_simplex

vectors = st.lists(st.floats(-50, 50), min_size=1, max_size=12).map(
    lambda v: torch.tensor(v, dtype=torch.float64)
)


@given(vectors)
def test_simplex_projection_meets_the_optimality_conditions(v: torch.Tensor) -> None:
    p = onto_simplex(v)
    assert (p >= 0).all()
    assert abs(p.sum() - 1) < 1e-9
    shift = (v - p)[p > 1e-12]  # one multiplier where positive, at least as large elsewhere
    assert (shift - shift[0]).abs().max() < 1e-9
    assert ((v - p)[p <= 1e-12] <= shift[0] + 1e-9).all()


@given(vectors)
def test_a_probability_vector_is_its_own_projection(v: torch.Tensor) -> None:
    p = torch.softmax(v, 0)
    assert torch.allclose(onto_simplex(p), p, atol=1e-12)


@given(vectors, vectors)
def test_ball_projection_scales_over_all_parameters_together(a: torch.Tensor, b: torch.Tensor) -> None:
    norm = torch.cat([a, b]).norm()
    inside = onto_ball({"a": a, "b": b}, 3.0)
    factor = 1.0 if norm <= 3 else 3.0 / norm
    assert torch.allclose(inside["a"], a * factor)
    assert torch.allclose(inside["b"], b * factor)
    assert onto_ball({"a": a}, None)["a"] is a


def test_what_is_no_number_stays_none() -> None:
    """Whoever projects it may ask for a sentence; an index of it would be outside of the vector."""
    rows = torch.tensor([[0.3, torch.nan, 1.0], [0.2, 0.3, 0.5]])
    projected = onto_simplex(rows)
    assert projected[0].isnan().all()
    assert torch.allclose(projected[1], rows[1])
