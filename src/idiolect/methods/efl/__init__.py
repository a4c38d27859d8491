"""EFL: the method, its Fisher terms and what its server makes of them."""

from idiolect.methods.efl.efl import EFL

__all__ = ["EFL"]
