"""Hyper-parameters chosen on validation rows: `idiolect tune` (docs/tuning.md)."""
