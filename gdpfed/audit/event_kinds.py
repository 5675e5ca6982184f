"""The kinds of privacy events that an audit knows: which entries each has, and what they may be.

An entry that a kind does not have is refused. Who edits a file could make a release cheaper by it, where
the program never writes it. A package adds the kinds of its own audit rule by entry points.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from gdpfed.registry import Registry

Check = Callable[[Any], bool]


@dataclass(frozen=True)
class EventKind:
    """Which entries one kind of privacy event has, each with a function that checks the entry's value.

    `optional`: entries that stand for a default where they are missing.
    """

    entries: Mapping[str, Check]
    optional: Mapping[str, Check]

    def wrong(self, event: Mapping[str, Any]) -> list[str]:
        """Return the names of an event's entries that are missing, unknown or out of range; sorted."""
        known = {**self.entries, **self.optional}
        said = event.keys() - {"kind"}
        odd = (self.entries.keys() - said) | (said - known.keys())
        return sorted(odd | {key for key in said & known.keys() if not known[key](event[key])})


def is_number(value: object) -> bool:
    """Whether a value from a file is a finite number."""
    return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]


def is_count(value: object) -> bool:
    """Whether a value from a file is a whole number of at least 1."""
    return type(value) is int and value >= 1


def _is_positive(value: Any) -> bool:
    return is_number(value) and value > 0


def _is_deviation(value: Any) -> bool:
    return is_number(value) and value >= 0


def _is_rate(value: Any) -> bool:
    return is_number(value) and 0 < value <= 1


def _one_of(*words: str) -> Check:
    return lambda value: value in words


def _list_of(check: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _is_turn(value: object) -> bool:
    return type(value) is int and value >= 0


_SUM: Mapping[str, Check] = {"noise_stddev": _is_deviation, "clipping_norm": _is_positive}
_LAW: Mapping[str, Check] = {
    "adjacency": _one_of("zero_out", "replace_one"),
    "noise": _one_of("gaussian", "discrete_gaussian"),
}
_STEPS: Mapping[str, Check] = {
    "batch_rate": _is_rate,
    "noise_multiplier": _is_deviation,
    "num_steps": is_count,
}

SAMPLED_GAUSSIAN = EventKind(
    {
        **_SUM,
        **_LAW,
        "sampling": _one_of("poisson", "fixed_size"),
        "sampling_rate": _is_rate,
        "group_size": is_count,
    },
    {"num_sums": is_count},
)
GAUSSIAN = EventKind({**_SUM, **_LAW}, {})
ALLOCATED_GAUSSIAN = EventKind({**_SUM, "block_rounds": is_count}, {})
CORRELATED_GAUSSIAN = EventKind(
    {**_SUM, **_LAW, "num_rounds": is_count, "turns": _list_of(_is_turn), "taps": _list_of(is_number)}, {}
)
DP_SGD_STEPS = EventKind(_STEPS, {"parties": is_count})
LOCAL_WINDOWS = EventKind({**_STEPS, "bound": _one_of("convex", "window"), "window_steps": is_count}, {})

EVENT_KINDS: "Registry[EventKind]" = Registry(
    "kind of event in an audit",
    "gdpfed.audit_events",
    built_in={
        name: f"{__name__}:{name.upper()}"
        for name in (
            *("sampled_gaussian", "gaussian", "allocated_gaussian", "correlated_gaussian"),
            *("dp_sgd_steps", "local_windows"),
        )
    },
)
"""The kinds of events by name: those of this project's rules, and those of packages."""


def unknown_kind(kind: str) -> ValueError:
    """Return the error for a kind of event whose privacy cost the audit cannot compute."""
    return ValueError(
        f"this audit cannot compute the cost of events of kind {kind}: use the gdpfed that wrote the files"
    )


@lru_cache(maxsize=64)
def _kind(name: str) -> EventKind:
    if name not in EVENT_KINDS.names():
        raise unknown_kind(name)
    return EVENT_KINDS.get(name)


def check_charges(saved: Sequence[Mapping[str, Any]], kinds: Collection[str] | None = None) -> None:
    """Check the events and counts of privacy costs as saved in a file.

    `kinds`: of events that may be among them; None for all. Raises ValueError: another kind, an entry that
    its kind does not have, a value out of range, or a count that is not a whole number from 1.
    """
    for charge in saved:
        event, count = charge["event"], charge["count"]
        if kinds is not None and event["kind"] not in kinds:
            raise ValueError(
                f"a charge has an event of kind {event['kind']}, and may have "
                f"{', '.join(sorted(kinds)) or 'none'}"
            )
        if not is_count(count):
            raise ValueError(f"a charge has a count of {count!r}, which is not a whole number from 1")
        if wrong := _kind(event["kind"]).wrong(event):
            raise ValueError(
                f"an event of kind {event['kind']} has missing, unknown or wrong entries: {', '.join(wrong)}"
            )
        if event.get("num_steps", 1) % event.get("window_steps", 1):
            raise ValueError(f"an event has {event['num_steps']} steps, which are not whole windows")
