"""Makes HTML pages with one style, without scripts or network requests."""

from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jinja2

from gdpfed.report.console import Table

SECTIONS_TEMPLATE = "sections_page.html"


@dataclass(frozen=True)
class Picture:
    """A picture on an HTML page, as PNG, with its title."""

    title: str
    png: bytes

    @property
    def source(self) -> str:
        """The picture as a data URL, which needs no network."""
        return f"data:image/png;base64,{b64encode(self.png).decode()}"


@dataclass(frozen=True)
class Section:
    """A section of an HTML page: a heading, and a picture, table or note below."""

    title: str
    picture: Picture | None = None
    table: Table | None = None
    note: str = ""


def drawn_picture(draw: Callable[[Path], None]) -> bytes:
    """Call a drawing function that writes a file, and return the PNG."""
    with TemporaryDirectory() as directory:
        draw(picture := Path(directory) / "picture.png")
        return picture.read_bytes()


def page_of(template: str, *, folder: Path | None = None, **values: Any) -> str:
    """Fill an HTML template; all values are escaped."""
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        loader=jinja2.FileSystemLoader([*([] if folder is None else [folder]), Path(__file__).parent]),
    )
    return environment.get_template(template).render(values)
