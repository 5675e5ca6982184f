"""What one client has agreed to and sent, kept by itself across runs.

A run is charged in full when it begins, from the round on in which the client came: sampling hides a
client only if the rounds that it is not drawn in count as well, and those it never hears of. Against the
server, which knows whom it asked, only the updates that were really sent count.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from gdpfed.errors import PrivacyError
from gdpfed.privacy.accountants.composition import compose_against_server, compose_runs
from gdpfed.privacy.events import Charge
from gdpfed.privacy.ledgers.terms import Terms, upgraded_scalars
from gdpfed.privacy.validation import require_count, require_delta, require_positive

FORMAT_VERSION = 2


@dataclass
class ChargedRun:
    """One run: its terms, the client's budget when it began, and the rounds with an update, in order."""

    terms: Terms
    epsilon: float
    delta: float
    rounds: list[int] = field(default_factory=list)

    def sent(self, more_in: int | None = None) -> list[Charge]:
        """The sums that the server knows this client to be part of, and one more in a round."""
        rounds = [*self.rounds, *([] if more_in is None else [more_in])]
        return [
            Charge(event=replace(self.terms.event(index), num_sums=1), count=count, unit=self.terms.unit)
            for index, count in Counter(rounds).items()
        ]


class ClientLedger:
    """The runs that a client has begun, by name, in order."""

    def __init__(self) -> None:
        """Open an empty ledger."""
        self._runs: dict[str, ChargedRun] = {}

    @property
    def runs(self) -> tuple[ChargedRun, ...]:
        """Every run that was begun."""
        return tuple(self._runs.values())

    def terms(self, run: str) -> Terms:
        """The terms that a run was begun under; PrivacyError where it was not begun."""
        return self._begun(run).terms

    def epsilon(self, delta: float, also: Terms | None = None) -> float:
        """Epsilon at delta of all runs, and of `also` unless it has begun.

        Raises PrivacyError where they have no common accounting or are of different units, and for a run
        that began under other terms.
        """
        runs = [run.terms.own_charges for run in self._runs.values()]
        if also is not None and not self._has_begun(also):
            runs.append(also.own_charges)
        return compose_runs(runs, delta).epsilon

    def epsilon_against_server(self, delta: float, one_more_in: tuple[str, int] | None = None) -> float:
        """Epsilon at delta of the updates sent, and of one more in the run of that name and its round."""
        more_run, more_round = one_more_in or (None, None)
        sent = [
            charge
            for name, run in self._runs.items()
            for charge in run.sent(more_in=more_round if name == more_run else None)
        ]
        return compose_against_server(sent, delta)

    def begin(self, terms: Terms, *, epsilon: float, delta: float) -> None:
        """Charge a run in full, under a budget; the same terms again, from any round, charge nothing."""
        if not self._has_begun(terms):
            budget = require_positive("a run's epsilon", epsilon), require_delta(delta)
            self._runs[terms.run] = ChargedRun(terms, *budget)

    def check_round(self, run: str, round_index: int) -> Terms:
        """The terms under which this client may send an update in a round.

        Raises PrivacyError for a run that was not begun, a round outside its terms, and one in which an
        update was sent.
        """
        begun = self._begun(run)
        require_count("the round", round_index, at_least=0)
        if round_index >= begun.terms.num_rounds:
            raise PrivacyError(
                f"round {round_index} of run {run} lies beyond the {begun.terms.num_rounds} of its terms"
            )
        if round_index < begun.terms.first_round:
            raise PrivacyError(
                f"round {round_index} of run {run} lies before round {begun.terms.first_round}, from which "
                "on this client was charged"
            )
        if begun.rounds.count(round_index) >= begun.terms.event(round_index).num_sums:
            raise PrivacyError(f"round {round_index} of run {run} has had its update already")
        return begun.terms

    def charge(self, run: str, round_index: int) -> None:
        """Write down the update that is about to be sent; refused as in `check_round`."""
        self.check_round(run, round_index)
        self._runs[run].rounds.append(round_index)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, which `from_dict` reads."""
        runs = [vars(run) | {"terms": run.terms.to_scalars()} for run in self._runs.values()]
        return {"version": FORMAT_VERSION, "runs": runs}

    @classmethod
    def from_dict(cls, data: object) -> "ClientLedger":
        """Return the ledger that `to_dict` saved; PrivacyError for data that is incomplete or wrong."""
        if not isinstance(data, Mapping) or set(data) != {"version", "runs"}:
            raise PrivacyError("it is no mapping of version and runs")
        if data["version"] not in (1, FORMAT_VERSION):
            raise PrivacyError(
                f"it has version {data['version']!r}; this program reads 1 and {FORMAT_VERSION}"
            )
        if not isinstance(data["runs"], list):
            raise PrivacyError("its runs are no list")
        ledger = cls()
        for number, entry in enumerate(data["runs"]):
            ledger._restore(number, entry, data["version"])
        return ledger

    def _restore(self, number: int, entry: object, version: int) -> None:
        if not isinstance(entry, Mapping) or set(entry) != {field.name for field in fields(ChargedRun)}:
            raise PrivacyError(f"its run {number} is no mapping of terms, budget and rounds")
        if not isinstance(entry["terms"], Mapping) or not isinstance(entry["rounds"], list):
            raise PrivacyError(f"its run {number} has no terms or no list of rounds")
        # What was spent under an earlier version stays spent.
        terms = Terms.from_scalars(upgraded_scalars(entry["terms"]) if version == 1 else entry["terms"])
        if terms.run in self._runs:
            raise PrivacyError(f"it holds run {terms.run} twice")
        self.begin(terms, epsilon=entry["epsilon"], delta=entry["delta"])
        for round_index in entry["rounds"]:
            self.charge(terms.run, round_index)

    def _begun(self, run: str) -> ChargedRun:
        if run not in self._runs:
            raise PrivacyError(f"run {run} was never begun with this client")
        return self._runs[run]

    def _has_begun(self, terms: Terms) -> bool:
        begun = self._runs.get(terms.run)
        if begun is not None and begun.terms != replace(terms, first_round=begun.terms.first_round):
            raise PrivacyError(f"run {terms.run} has begun under other terms")
        return begun is not None
