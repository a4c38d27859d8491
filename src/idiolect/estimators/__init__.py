"""Federations as scikit-learn's estimators."""

from idiolect.estimators.federated import FederatedClassifier, FederatedRegressor

__all__ = ["FederatedClassifier", "FederatedRegressor"]
