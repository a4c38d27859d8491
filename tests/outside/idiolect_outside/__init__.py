"""A package outside of idiolect: one of everything that can be one's own, found by name once installed."""
