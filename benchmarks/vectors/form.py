"""The file format of test vectors: each file is a JSON object whose numbers have nine digits."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.harness import PROJECT

FOLDER = PROJECT / "vectors"
FORMAT = 1
DIGITS = 9
_LIST = re.compile(r"\[\s+((?:[^][{}]|\n)*?)\s+\]")
_LINE_COLUMNS = 110


def rounded(value: Any) -> Any:
    """Return a copy of a JSON value with floats rounded to nine digits; infinity and NaN become None."""
    if isinstance(value, Mapping):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, str) or value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, Sequence):
        return [rounded(each) for each in value]
    number = float(value)
    return float(f"{number:.{DIGITS}g}") if math.isfinite(number) else None


def file_text(kind: str, about: str, cases: Sequence[Mapping[str, Any]]) -> str:
    """Return the JSON text of one file of test vectors, given its test cases."""
    whole = {"format": FORMAT, "kind": kind, "about": about, "cases": rounded(cases)}
    return _LIST.sub(_on_one_line, json.dumps(whole, indent=1, allow_nan=False)) + "\n"


def _on_one_line(found: re.Match[str]) -> str:
    joined = "[" + " ".join(found.group(1).split()) + "]"
    return joined if len(joined) <= _LINE_COLUMNS else found.group(0)
