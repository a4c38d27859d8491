"""The same methods between machines: a coordinator, silos that keep their data and state, and Flower."""
