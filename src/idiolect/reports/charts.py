"""Figures as data, without any drawing in them.

`charts_html` (`browser.py`) puts them on a page, where a reader can hover, choose and zoom; `save_static`
(`static.py`) makes SVG and PNG files of the same descriptions. A title names the figure, a description says
in words what it shows: it is the caption, and what a screen reader reads aloud.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from idiolect.reports.room import Room

Row = tuple[str, float, float, float]  # name, value, low, high


@dataclass(frozen=True)
class Series:
    """One line of `Curves`. What is not defined is nan: the line has a gap there.

    x: the places by the axis' name, such as "round", "megabytes", "seconds"; the reader chooses the axis.
    low, high: the ends of a band around the line.
    method, kind: give colour and dash, the same on all pages; without a method they follow the order.
    client: the client whose line it is: thin, until the reader picks the client.
    level: where it is on axes that it has no places on, as a level line: who sends nothing, over megabytes.
    aside: not shown until the reader asks for it, and not on paper.
    """

    name: str
    x: Mapping[str, Sequence[float]]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    method: str | None = None
    kind: str | None = None
    client: str | None = None
    level: float | None = None
    aside: bool = False

    def __post_init__(self) -> None:
        beside = {**self.x, "low": self.low, "high": self.high}
        for name, values in beside.items():
            if values is not None and len(values) != len(self.y):
                raise ValueError(f"{self.name} has {len(self.y)} values of y and {len(values)} of {name}")
        if (self.low is None) != (self.high is None):
            raise ValueError(f"{self.name} has one end of its band only")


@dataclass(frozen=True)
class Curves:
    """Lines over a choice of axes; on an axis that it does not have a series is level, or left out.

    percent: y is a share, shown in percent.
    markers: with a mark at each value, for few values.
    room: the ends of the vertical axis; by default those that most values need.
    """

    title: str
    description: str
    series: Sequence[Series]
    y_label: str
    y_log: bool = False
    x_log: bool = False
    markers: bool = False
    percent: bool = False
    room: Room | None = None

    @property
    def axes(self) -> list[str]:
        """The names of all axes, in the order of their first series."""
        return list(dict.fromkeys(name for series in self.series for name in series.x))


@dataclass(frozen=True)
class Spread:
    """How values spread over clients: a row for each model, a mark for each client in it.

    looks: the method and the kind of each model, which give colour and mark.
    room: the ends of the axis; by default those that most values need.
    """

    title: str
    description: str
    label: str
    values: Mapping[str, Mapping[str, float]]  # model -> client -> value
    percent: bool = False
    looks: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    room: Room | None = None
    higher_is_better: bool = True

    @property
    def clients(self) -> list[str]:
        """The names of all clients, in the order of their first model."""
        return list(dict.fromkeys(client for own in self.values.values() for client in own))


@dataclass(frozen=True)
class Intervals:
    """Values with the ends of their intervals, a row for each; `zero` draws the line that they are told from.

    percent: they are differences of shares, shown in points.
    """

    title: str
    description: str
    label: str
    rows: Sequence[Row]
    zero: bool = True
    percent: bool = False


@dataclass(frozen=True)
class HeatMap:
    """A value, or the number of a category, for each row and column; nan is left empty."""

    title: str
    description: str
    rows: Sequence[str]
    columns: Sequence[str]
    values: Sequence[Sequence[float]]
    row_label: str
    column_label: str
    value_label: str
    categorical: bool = False

    def __post_init__(self) -> None:
        if len(self.values) != len(self.rows) or any(len(row) != len(self.columns) for row in self.values):
            raise ValueError(f"{self.title}: values are not {len(self.rows)} x {len(self.columns)}")


@dataclass(frozen=True)
class Bars:
    """A bar for each group, stacked of named parts."""

    title: str
    description: str
    label: str
    groups: Mapping[str, Mapping[str, float]]  # group -> part -> value

    @property
    def parts(self) -> list[str]:
        """The names of all parts, in the order of their first group."""
        return list(dict.fromkeys(part for own in self.groups.values() for part in own))


Chart = Curves | Spread | Intervals | HeatMap | Bars
