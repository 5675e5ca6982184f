"""Pages of HTML: one style, no script, no request to anybody."""

from pathlib import Path
from typing import Any

import jinja2


def page_of(template: str, **values: Any) -> str:
    """Fill a template of this folder; what it is given is escaped."""
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
    )
    return environment.get_template(template).render(values)
