"""The small compiler of the vectorised engine: a step is recorded, rewritten by passes, and vouched for."""
