"""Differential privacy: what is released of rows or of silos is clipped, noised and counted."""
