"""Variables of a Compose file at their defaults: ``${NAME:-default}``, which may nest."""

import re
from typing import Any

_INNERMOST = re.compile(r"\$\{(\w+)(?::-([^${}]*))?\}")


def at_defaults(value: Any) -> Any:
    """The tree with every variable replaced by its default, by nothing where it has none."""
    if isinstance(value, dict):
        return {key: at_defaults(each) for key, each in value.items()}
    if isinstance(value, list):
        return [at_defaults(each) for each in value]
    if not isinstance(value, str):
        return value
    while (replaced := _INNERMOST.sub(lambda match: match[2] or "", value)) != value:
        value = replaced
    return value
