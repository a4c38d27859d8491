"""One colour and one mark for one method, on every page and whatever it is compared with."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np

from idiolect.methods.catalogue import METHODS
from idiolect.reports.palette import LIGHT, SERIES
from idiolect.runs.reported import ALONE, SHARED

# Squares and diamonds belong to the two baselines.
_MARKS = "o^PvX*<p>d"
# The numbers of colours and marks have no common factor: no two of these places look the same.
_PLACES = SERIES * len(_MARKS)


@dataclass(frozen=True)
class MethodStyle:
    """How a method is drawn: the name of its colour in the palette, its mark, the width of its lines."""

    colour_name: str
    mark: str
    width: float = 1.5

    @property
    def colour(self) -> str:
        """In the light, which `themed` drawings replace."""
        return LIGHT[self.colour_name]


@dataclass(frozen=True)
class KindStyle:
    """How a model kind is drawn, in its method's colour."""

    line: Any  # as matplotlib has it
    word: str  # for the line
    fill: str  # of the mark


_BASELINES = {
    ALONE[0]: MethodStyle("alone", "s", 2.2),
    SHARED[0]: MethodStyle("shared", "D", 2.2),
}
_KINDS = {
    "personal": KindStyle("-", "solid", "full"),
    "global": KindStyle((0, (5, 2)), "dashed", "none"),
    "localized": KindStyle((0, (1, 1.5)), "dotted", "left"),
    "group": KindStyle((0, (6, 2, 1, 2)), "dash-dotted", "bottom"),
}
_OTHER_KIND = KindStyle((0, (6, 2, 1, 2, 1, 2)), "dash-dot-dotted", "top")


def _at(place: int) -> MethodStyle:
    return MethodStyle(f"series-{place % SERIES}", _MARKS[place % len(_MARKS)])


# Those that are often compared differ in colour; the others follow by the order of the catalogue, where a
# method that is added at the end changes no other one's style. There are nine colours: from the tenth on each
# is that of a method which the papers do not compare it with.
_OFTEN = (
    *("apfl", "efl", "pfedkm", "perm", "additive", "ditto", "pfedme", "ifca", "per-fedavg"),
    *("afl", "drfa", "scaffold", "fedprox"),
)
_BUILT_IN = [*dict.fromkeys([*_OFTEN, *(method.name for method in METHODS if method.name not in _BASELINES)])]
_STYLES = {**_BASELINES, **{name: _at(place) for place, name in enumerate(_BUILT_IN)}}


def method_styles(methods: Iterable[str]) -> dict[str, MethodStyle]:
    """The style of each method; those from elsewhere get one by their name that no other one here has."""
    methods = list(dict.fromkeys(methods))
    styles = {name: _STYLES[name] for name in methods if name in _STYLES}
    free = [_at(place) for place in range(len(_BUILT_IN), _PLACES)]
    for name in sorted(set(methods) - set(styles)):
        styles[name] = free.pop(crc32(name.encode()) % len(free))
    return {name: styles[name] for name in methods}


def nth_style(place: int) -> MethodStyle:
    """The style of something that is no method, by its place."""
    return _at(place)


def kind_style(kind: str) -> KindStyle:
    """The style of a model kind."""
    return _KINDS.get(kind, _OTHER_KIND)


def mark_path(mark: str, size: float) -> str:
    """A mark as the path of an SVG, with its centre at 0, 0."""
    from matplotlib.markers import MarkerStyle

    style = MarkerStyle(mark)
    outline = style.get_path().transformed(style.get_transform())
    corners = np.asarray(outline.to_polygons()[0])
    return "M" + "L".join(f"{size * x:.1f} {-size * y:.1f}" for x, y in corners) + "Z"
