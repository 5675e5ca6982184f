"""Charges: privacy costs, each an event, its number of repetitions, and who pays (client or record)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from gdpfed.errors import PrivacyError, not_known
from gdpfed.privacy.events import Event, Unit
from gdpfed.privacy.validation import require_choice, require_count


@dataclass(frozen=True, kw_only=True)
class Charge:
    """A privacy cost: `count` releases of one event, each with new sampling and noise."""

    event: Event
    count: int
    unit: Unit = "client"

    def __post_init__(self) -> None:
        require_count("a charge's count", self.count)
        require_choice("unit", self.unit, get_args(Unit))
        if self.event.unit not in (None, self.unit):
            raise PrivacyError(
                f"{self.event.kind} costs a {self.event.unit}, not a {self.unit}; charge it in its own unit"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the privacy cost as a JSON object, which `charge_from_dict` can read."""
        return {"event": self.event.to_dict(), "count": self.count, "unit": self.unit}


def charge_from_dict(data: object) -> Charge:
    """Return the privacy cost (charge) that `to_dict` wrote.

    Raises PrivacyError if the data is incomplete, unknown or out of range.
    """
    if not isinstance(data, Mapping) or set(data) != {"event", "count", "unit"}:
        raise PrivacyError(f"a charge is {data!r}; it must be a mapping of event, count and unit")
    return Charge(event=event_from_dict(data["event"]), count=data["count"], unit=data["unit"])


def first_charges(charges: tuple[Charge, ...], rounds: int, *, skipped: int = 0) -> tuple[Charge, ...]:
    """Return the privacy costs of a run's first `rounds` rounds, without the first `skipped` of them."""
    kept: list[Charge] = []
    position = 0
    for charge in charges:
        start, end = max(position, skipped), min(position + charge.count, rounds)
        if start < end:
            kept.append(Charge(event=charge.event, count=end - start, unit=charge.unit))
        position += charge.count
    return tuple(kept)


def event_of_round(charges: tuple[Charge, ...], round_index: int) -> Event:
    """Return the event (kind of release) of a round from a run's privacy costs; rounds count from 0.

    Raises PrivacyError for a round beyond the list.
    """
    position = 0
    for charge in charges:
        position += charge.count
        if round_index < position:
            return charge.event
    raise PrivacyError(
        f"round {round_index} lies beyond the {position} rounds that are charged for; ask for "
        f"one of rounds 0 to {position - 1}"
    )


def event_from_dict(data: object) -> Event:
    """Return the event that `Event.to_dict` wrote; raise PrivacyError for other data."""
    kind = data.get("kind") if isinstance(data, Mapping) else None
    if not isinstance(data, Mapping) or not isinstance(kind, str) or kind not in Event.kinds:
        raise PrivacyError(not_known(f"the kind of the event {data!r}", Event.kinds))
    values = {name: value for name, value in data.items() if name != "kind"}
    try:
        return Event.kinds[kind](**values)
    except TypeError as error:
        raise PrivacyError(f"an event of kind {kind} lacks entries or has wrong ones ({error})") from None
