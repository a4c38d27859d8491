"""Rates of a run between silos, where the configuration leaves them open: no row is needed for them.

A schema standardises columns over all silos' rows, so the mean of |x|² over these rows is at most the number
of columns, and one for the bias: a column gives a number of mean square 1, or indicators of which one is 1
(and perhaps one of missing values).
That bounds the smoothness of all rows together (`runs/smoothness.py`). A single silo's rows may lie further
out, hence twice the bound. It is cautious: a simulation on rows at hand takes larger steps.
"""

from collections.abc import Sequence

import pandas as pd

from idiolect.data.preprocessing import Preprocessing
from idiolect.engines.local_view import stand_in
from idiolect.runs.config import RunConfig
from idiolect.runs.decisions import Decision, with_rates
from idiolect.runs.setup import build_setting
from idiolect.runs.smoothness import curvature, linear_layer

_MARGIN = 2.0


def decide_rates(config: RunConfig, schema: Preprocessing, silos: Sequence[str]) -> Decision:
    """Rates for linear models from the schema alone; networks keep the defaults of their methods."""
    rows = pd.DataFrame(1, index=list(silos), columns=["train", "validation", "test"])
    objective = build_setting(config, stand_in(schema, rows)).objective
    if not config.open_rates or linear_layer(objective.module) is None:
        return Decision(config, ())
    most = 1 + sum(1 + column.indicator for column in schema.columns)
    bound = curvature(objective) * most + objective.weight_decay
    reason = "from the number of columns; a simulation on rows at hand may find larger ones"
    return with_rates(config, _MARGIN * bound, len(silos), reason)
