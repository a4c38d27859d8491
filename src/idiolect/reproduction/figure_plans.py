"""What a recipe draws.

| draw       | shows                                                                                     |
|------------|-------------------------------------------------------------------------------------------|
| curves     | a metric of the models over rounds, a chart for each panel                                |
| panels     | a metric of the models at the reported round, over the panels                             |
| spread     | every client's value of a metric, a chart for each panel                                  |
| diagnostic | what a method tells of itself, over rounds: its mean (`index: mean`), all of it one after |
|            | the other (`index: all`: steps of rounds), or one of it                                   |
| matrix     | the mixing weights between clients at the last round                                      |
| labels     | the group of each client over rounds                                                      |
| path       | one metric over another, round by round: the way of a model in the plane                  |
| bars       | a quantity of each line                                                                   |
| functions  | the curves of theory; `functions` of other charts stand beside what was measured          |
"""

from typing import Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from idiolect.core.hyper import STRICT
from idiolect.reproduction.claims import Part

Drawing = Literal["curves", "panels", "spread", "diagnostic", "matrix", "labels", "path", "bars", "functions"]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class FigurePlan:
    """One figure of a recipe."""

    draw: Drawing
    title: str
    of: str | None = Field(
        default=None, description="a metric, a diagnostic or a quantity; None: the main metric"
    )
    second: str | None = Field(default=None, description="of a path: the metric of the other axis")
    part: Part | None = None
    models: tuple[str, ...] = Field(
        default=(), description="LINE KIND, or LINE; empty: what each is judged by"
    )
    panels: tuple[str, ...] | None = None
    functions: tuple[str, ...] = ()
    index: int | Literal["mean", "all"] = "mean"
    x: str = Field(default="round", description="what the axis is called where it has no rounds")
    x_values: tuple[float, ...] = Field(default=(), description="the panels as numbers")
    x_log: bool = False
    y_log: bool = False
