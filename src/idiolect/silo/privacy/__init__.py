"""Differential privacy at a silo: its own randomness, noise in its uploads, what it has spent."""
