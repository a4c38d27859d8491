"""Idiolect: personalized federated learning."""
