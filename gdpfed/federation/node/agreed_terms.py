"""Checks that all members of a sum agreed to the same subtraction of earlier noise from later sums.

Noise that later sums take back covers a client's update. The client is not in all of these sums, so it cannot
check them by itself: their honest members must hold the terms that it holds (docs/privacy.md has the proof).
"""

from gdpfed.clients.messages import AGREED_OF_LABEL
from gdpfed.federation.node.budget import BudgetRefusedError
from gdpfed.privacy.ledgers.terms import Terms
from gdpfed.privacy.ledgers.terms_options import once_in
from gdpfed.privacy.mechanisms.scheduled.terms import ScheduledTerms
from secagg import SumParameters

WITHOUT_LEDGER = (
    "terms that this node cannot check: give it a budget with a ledger, or run with privacy.noise_taps=0 or "
    "privacy.against=outsiders"
)


def check_agreed(terms: Terms | None, round_index: int, parameters: SumParameters) -> None:
    """Raise BudgetRefusedError if a sum subtracts earlier noise in another way than this node has agreed to.

    A node checks the sums that it is in by its own terms. In all other sums the honest members must have the
    same terms. So the label that they sign names these by a digest. A node without a ledger has no terms
    (None), so it signs for no sum that takes noise back.
    """
    stream = terms.stream if isinstance(terms, ScheduledTerms) and not once_in(terms, round_index) else None
    signed = agreed_in_label(parameters.label)
    if signed != (stream.digest if stream else ""):
        agreed = WITHOUT_LEDGER if terms is None else "other terms than this node has agreed to"
        raise BudgetRefusedError(f"the sum of round {round_index} subtracts earlier noise by {agreed}")


def agreed_in_label(label: str) -> str:
    """Return the hash of the agreed noise subtraction, which a sum's label contains; "" if none."""
    last = label.split("/")[-1]
    return last.removeprefix(AGREED_OF_LABEL) if last.startswith(AGREED_OF_LABEL) else ""


def check_feared(terms: Terms, corrupt_fraction: float) -> None:
    """Raise BudgetRefusedError if a run subtracts earlier noise, but tolerates too few corrupt members.

    Where noise is taken back, a node's own setting protects it only in sums that it is in. All other sums
    follow the terms.
    """
    if isinstance(terms, ScheduledTerms) and terms.stream and not terms.corrupt_tolerance >= corrupt_fraction:
        raise BudgetRefusedError(
            f"the terms tolerate a fraction of {terms.corrupt_tolerance:g} corrupt members in sums that "
            f"subtract earlier noise, and this node was started with corrupt-fraction={corrupt_fraction:g}: "
            f"run with secagg.corrupt_tolerance={corrupt_fraction:g}"
        )
