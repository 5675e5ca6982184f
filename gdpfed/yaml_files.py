"""Reads hand-written YAML files as plain data; raises ValueError if a key occurs twice.

PyYAML takes the last of two equal keys, so what the first one says would be gone without a word. Option files
are Hydra's, which refuses such keys itself.
"""

import re
from typing import Any

import yaml

from gdpfed.errors import words_of

_READ_ALIKE = re.compile(r"[^\t\r!>?|\x85\u2028\u2029\ufeff]{0,10000}")
"""Matches texts that both parsers of PyYAML, in C and in Python, read alike.

They differ in tabs, marks of byte order, tags, the heads of texts in blocks and question marks in lists. The
one in C may go as deep as the stack, whose end a text of this length does not reach.
"""


def read_yaml(text: str, *, as_texts: bool = False) -> Any:
    """Return the data of a YAML text.

    `as_texts`: whether every scalar stays a text, so that ``no`` is no truth and ``1.0`` no number.

    Raises ValueError: no YAML, or a key that is said twice; one line.
    """
    if yaml.__with_libyaml__ and _READ_ALIKE.fullmatch(text):
        try:
            return _data_of((yaml.CBaseLoader if as_texts else yaml.CSafeLoader)(text))
        except (yaml.YAMLError, RecursionError):
            pass  # The parser in Python, which takes ten times as long, says what is wrong.
    try:
        return _data_of((yaml.BaseLoader if as_texts else yaml.SafeLoader)(text))
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"this is not YAML: {words_of(error)}") from None


def _data_of(loader: Any) -> Any:
    """Return the data of a YAML text that has one document; raise ValueError for a repeated key."""
    root = loader.get_single_node()
    if root is None:
        return None
    _refuse_twice(root, set())
    return loader.construct_document(root)


def _refuse_twice(node: yaml.Node, seen: set[int]) -> None:
    """Raise ValueError if a key occurs twice in a mapping, at any depth; aliases are checked once."""
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for each in node.value:
            _refuse_twice(each, seen)
    if not isinstance(node, yaml.MappingNode):
        return
    lines: dict[str, int] = {}
    for key, value in node.value:
        if isinstance(key, yaml.ScalarNode):
            line = key.start_mark.line + 1
            if key.value in lines:
                other = lines[key.value]
                words = f"in lines {other} and {line}" if other != line else f"in line {line}"
                raise ValueError(f"the key '{key.value}' is there twice, {words}: say it once")
            lines[key.value] = line
        _refuse_twice(key, seen)
        _refuse_twice(value, seen)
