"""The file fits the Compose Specification's own schema."""

import json
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

from jsonschema.validators import validator_for

_SCHEMA = "builtin_schemas/vendor/compose-spec.json"


def schema_problems(tree: Any) -> Iterator[str]:
    """Where the tree differs from the schema that check-jsonschema brings along."""
    schema = json.loads((files("check_jsonschema") / _SCHEMA).read_text(encoding="utf-8"))
    for error in validator_for(schema)(schema).iter_errors(tree):
        where = ".".join(str(part) for part in error.absolute_path) or "the file"
        yield f"{where}: {error.message}"
