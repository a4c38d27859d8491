"""Pages from templates; `templates/base.html` has the look that they share."""

from typing import Any

from idiolect.errors import UserError
from idiolect.reports.palette import DARK, LIGHT


def render(template: str, **content: Any) -> str:
    """A page with its content filled in; text is escaped."""
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError as missing:
        raise UserError("a report page needs jinja2: pip install 'idiolect[report]'") from missing
    environment = Environment(
        loader=PackageLoader("idiolect.reports"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.globals.update(light=LIGHT, dark=DARK)
    return environment.get_template(template).render(content)
