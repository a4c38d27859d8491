"""The colours of pages, in the light and in the dark; `templates/base.html` makes CSS variables of them."""

import re
from collections.abc import Mapping

LIGHT: Mapping[str, str] = {
    "ink": "#1d2329",
    "paper": "#ffffff",
    "panel": "#f3f5f7",
    "faint": "#5b6670",
    "line": "#dbe0e4",
    "accent": "#0072b2",
    "good": "#00805d",
    "bad": "#b94a00",
    "alone": "#15191d",  # the baseline "training alone"
    "shared": "#7b8791",  # the baseline "one shared model"
    # Okabe and Ito's, as far as they can be seen on white, and more that people with any colour vision can
    # tell apart from them.
    "series-0": "#0072b2",
    "series-1": "#d55e00",
    "series-2": "#009372",
    "series-3": "#c4609a",
    "series-4": "#a67c00",
    "series-5": "#4b3fa0",
    "series-6": "#882255",
    "series-7": "#5d8a00",
    "series-8": "#8a5a33",
}
DARK: Mapping[str, str] = {
    "ink": "#e4e9ed",
    "paper": "#14181c",
    "panel": "#1f252b",
    "faint": "#a3afb9",
    "line": "#38424b",
    "accent": "#5cb8f2",
    "good": "#2cc79b",
    "bad": "#ff8f52",
    "alone": "#f4f7f9",
    "shared": "#8b98a3",
    "series-0": "#4aaef0",
    "series-1": "#ff7d33",
    "series-2": "#24c196",
    "series-3": "#f29cc8",
    "series-4": "#dcb03c",
    "series-5": "#a497ff",
    "series-6": "#d9557f",
    "series-7": "#a3cf3f",
    "series-8": "#c99b74",
}
SERIES = sum(name.startswith("series-") for name in LIGHT)
_NAMES = {colour: name for name, colour in LIGHT.items()}


def themed(svg: str) -> str:
    """A drawing whose light colours are the page's variables, so that it turns dark with the page.

    >>> themed('<path style="stroke: #1d2329; fill: #0072B2"/>')
    '<path style="stroke: var(--ink); fill: var(--series-0)"/>'
    """

    def variable(found: "re.Match[str]") -> str:
        name = _NAMES.get(found[0].lower())
        return found[0] if name is None else f"var(--{name})"

    return re.sub(r"#[0-9a-fA-F]{6}\b", variable, svg)
