"""Read the commands of docs/operations.md, section by section, so that drills run them as they are."""

import re

from testing.project import PROJECT

PAGE = PROJECT / "docs" / "operations.md"


def blocks(title: str) -> list[str]:
    """Return the commands below a heading, up to the next heading: one text for each indented block.

    Raises LookupError: the page has no such heading, or no command below it.
    """
    text = PAGE.read_text(encoding="utf-8")
    section = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
    found = re.findall(r"(?:^    .+\n)+", section[1], re.MULTILINE) if section else []
    if not found:
        raise LookupError(f"{PAGE.name} has no commands below {title!r}: mend the page or its drill")
    return [re.sub("^    ", "", block, flags=re.MULTILINE) for block in found]


def commands_of(block: str) -> list[str]:
    """Return the commands of a block, each on one line."""
    return block.replace("\\\n", " ").splitlines()
