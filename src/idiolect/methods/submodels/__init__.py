"""Sub-models: what a client of small capacity holds, how it is trained, and the methods that differ in it."""

from idiolect.methods.submodels.variants import FederatedDropout, FedRolex, HeteroFL

__all__ = ["FedRolex", "FederatedDropout", "HeteroFL"]
