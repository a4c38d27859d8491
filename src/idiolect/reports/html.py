"""Pages from templates; `templates/base.html` has the look that they share."""

from functools import cache
from importlib.resources import files
from typing import Any

from idiolect.errors import UserError
from idiolect.reports.palette import DARK, LIGHT

OWN_SCRIPTS = ("numbers", "tables", "controls", "plots", "curves", "rows", "cells", "figures")
SCRIPTS = (
    "vendor/d3.min.js",
    "vendor/plot.umd.min.js",
    *(f"scripts/{name}.js" for name in OWN_SCRIPTS),
)
LICENCES = ("vendor/d3.LICENSE", "vendor/plot.LICENSE")  # which must be in every copy, so in every page


def render(template: str, *, package: str = "idiolect.reports", **content: Any) -> str:
    """A page with its content filled in; text is escaped. The template is in `templates/` of the package."""
    try:
        from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
    except ImportError as missing:
        raise UserError("a report page needs jinja2: pip install 'idiolect[report]'") from missing
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader("idiolect.reports")]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.globals.update(light=LIGHT, dark=DARK, scripts=scripts, licences=licences)
    return environment.get_template(template).render(content)


def prose(markdown: str) -> str:
    """Markdown as HTML, with tables; HTML within it is text. It is safe to be put into a page as it is."""
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark", {"html": False}).enable("table").render(markdown)


def scripts() -> tuple[str, ...]:
    """What draws charts in a browser: scripts of others, as they are, and our own."""
    return _files(SCRIPTS)


def licences() -> tuple[str, ...]:
    """Those of the scripts of others."""
    return _files(LICENCES)


@cache
def _files(names: tuple[str, ...]) -> tuple[str, ...]:
    package = files("idiolect.reports")
    return tuple((package / name).read_text(encoding="utf-8") for name in names)
