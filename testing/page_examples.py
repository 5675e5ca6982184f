"""Examples in the documents: blocks of Python under a heading, run as they stand."""

import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
_EXAMPLE = re.compile(r"^## (.*?)\n.*?^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def examples_of(page: str) -> dict[str, str]:
    """The first block of each section of a page in docs/, by its heading."""
    return dict(_EXAMPLE.findall((DOCS / page).read_text("utf-8")))


def executed(page: str, title: str) -> dict[str, Any]:
    """Run an example in the current directory; the names that it leaves behind."""
    names: dict[str, Any] = {}
    exec(compile(examples_of(page)[title], title, "exec"), names)  # noqa: S102
    return names
