"""A chart of each kind, and pages made of charts."""

import math
from collections.abc import Iterable

import numpy as np

from idiolect.reports.browser import charts_html
from idiolect.reports.charts import Bars, Chart, Curves, HeatMap, Intervals, Series, Spread
from idiolect.reports.html import render
from idiolect.reports.room import Room

CLIENTS = tuple(f"client-{number:02d}" for number in range(12))


def curve(name: str, method: str, kind: str, height: float, *, aside: bool = False) -> Series:
    rounds = list(range(0, 101, 10))
    y = [height * (1 - 0.7 * 2 ** (-number / 20)) for number in rounds]
    x = {"round": rounds, "megabytes": [0.03 * number for number in rounds]}
    return Series(name, x, y, [v - 0.02 for v in y], [v + 0.02 for v in y], method, kind, aside=aside)


def curves() -> Curves:
    level = Series(
        "local personal", {"round": [0, 100]}, [0.2, 0.5], method="local", kind="personal", level=0.5
    )
    lines = [
        curve("apfl personal", "apfl", "personal", 0.8),
        curve("fedavg global", "fedavg", "global", 0.6),
        curve("apfl global", "apfl", "global", 0.4, aside=True),
        level,
    ]
    return Curves(
        "Learning curves", "How well the models do after each evaluation.", lines, "accuracy", percent=True
    )


def own_weights() -> Curves:
    rounds = {"round": [1, 2, 3, 4]}
    lines = [
        Series(client, rounds, [place / 20, place / 15, place / 13, place / 12], client=client)
        for place, client in enumerate(CLIENTS)
    ]
    middle = Series("median", rounds, [0.3, 0.35, 0.4, 0.45], method="apfl", kind="personal")
    return Curves("Weights over time", "The weight of each client's own model.", [*lines, middle], "α")


def spread(clients: Iterable[str] = CLIENTS) -> Spread:
    random = np.random.default_rng(3)
    values = {
        model: {
            client: float(value) for client, value in zip(clients, random.uniform(*ends, 10**4), strict=False)
        }
        for model, ends in {"apfl personal": (0.5, 0.9), "fedavg global": (0.3, 0.6)}.items()
    }
    looks = {"apfl personal": ("apfl", "personal"), "fedavg global": ("fedavg", "global")}
    return Spread(
        "How each client fares", "A mark for each client.", "accuracy", values, percent=True, looks=looks
    )


def intervals() -> Intervals:
    rows = [("apfl", 0.03, 0.01, 0.05), ("efl", -0.01, -0.04, 0.02), ("perm", -0.05, -0.09, -0.01)]
    return Intervals(
        "Gains", "Gains over training alone with 95 % intervals.", "gain, points", rows, percent=True
    )


def mixing() -> HeatMap:
    weights = np.random.default_rng(5).dirichlet(np.ones(12), 12).tolist()
    words = ("client", "helper", "weight")
    return HeatMap("Who learns from whom", "Weights of helpers.", CLIENTS, CLIENTS, weights, *words)


def labels() -> HeatMap:
    groups = [[(place + column // 4) % 3 for column in range(8)] for place in range(12)]
    rounds = [str(number) for number in range(1, 9)]
    words = ("client", "round", "group")
    return HeatMap("Groups", "The group of each client.", CLIENTS, rounds, groups, *words, categorical=True)


def bars() -> Bars:
    groups = {"apfl up": {"w": 3.0}, "perm up": {"w": 1.0, "gradient": 2.5}}
    return Bars("What crosses the wire", "Megabytes by part.", "megabytes", groups)


def every_chart() -> list[Chart]:
    return [curves(), own_weights(), spread(), intervals(), mixing(), labels(), bars()]


def odd_charts() -> list[Chart]:
    """Charts with nothing, or nothing usual, to draw."""
    return [
        Curves("none", "d", [], "y"),
        Curves("empty", "d", [Series("a", {"round": []}, [])], "y"),
        Curves("nan", "d", [Series("a", {"round": [1, 2]}, [math.nan, math.nan])], "y", y_log=True),
        Curves("inf", "d", [Series("a", {"round": [1, 2]}, [math.inf, 1.0])], "y"),
        Curves("one value", "d", [Series("a", {"round": [5]}, [0.3])], "y"),
        Curves("powers", "d", [Series("a", {"round": [1, 10, 1000]}, [3e-6, 0.2, 70.0])], "y", True, True),
        Spread("nobody", "d", "l", {"apfl": {}}),
        Spread("nan", "d", "l", {"apfl": {"a": math.nan}}),
        Spread("far", "d", "l", {"apfl": {"a": 5.0, "b": 900.0}}, room=Room(4.0, 40.0, logarithmic=True)),
        Intervals("nothing", "d", "l", []),
        Intervals("no ends", "d", "l", [("a", 1.0, math.nan, math.nan), ("b", math.inf, math.nan, math.nan)]),
        HeatMap("no cells", "d", [], [], [], "r", "c", "v"),
        HeatMap("hole", "d", ["a"], ["b", "c"], [[1.0, math.nan]], "r", "c", "v"),
        Bars("no bars", "d", "l", {}),
        Bars("zero", "d", "l", {"a": {"w": 0.0}}),
    ]


def page_of(charts: Iterable[Chart]) -> str:
    """A page with charts alone."""
    return render("chart-page.html", title="Charts").replace("<main>", f"<main>{charts_html(charts)}", 1)
