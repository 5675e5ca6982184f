"""Makes the extensions (optional features) of a run: the built-in ones, and those that settings name."""

from collections.abc import Mapping
from inspect import signature
from typing import TYPE_CHECKING

from gdpfed.errors import ConfigError, not_known
from gdpfed.registry import Registry
from gdpfed.rounds.extensions.adaptive_clipping import NormFactor
from gdpfed.rounds.extensions.average import ReleasedAverage
from gdpfed.rounds.extensions.base import Extension, Extensions, SumExtension
from gdpfed.rounds.extensions.class_counts import ClassCounts
from gdpfed.rounds.extensions.client_memory import ClientMemory
from gdpfed.rounds.extensions.correlated_noise import CorrelatedNoise
from gdpfed.rounds.extensions.fill import Fill
from gdpfed.rounds.extensions.held_out import CountsAfterRounds, RatesInLastRound
from gdpfed.rounds.extensions.norm_histogram import NormsBeforeRounds
from gdpfed.rounds.extensions.vote import ClientVote

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gdpfed.rounds.loop import Announce
    from gdpfed.rounds.run import PreparedRun

OWN = (
    ClassCounts,
    ClientVote,
    NormsBeforeRounds,
    ClientMemory,
    NormFactor,
    CorrelatedNoise,
    Fill,
    ReleasedAverage,
    RatesInLastRound,
    CountsAfterRounds,
)
"""In their order: requests pass them from the first to the last, and sums come back from the last."""

EXTENSIONS: Registry[type[Extension]] = Registry("extension", "gdpfed.extensions", error=ConfigError)
"""Those of other packages, by the names that `run.extensions` says."""

SERVER_EXTENSIONS: "Registry[Callable[[PreparedRun, Announce], Extension | None]]" = Registry(
    "extension of servers", "gdpfed.server_extensions", error=ConfigError
)
"""Those that runs over Flower have by their settings: what makes one, or None where a run has none of it."""


def server_extensions_of(run: "PreparedRun", announce: "Announce") -> list[Extension]:
    """Make the extensions that only runs over Flower have; they log through `announce` what they wait for."""
    made = (make(run, announce) for make in SERVER_EXTENSIONS.items().values())
    return [extension for extension in made if extension is not None]


def extensions_of(run: "PreparedRun", more: "Sequence[Extension]" = ()) -> Extensions:
    """Make the extensions of a run, in the order in which they are called.

    `more`: of whoever starts it; they come first. Raises ConfigError: a name that there is not, options that
    an extension does not take, or two that write into the checkpoint under one name.
    """
    own = [extension for each in OWN if (extension := each.of(run)) is not None]
    named = []
    for name, options in (run.config.run.extensions or {}).items():
        kind = EXTENSIONS.get(name)
        if wrong := _wrong_type(kind, options):
            raise ConfigError(f"run.extensions={{{name}: {options}}}: {wrong}")
        try:
            made = kind(**options)
        except TypeError as error:
            raise ConfigError(
                f"run.extensions={{{name}: {options}}}: {_wrong_options(kind, options) or error}"
            ) from None
        if not isinstance(made, Extension) or isinstance(made, SumExtension):
            raise ConfigError(
                f"run.extensions={name} is a {type(made).__name__}: make it an Extension of "
                "gdpfed.rounds.extensions.base, and no SumExtension"
            )
        named.append(made)
    # Clients count the model that is released, and so after the others have chosen it.
    counts = [extension for extension in own if isinstance(extension, CountsAfterRounds)]
    extensions = [*more, *(each for each in own if each not in counts), *named, *counts]
    keys = [f"{each.key}." for each in extensions]
    for position, key in enumerate(keys):
        if any(key.startswith(other) for other in keys[:position] + keys[position + 1 :]):
            raise ConfigError(
                f"run.extensions: the key '{key[:-1]}' of {type(extensions[position]).__name__} is taken: an "
                "extension's key has to be its own"
            )
    return Extensions(extensions)


def _wrong_options(made: "type[Extension]", options: Mapping[str, object]) -> str:
    """Say which option is unknown to an extension, or which one is missing; "" if neither is the case."""
    known = signature(made).parameters.values()
    taken = [each for each in known if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    names = [each.name for each in taken]
    if unknown := [each for each in options if each not in names and len(taken) == len(known)]:
        return (
            not_known(f"option '{unknown[0]}'", names)
            if names
            else f"it takes no options: leave {unknown[0]} out"
        )
    missing = [each.name for each in taken if each.default is each.empty and each.name not in options]
    return f"option '{missing[0]}' is missing: give it" if missing else ""


KINDS: Mapping[type, tuple[tuple[type, ...], str]] = {
    bool: ((bool,), "true or false"),
    int: ((int, float), "a number"),
    float: ((int, float), "a number"),
    str: ((str,), "a text"),
}
"""What an option may be whose annotation or default has the type, and how errors call it."""


def _wrong_type(made: "type[Extension]", options: Mapping[str, object]) -> str:
    """Say which option's value has another type than the extension's signature states; "" if none has."""
    for each in signature(made).parameters.values():
        named = (kind for kind in KINDS if each.annotation in (kind, kind.__name__))
        fitting, words = KINDS.get(next(named, type(each.default)), ((object,), ""))
        value = options.get(each.name)
        is_truth = isinstance(value, bool) and words != KINDS[bool][1]
        if words and value is not None and (is_truth or not isinstance(value, fitting)):
            return f"option '{each.name}' is {value!r}: give {words}"
    return ""
