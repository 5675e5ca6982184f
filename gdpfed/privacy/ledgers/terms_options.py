"""Optional parts of a run's conditions (terms), one class each, and defaults for terms without them.

Terms derive from `Terms` and from those of these classes that they need. Who asks for such a thing asks by a
function below, or by ``isinstance``, and never by the name of a mechanism.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from gdpfed.privacy.charges import Charge
from gdpfed.privacy.events import SampledGaussian
from gdpfed.privacy.sums_once import ONCE
from gdpfed.record_steps import Once

if TYPE_CHECKING:
    from gdpfed.privacy.ledgers.terms import Terms


class SampledTerms(ABC):
    """Conditions for a client that is sampled in secret, and pays for each round whether drawn or not."""

    @abstractmethod
    def draws(self) -> tuple[tuple[range, float, float], ...]:
        """Return each range of rounds with its sampling rate and noise multiplier."""


class LimitsRounds(ABC):
    """Conditions that limit which rounds a client may join, depending on the rounds it was in before."""

    @abstractmethod
    def check_turn(self, taken: Sequence[int], round_index: int) -> None:
        """Raise PrivacyError if the client may not be in this round after having been in rounds `taken`."""


class TurnTerms(LimitsRounds):
    """Conditions for a client with scheduled rounds (turns), where later rounds subtract earlier noise.

    Attributes:
        turns: how many the client may have, and how many rounds apart at least.
        noise_taps: which parts of a round's noise the next rounds take back.
    """

    @property
    @abstractmethod
    def turns(self) -> tuple[int, int]: ...

    @property
    @abstractmethod
    def noise_taps(self) -> tuple[float, ...]: ...


class RecordBudgets(ABC):
    """Conditions under which a client's records pay for steps, with one budget for each group of records.

    Attributes:
        num_budgets: how many groups there are.
        parties: of how many clients one may be a record who is protected, all of them paid for.
        private_by_itself: whether an update is private before it leaves: then it may be seen by anybody.
    """

    @property
    @abstractmethod
    def num_budgets(self) -> int: ...

    @property
    @abstractmethod
    def parties(self) -> int: ...

    @property
    @abstractmethod
    def private_by_itself(self) -> bool: ...

    @abstractmethod
    def steps_left(self, steps: int) -> int:
        """Return how many more DP-SGD steps the client's records can pay for after this number of steps."""

    @abstractmethod
    def check_steps(self, round_index: int, taken: int, num_steps: int) -> None:
        """Raise PrivacyError if a round has more DP-SGD steps than the run's conditions still allow."""


def noise_taps(terms: "Terms") -> tuple[float, ...]:
    """Return the parts of a round's noise that later rounds subtract; empty if noise is independent."""
    return terms.noise_taps if isinstance(terms, TurnTerms) else ()


def num_budgets(terms: "Terms") -> int:
    """Return the number of budgets that a client has in the run: one, or one for each record group."""
    return terms.num_budgets if isinstance(terms, RecordBudgets) else 1


def private_by_itself(terms: "Terms") -> bool:
    """Whether an update has enough noise before it leaves the client, so that anybody may see it."""
    return isinstance(terms, RecordBudgets) and terms.private_by_itself


def may_be_filled(terms: "Terms", round_index: int) -> bool:
    """Whether clients that were not drawn may send zeros in this round, which needs Poisson sampling.

    A group that always takes part may be in one sum with groups that do not, so its rate may be 1.
    """
    drawn = (isinstance(each.event, SampledGaussian) and each.event.sampling for each in terms.charges)
    return isinstance(terms, SampledTerms) and set(drawn) == {"poisson"} and not once_in(terms, round_index)


def once_in(terms: "Terms", round_index: int) -> Once | None:
    """Return the one-time sum of the run that is recorded under this round number; None for other rounds.

    Counts go by that after the last round, and what comes before the first, by those that follow.
    """
    due = (kind.work for kind in ONCE.values() if round_index == kind.index(terms.num_rounds))
    return next((work for work in due if paid_once(terms, work)), None)


def paid_first(terms: "Terms", sent: Collection[Once] | None = None) -> tuple[Charge, ...]:
    """Return the cost of the one-time sums before the first round: all of them, or only those in `sent`."""
    works = [work for work, kind in ONCE.items() if kind.before_rounds and (sent is None or work in sent)]
    return tuple(charge for work in works for charge in paid_once(terms, work))


def paid_once(terms: "Terms", work: Once) -> tuple[Charge, ...]:
    """Return the privacy cost of a one-time sum of this kind; empty if the run has none."""
    paid: tuple[Charge, ...] = getattr(terms, ONCE[work].entry)
    return paid
