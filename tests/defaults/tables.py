"""Tables as people have them: unscaled, correlated, rare, heavy-tailed, many columns, 4 to 139 clients.

The generated ones are drawn here; the real ones are read from the data directory where it is at hand.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

import idiolect
from idiolect.data.federation import Federation


def unscaled() -> Federation:
    """Columns from thousandths to millions, far from zero; 4 clients of 150 to 300 rows."""
    random = np.random.default_rng(1)
    scales, offsets = 10.0 ** np.array([-3, 0, 3, 6, 1, 2, -1, 4]), 10.0 ** np.array([0, 3, 5, 7, 0, 2, 0, 5])
    rule = np.array([3, -2, 1, 0.5, 0, 0, 1, -1])
    frames = []
    for client in range(4):
        x = random.normal(size=(150 + 50 * client, 8))
        y = x @ (rule + 0.5 * random.normal(size=8)) + random.normal(size=len(x))
        frames.append(_frame(x * scales + offsets, 250_000 * y + 1e6, client))
    return _federation(frames)


def correlated() -> Federation:
    """Twenty columns that are nearly three; 30 clients of 30 to 200 rows."""
    random = np.random.default_rng(2)
    directions, rule = random.normal(size=(3, 20)), random.normal(size=20)
    frames = []
    for client in range(30):
        rows = int(random.integers(30, 200))
        x = random.normal(size=(rows, 3)) @ directions + 0.1 * random.normal(size=(rows, 20))
        x += 0.3 * random.normal(size=20)
        y = x @ (rule + 0.2 * random.normal(size=20)) + 2 * random.normal(size=rows)
        frames.append(_frame(x, y, client))
    return _federation(frames)


def rare() -> Federation:
    """Six positive rows in a hundred; 139 clients of 40 to 160 rows."""
    random = np.random.default_rng(3)
    rule = random.normal(size=12)
    frames = []
    for client in range(139):
        x = random.normal(size=(int(random.integers(40, 160)), 12))
        chance = 1 / (1 + np.exp(-(0.7 * x @ (rule + 0.3 * random.normal(size=12)) - 4.2)))
        frames.append(_frame(x, np.where(random.random(len(x)) < chance, "yes", "no"), client))
    return _federation(frames)


def many_columns() -> Federation:
    """300 columns, of which 30 matter; 20 clients of 60 to 120 rows."""
    random = np.random.default_rng(4)
    rule = random.normal(size=300) * (random.random(300) < 0.1)
    frames = []
    for client in range(20):
        x = random.normal(size=(int(random.integers(60, 120)), 300))
        score = x @ (rule + 0.1 * random.normal(size=300)) + random.normal(size=len(x))
        frames.append(_frame(x, np.where(score > 0, "a", "b"), client))
    return _federation(frames)


def heavy_tails() -> Federation:
    """Columns with values 30 deviations out; 40 clients of 30 to 120 rows."""
    random = np.random.default_rng(5)
    rule = random.normal(size=10)
    frames = []
    for client in range(40):
        x = random.standard_t(2.1, size=(int(random.integers(30, 120)), 10))
        x[:, :3] = np.exp(1.2 * x[:, :3].clip(-4, 4))
        y = np.log1p(np.abs(x)) @ rule + x[:, 5] + random.standard_t(3, size=len(x))
        frames.append(_frame(x, y, client))
    return _federation(frames)


def categories() -> Federation:
    """Three columns of 15 categories each and four classes; 60 clients of 30 to 150 rows."""
    random = np.random.default_rng(6)
    effects = random.normal(size=(3, 15, 4))
    frames = []
    for client in range(60):
        rows = int(random.integers(30, 150))
        codes, numbers = random.integers(0, 15, size=(rows, 3)), random.normal(size=(rows, 2))
        scores = sum(effects[j][codes[:, j]] for j in range(3)) + 0.3 * numbers @ random.normal(size=(2, 4))
        drawn = (scores + 0.5 * random.normal(size=4) + random.gumbel(size=(rows, 4))).argmax(1)
        frame = _frame(numbers, np.array([f"class-{number}" for number in drawn]), client)
        frames.append(frame.assign(**{f"k{j}": [f"v{code}" for code in codes[:, j]] for j in range(3)}))
    return _federation(frames)


def tiny_clients() -> Federation:
    """139 clients of 3 to 12 rows, some of which are alike."""
    random = np.random.default_rng(7)
    rules = random.normal(size=(3, 5))
    frames = []
    for client in range(139):
        x = random.normal(size=(int(random.integers(3, 13)), 5))
        y = x @ rules[client % 3] + 0.3 * random.normal(size=len(x))
        frames.append(_frame(x, y, client))
    return _federation(frames)


def one_far_out() -> Federation:
    """One value of 3,000 is a thousand times too large, as a slipped decimal point makes it; 12 clients."""
    random = np.random.default_rng(8)
    rule = random.normal(size=6)
    frames = []
    for client in range(12):
        x = random.normal(size=(250, 6))
        y = x @ (rule + 0.3 * random.normal(size=6)) + random.normal(size=250)
        frames.append(_frame(x, y, client))
    frames[4].loc[17, "x2"] *= 1000
    return _federation(frames)


GENERATED: dict[str, Callable[[], Federation]] = {
    "unscaled": unscaled,
    "correlated": correlated,
    "rare": rare,
    "many columns": many_columns,
    "heavy tails": heavy_tails,
    "categories": categories,
    "tiny clients": tiny_clients,
    "one value far out": one_far_out,
}


def real_tables(folder: Path) -> dict[str, Callable[[], Federation]]:
    """The data sets by name, and three tables of the UCI repository, from a data directory."""
    tables = folder / "tables"
    cars = {"client": "make", "target": "price", "missing": "impute", "too_few": "drop"}
    air = {"target": "PM2.5", "missing": "impute"}

    def by_year() -> Federation:
        frame = pd.read_csv(tables / "beijing-air-noon.csv")
        frame["site"] = frame.station + "-" + frame.year.astype(str)
        return idiolect.load(frame.drop(columns="station"), client="site", **air)

    return {
        "vowels": lambda: idiolect.load("vowels"),
        "pendigits": lambda: idiolect.load("pendigits", data_dir=folder),
        "har": lambda: idiolect.load("har", data_dir=folder),
        "bank by job": lambda: idiolect.load(tables / "bank-additional.csv", client="job", target="y"),
        "cars by make": lambda: idiolect.load(tables / "automobile.csv", **cars),
        "cars, 6 rows or more": lambda: idiolect.load(tables / "automobile.csv", **cars, minimum_rows=6),
        "air by station": lambda: idiolect.load(tables / "beijing-air-noon.csv", client="station", **air),
        "air by station and year": by_year,
    }


def _frame(x: np.ndarray, y: np.ndarray, client: int) -> pd.DataFrame:
    frame = pd.DataFrame(x, columns=[f"x{column}" for column in range(x.shape[1])])
    return frame.assign(y=y, site=f"site-{client:03d}")


def _federation(frames: list[pd.DataFrame]) -> Federation:
    return idiolect.load(pd.concat(frames, ignore_index=True), client="site", target="y")
