"""A package outside of idiolect: a method, a codec and a metric of its own, found by name once installed."""
