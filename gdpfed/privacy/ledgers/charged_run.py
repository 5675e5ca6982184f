"""One run in a client's own ledger: its conditions, the updates sent, and the noise subtracted so far."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gdpfed.errors import PrivacyError
from gdpfed.privacy.ledgers.terms import Terms
from gdpfed.privacy.ledgers.terms_options import noise_taps, paid_first
from gdpfed.privacy.sums_once import ONCE
from gdpfed.record_steps import Once

SENT: Mapping[Once, str] = {work: kind.sent_as for work, kind in ONCE.items()}
"""The entry of a run that has had a sum beside its rounds, by the work of the sum."""
TAKEN_BACK = "taken_back"
"""The entry of a run, where there is one, that holds pairs of a turn and a later round."""
FILLED = "filled"
"""The entry of a run, where there is one, that holds the rounds in which the client sent zeros."""
SHOWN = "secret"
"""The entry of a run, where there is one, that holds what its server shows when it tells of the run."""


def filled_rounds(entry: Mapping[str, Any]) -> list[int]:
    """Return the rounds of a ledger's entry in which the client sent only zeros.

    Raises PrivacyError: it is not a list of rounds, or there are more of one than the entry has.
    """
    filled = entry.get(FILLED, [])
    if not isinstance(filled, list) or not all(type(index) is int for index in filled):
        raise PrivacyError(
            f"the rounds in which a client sent zeros are {filled!r}, which is not a list of rounds"
        )
    if more := Counter(filled) - Counter(entry["rounds"]):
        raise PrivacyError(f"a client sent zeros in rounds {sorted(more)}, in which it sent nothing")
    return list(filled)


@dataclass
class ChargedRun:
    """One run in a client's ledger: its conditions, the client's budgets, and the rounds in which it sent.

    Attributes:
        epsilons: one budget, or one for each group of the client's records.
        steps: of every round in `rounds`; 0 where they cost nothing.
        taken_back: of noise that the client has taken back: in the turn of which round, and in which round.
        edge_trusted: whether the server was an edge that saw single updates, by the client's own word.
        sent: which sums beside the rounds it has had its part in.
        filled: those of its rounds in which it was not drawn and sent zeros, to fill a sum.
        secret: what the run's server said when it began, and shows when it tells of the run; else "".
    """

    terms: Terms
    epsilons: tuple[float, ...]
    delta: float
    rounds: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    edge_trusted: bool = False
    sent: set[Once] = field(default_factory=set)
    taken_back: list[tuple[int, int]] = field(default_factory=list)
    filled: list[int] = field(default_factory=list)
    secret: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return this entry of the ledger as a JSON object."""
        return {
            "terms": self.terms.to_scalars(),
            "epsilons": list(self.epsilons),
            "delta": self.delta,
            "rounds": self.rounds,
            "steps": self.steps,
            "edge_trusted": self.edge_trusted,
            **{SENT[work]: True for work in sorted(self.sent)},
            **({TAKEN_BACK: [list(each) for each in self.taken_back]} if self.taken_back else {}),
            **({FILLED: self.filled} if self.filled else {}),
            **({SHOWN: self.secret} if self.secret else {}),
        }

    @property
    def drawn_in(self) -> list[int]:
        """The rounds in which the client sent an update rather than zeros: those in which it was sampled."""
        return [*(Counter(self.rounds) - Counter(self.filled)).elements()]

    @property
    def is_free(self) -> bool:
        """Whether the run has cost no privacy so far; False if clients pay for all rounds, sampled or not."""
        return self.terms.pays_by_turn and not (
            self.rounds or self.sent or paid_first(self.terms) or self.terms.held_out
        )

    def turns_to_take_back(self, round_index: int) -> list[int]:
        """Return the earlier rounds whose noise the client must still subtract in part in this round.

        Raises PrivacyError for a round that the terms do not have: so no sum comes after the last one.
        """
        if not 0 <= round_index < self.terms.num_rounds:
            raise PrivacyError(
                f"run {self.terms.run} has no round {round_index}: noise is subtracted in rounds 0 to "
                f"{self.terms.num_rounds - 1}"
            )
        lags = enumerate(noise_taps(self.terms), start=1)
        due = {round_index - lag for lag, tap in lags if tap > 0} & set(self.rounds)
        return sorted(due - {turn for turn, later in self.taken_back if later == round_index})

    def take_back(self, turn: int, round_index: int) -> None:
        """Record that a part of the client's noise of round `turn` is being subtracted in a later round.

        Raises PrivacyError where none is due in it, by the taps of the terms, or where it was taken back.
        """
        if turn not in self.turns_to_take_back(round_index):
            raise PrivacyError(
                f"no noise of round {turn} of run {self.terms.run} is to be subtracted in round "
                f"{round_index}: this client did not take part in it, has subtracted it already, or the "
                "terms have no tap for it"
            )
        self.taken_back.append((turn, round_index))
