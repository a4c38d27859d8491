"""Data of one's own: clients that do not agree."""

import numpy as np
import pandas as pd

from idiolect import Federation
from idiolect.data.tables import from_frame


def frame(clients: int, rows: int, seed: int) -> pd.DataFrame:
    """Clients whose classes lie apart in directions of their own."""
    random = np.random.default_rng(seed)
    tables = []
    for number in range(clients):
        x, direction = random.normal(size=(rows, 3)), random.normal(size=3)
        labels = np.where(x @ direction > 0, "yes", "no")
        tables.append(pd.DataFrame(x, columns=["a", "b", "c"]).assign(y=labels, client=f"site-{number}"))
    return pd.concat(tables, ignore_index=True)


def blobs(clients: int = 4, *, rows: int = 30, seed: int) -> Federation:
    """Yes or no, for each client by a rule of its own."""
    return from_frame(frame(clients, rows, seed), client="client", target="y", seed=seed)
