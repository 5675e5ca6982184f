"""Draw random settings of all configuration groups, valid or not, and list the error of each configuration.

python -m tests.conf.random_settings 20000 > said.jsonl    to compare the checks of two versions
python -m tests.conf.random_settings --write                the file that test_random_settings.py reads

The file has three values of each setting, drawn by its name: a new setting adds lines and changes no other.
"""

import json
import sys
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import fields
from functools import lru_cache
from math import inf, nan
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints
from zlib import crc32

import numpy as np

import gdpfed.methods  # noqa: F401 - hands the methods to conf
from conf.errors import ConfigError
from conf.load import load, options
from conf.schema import Config

GOLDEN = Path(__file__).with_name("random_settings.jsonl")
# Configurations from which settings are changed, beside one of each method.
VALID = (
    (),
    ("privacy=record_level", "method=dp_sgd"),
    ("privacy.budgets=clients",),
    ("secagg.mode=active", "secagg.identities=first_seen"),
    ("dataset=breast_cancer", "privacy.against=outsiders", "secagg=off"),
    ("training.vote={learning_rate: [0.1, 1]}", "simulation.engine=batched"),
)
FLOATS = (
    *(0.0, -0.0, 1.0, 0.5, 0.1, 0.4999, 0.95, 0.999, 1.0001, 2.0, -0.1, -1.0, nan, inf, -inf),
    *(1e-3, 9e-4, 1e-9, 9e-10, 1e-12, 9e-13, 1e6, 1.1e6, 1e7, 1.1e7, 1e9, 1.1e9, 1e-300, 1e300),
)
INTEGERS = (
    *(-1, 0, 1, 2, 3, 4, 8, 15, 16, 17, 32, 33, 60, 4096, 4097, 100_000, 100_001, 1_000_000, 1_000_001),
    *(100_000_000, 100_000_001, 2**31 - 1, 2**31, 2**63 - 1, 2**63),
)
WORDS = (
    *("auto", "none", "polynomial", "local", "ray", "cpu", "cuda", "batched", "sequential", "server"),
    *("nodes", "both", "float32", "tf32", "bf16", "curious", "active", "off", "first_seen", "fine", "whole"),
    *("poisson", "gaussian", "discrete_gaussian", "fixed", "adaptive", "paper", "clients", "records"),
    *("client", "record", "everyone", "outsiders", "zero_out", "replace_one", "pld", "rdp", "iid"),
    *("dirichlet", "shards", "sgd", "adam", "192.0.2.1:6379", "192.0.2.1:", "a/b:1", "", "no such", "AUTO"),
)
ANYTHING: tuple[Any, ...] = (
    *({}, [], {"a": 1}, {"a": 1.5, "b": "x"}, {"a": [1]}, {"a": {"b": 1}}, {1: 2}, 3, 2.5, True, "auto"),
    *([1.0, 3.0, 6.0], [0.1, "x"], [True], [nan], [1, 1], "paper", "clients", "records", [1.0]),
    {"learning_rate": [0.1, 0.3]},
    {"learning_rate": [0.1]},
    {"learning_rate": [0.1, 0.1]},
    {"learning_rate": [0.1, -1.0], "momentum": [0.0, 0.9]},
    {"learning_rate": [0.1, 1.0, 2.0, 3.0, 4.0], "momentum": [0.0, 0.3, 0.6, 0.9]},
    {"momentum": [0.5, 1.0]},
    {"learning_rate_decay": [0.5, 1]},
    {"local_steps": [1, 2]},
)

valid = lru_cache(maxsize=64)(load)


def drawn(number: int, seed: int = 0) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield random changes of settings, each with the error that the changed configuration causes, or ""."""
    rng = np.random.default_rng(seed)
    methods = [(f"method={name}",) for name in options("method")]
    groups = [field.name for field in fields(Config)]
    for index in range(number):
        bases = methods if rng.random() < 0.3 else VALID
        config = deepcopy(valid(bases[rng.integers(len(bases))]))
        group = groups[index % len(groups)]
        changed: dict[str, Any] = {"method": config.method.name}
        for _ in range(rng.choice([1, 1, 2, 3])):
            other = groups[rng.integers(len(groups))] if rng.random() < 0.15 else group
            section = getattr(config, other)
            hints = get_type_hints(type(section))
            keys = [field.name for field in fields(section) if field.name != "name"]
            key = keys[rng.integers(len(keys))]
            setattr(section, key, deepcopy(_value(hints[key], rng)))
            changed[f"{other}.{key}"] = getattr(section, key)
        yield changed, _said(config)


def _value(hint: Any, rng: np.random.Generator) -> Any:
    """Return a random value of this type, often a special value such as nan, zero or a limit of a setting."""
    if get_origin(hint) in (Union, UnionType):
        hint = next(each for each in get_args(hint) if each is not NoneType)
        if rng.random() < 0.15:
            return None
    if get_origin(hint) is list:
        return [_value(get_args(hint)[0], rng) for _ in range(rng.integers(4))]
    if hint is float:
        return float(10.0 ** rng.uniform(-4, 1)) if rng.random() < 0.4 else FLOATS[rng.integers(len(FLOATS))]
    if hint is int:
        return int(rng.integers(1, 40)) if rng.random() < 0.4 else INTEGERS[rng.integers(len(INTEGERS))]
    if hint is bool:
        return bool(rng.integers(2))
    if hint is str:
        return WORDS[rng.integers(len(WORDS))]
    return ANYTHING[rng.integers(len(ANYTHING))]


def _said(config: Config) -> str:
    """Return the error message of a configuration, or an empty text if it is accepted."""
    try:
        config.validate()
    except ConfigError as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def of_each() -> Iterator[tuple[dict[str, Any], str]]:
    """Yield three values for each setting, all others being default, and the error each causes, or ""."""
    for group in (field.name for field in fields(Config) if field.name != "method"):
        hints = get_type_hints(type(getattr(valid(()), group)))
        for key in hints:
            rng = np.random.default_rng(crc32(f"{group}.{key}".encode()))
            for _ in range(3):
                config = deepcopy(valid(()))
                value = _value(hints[key], rng)
                setattr(getattr(config, group), key, deepcopy(value))
                yield {f"{group}.{key}": value}, _said(config)


def lines(judged: Iterator[tuple[dict[str, Any], str]]) -> Iterator[str]:
    """Yield each set of changed settings with its error as a line of JSON."""
    for settings, said in judged:
        yield json.dumps({"settings": settings, "said": said}, default=str)


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        GOLDEN.write_text("\n".join([*lines(of_each()), ""]), encoding="utf-8")
    else:
        print("\n".join(lines(drawn(int(sys.argv[1])))))
