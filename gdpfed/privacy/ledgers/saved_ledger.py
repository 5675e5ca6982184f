"""What the server's ledger is saved as, and how it is checked when it is read."""

from collections.abc import Mapping
from typing import Any

from gdpfed.errors import PrivacyError
from gdpfed.privacy.ledgers.participations import TURNS
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.sums_once import Once

FORMAT_VERSION = 1
COUNTS = "counts_rho"
"""Of a ledger's file, where samples follow from class counts: the zCDP that every client was charged for its
own, which is 0 before it has released them."""
CHARGED_ONCE: Mapping[Once, str] = {"held_out_counts": "held_out_charged", "vote": "vote_charged"}
"""The same, of a sum beside the rounds, by its work: whether it is charged."""


def counts_in(charges: object) -> list[Any]:
    """The counts of a group's saved charges."""
    if not isinstance(charges, list):
        return []
    return [each.get("count") if isinstance(each, Mapping) else None for each in charges]


def charged_once_in(fields: Mapping[str, Any]) -> set[Once]:
    """Return which sums beside the rounds a saved ledger has charged; a damaged entry counts as charged."""
    return {work for work, key in CHARGED_ONCE.items() if fields.get(key, False) is not False}


def counts_were_charged(plan: PrivacyPlan, saved: object, charged_rounds: int) -> bool:
    """Whether a saved ledger has charged the class counts, which comes before any round."""
    planned = plan.mechanism.counts_rho
    if saved not in (0.0, planned) or (charged_rounds and not saved):
        raise PrivacyError(
            f"the ledger has class counts at {saved} zCDP, and the plan charges {planned:g} before the first "
            "round; resume from an intact ledger"
        )
    return bool(saved)


def checked_fields(data: object, plan: PrivacyPlan) -> Mapping[str, Any]:
    """Return the entries of a saved ledger of a plan; PrivacyError for others than there are."""
    expected = {"version", "plan", "charged_rounds", "charges", "participations"}
    expected |= {TURNS} if plan.mechanism.keeps_turns else set()
    expected |= {COUNTS} if plan.mechanism.counts_rho else set()
    expected |= {CHARGED_ONCE[each.work] for each in plan.once}
    if not isinstance(data, Mapping):
        raise PrivacyError(f"the ledger is a {type(data).__name__}, not a mapping; it is damaged")
    if data.get("version", FORMAT_VERSION) != FORMAT_VERSION:
        raise PrivacyError(f"the ledger has version {data['version']!r}; this program reads {FORMAT_VERSION}")
    if set(data) != expected:
        odd = ", ".join(sorted(str(key) for key in expected ^ set(data)))
        raise PrivacyError(f"the ledger lacks or has unknown entries: {odd}; it is damaged")
    return data
