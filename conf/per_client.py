"""Settings with one number for each client, given as a list, a file or a distribution.

Hydra reads a list of n numbers in a time that grows as n squared, and a command line ends at 128 kB.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from conf.errors import ConfigError, not_known

if TYPE_CHECKING:
    from conf.schema import Config

KEYS = ("privacy.client_budgets", "privacy.client_records", "privacy.client_aversions")
WHOLE = ("privacy.client_records",)
DISTRIBUTIONS = ("uniform", "loguniform")
MOST_BYTES = 1 << 26
FORMS = "a list, a file with one number on each line, or a distribution, as in loguniform(0.5,8)"
NAMED = ("privacy.client_budgets",)
"""Settings that may map client names to numbers, as in {bonn: 1, fulda: 6}."""

_DRAWN = re.compile(r"(\w+)\(([^(),]+),([^(),]+)\)")
_DIGITS = 4


def taken(overrides: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Split settings into those for Hydra, as a list, and those with per-client values, as a dict."""
    left: list[str] = []
    values: dict[str, str] = {}
    for override in overrides:
        key, _, value = override.partition("=")
        if key in KEYS and value.strip() != "null":
            values[key] = value.strip()
        else:
            values.pop(key, None)
            left.append(override)
    return left, values


def user_path(key: str, text: str) -> Path:
    """Convert a path in a setting, where a leading ``~`` is the home directory.

    Raises ConfigError: the home directory of nobody.
    """
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ConfigError(f"{key}={text}: there is no user of that name here, write the whole path") from None


def file_of(key: str, value: str) -> Path | None:
    """Return the file that a per-client setting names; None if the setting is a list or a distribution."""
    return None if value.startswith(("[", "{")) or _DRAWN.fullmatch(value) else _path(key, value)


def _path(key: str, value: str) -> Path:
    quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
    return user_path(key, value[1:-1] if quoted else value)


def set_numbers(config: "Config", values: dict[str, str]) -> None:
    """Fill in settings with one number for each client, from a list, a file or a distribution.

    A distribution is drawn for ``dataset.num_clients`` clients under ``run.seed``, to four digits;
    ``loguniform(a,b)`` is exp of a uniform number between ln a and ln b. Raises ConfigError: what is no
    number, no file or no distribution; names the setting and the place.
    """
    for key, value in values.items():
        if key in NAMED and value.startswith("{"):
            setattr(config.privacy, key.partition(".")[2], _named(key, value))
            continue
        numbers = _numbers(key, value, config.dataset.num_clients, config.run.seed)
        if key in WHOLE:
            is_drawn = _DRAWN.fullmatch(value) is not None
            numbers = [_whole(key, round(number) if is_drawn else number) for number in numbers]
        setattr(config.privacy, key.partition(".")[2], numbers)


def spelled_out(overrides: Sequence[str], config: "Config") -> list[str]:
    """Return the settings with all clients' numbers written out, in place of a file or a distribution."""
    left, values = taken(overrides)
    found = {key: getattr(config.privacy, key.partition(".")[2]) for key in values}
    return [*left, *(f"{key}={json.dumps(numbers)}" for key, numbers in found.items())]


def _numbers(key: str, value: str, count: int, seed: int) -> list[float]:
    if value.startswith("["):
        return _listed(key, value)
    drawn = _DRAWN.fullmatch(value)
    if drawn is not None:
        return _draw(key, drawn, count, seed)
    return _read(key, _path(key, value))


def _named(key: str, value: str) -> dict[str, float]:
    """Parse a setting such as ``{bonn: 1, fulda: 6}``; return each client's number by the client's name."""
    parts = [part.rpartition(":") for part in value[1:-1].split(",")]
    named = {name.strip().strip("'\""): word.strip() for name, _, word in parts}
    if not value.endswith("}") or "" in named or len(named) < len(parts):
        raise ConfigError(
            f"{key}={value} is not a list of names with a number each: give {{bonn: 1, fulda: 6}}"
        )
    return {name: _number(word, f"{key}: {name}") for name, word in named.items()}


def _listed(key: str, value: str) -> list[float]:
    inside = value[1:-1].strip()
    if not value.endswith("]"):
        raise ConfigError(f"{key}: the list that begins with {value[:20]!r} has no end: give {FORMS}")
    words = [word.strip() for word in inside.split(",")] if inside else []
    return [_number(word, f"{key}: entry {place}") for place, word in enumerate(words, 1)]


def _read(key: str, file: Path) -> list[float]:
    try:
        if not file.is_file():
            raise ConfigError(f"{key}={file} is not a file: give {FORMS}")
        if file.stat().st_size > MOST_BYTES:
            raise ConfigError(f"{key}={file} is larger than {MOST_BYTES >> 20} MB: give one number per line")
        lines = file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{key}={file} cannot be read: {error}") from None
    numbered = enumerate((line.partition("#")[0].strip() for line in lines), 1)
    return [_number(line, f"{key}={file}: line {place}") for place, line in numbered if line]


def _draw(key: str, form: re.Match[str], count: int, seed: int) -> list[float]:
    import numpy as np

    name, (least, most) = form[1], (_number(word, key) for word in form.groups()[1:])
    if name not in DISTRIBUTIONS:
        raise ConfigError(not_known(f"{key}={form[0]}", (f"{each}(LEAST, MOST)" for each in DISTRIBUTIONS)))
    if not 0 < least <= most:
        raise ConfigError(f"{key}={form[0]} needs two numbers above 0, the smaller one first")
    generator = np.random.default_rng([seed, KEYS.index(key)])
    if name == "uniform":
        drawn = generator.uniform(least, most, count)
    else:
        drawn = np.exp(generator.uniform(np.log(least), np.log(most), count))
    # Rounding keeps the bounds.
    return [min(max(float(f"{number:.{_DIGITS}g}"), least), most) for number in drawn.tolist()]


def _number(word: str, place: str) -> float:
    try:
        # Python's own grammar takes 1_0 for 10.
        number = float(word if word.isascii() and "_" not in word else "")
    except ValueError:
        raise ConfigError(f"{place} is {word!r}, which is not a number") from None
    if not abs(number) < float("inf"):
        raise ConfigError(f"{place} is {word!r}: give a finite number")
    return number


def _whole(key: str, number: float) -> int:
    if not float(number).is_integer():
        raise ConfigError(f"{key} has {number:g}: give a whole number, a client's number of records")
    return int(number)
