"""YAML files that people write: read as plain data, and refused if a key occurs twice.

PyYAML takes the last of two equal keys, so what the first one says would be gone without a word. Option files
are Hydra's, which refuses such keys itself.
"""

from typing import Any

import yaml


def read_yaml(text: str, *, as_texts: bool = False) -> Any:
    """The data of a YAML text.

    `as_texts`: whether every scalar stays a text, so that ``no`` is no truth and ``1.0`` no number.

    Raises ValueError: no YAML, or a key that is said twice; one line.
    """
    try:
        loader = (yaml.BaseLoader if as_texts else yaml.SafeLoader)(text)
        root = loader.get_single_node()
        if root is None:
            return None
        _refuse_twice(root, set())
        return loader.construct_document(root)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"this is not YAML: {' '.join(str(error).split())}") from None


def _refuse_twice(node: yaml.Node, seen: set[int]) -> None:
    """Refuse a mapping in which a key occurs twice, at any depth; aliases are checked once."""
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
