"""The vocabulary in which methods are written: trees, keyed randomness, objectives, exchanges."""
