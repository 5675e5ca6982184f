"""A client's own ledger: the runs that the client agreed to, and what it has sent in each.

A run is charged in full when it begins, from the round on in which the client came: sampling hides a
client only if the rounds that it is not drawn in count as well, and those it never hears of. Against the
server, which knows whom it asked, only the updates that were really sent count. Where a run protects
records, all the steps that they may pay for are charged when it begins, and those that were taken are
written down round by round. A client that has a path in a run, under noise of its own, pays for the rounds
alone that it takes part in: no sampling hides it, so the others cost nothing. A client and its records have
separate figures, which are not added to each other.

Records that are held out are never trained on, in no run of this ledger: that is the operator's word. So a
record pays for steps or for counts, and the larger figure holds. Where runs held out nothing, or chose what
by another rule, a record may have been in both, and both add up. A vote over settings, and a
histogram of norms, is paid by all that is trained on, on top of a run's rounds.

What sampling hides is only so if a client is drawn at the rates of its terms, which it cannot see. What it
sees is how often it was asked, and `ClientLedger.chance_of_round` compares that with the rates.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, islice
from math import inf
from typing import Any

from gdpfed.errors import PrivacyError
from gdpfed.late_import import late_import
from gdpfed.privacy.accountants.composition import compose_against_server, compose_runs
from gdpfed.privacy.charges import Charge
from gdpfed.privacy.events import Gaussian, Unit
from gdpfed.privacy.ledgers.charged_run import FILLED, SENT, SHOWN, TAKEN_BACK, ChargedRun, filled_rounds
from gdpfed.privacy.ledgers.terms import Terms
from gdpfed.privacy.ledgers.terms_options import (
    LimitsRounds,
    RecordBudgets,
    SampledTerms,
    once_in,
    paid_first,
)
from gdpfed.privacy.validation import require_count, require_delta, require_positive
from gdpfed.record_steps import Once

special = late_import("scipy.special")

FORMAT_VERSION = 4
READ_VERSIONS = (1, 2, 3, FORMAT_VERSION)
"""Terms of version 1 have no schedule of turns; before 3 no client filled a sum; before 4 no terms have
`dealt_by`."""
MOST_FREE, MOST_FREE_BYTES = 100, 1_000_000
"""Runs that are open and have cost nothing: how many there are, and how long their entries are together."""


class ClientLedger:
    """The runs that a client has begun, by name, in the order in which they began."""

    def __init__(self) -> None:
        """Open an empty ledger."""
        self._runs: dict[str, ChargedRun] = {}

    @property
    def runs(self) -> tuple[ChargedRun, ...]:
        """All runs that the client has begun."""
        return tuple(self._runs.values())

    def run(self, name: str) -> ChargedRun:
        """Return a run that the client has begun; raise PrivacyError for an unknown name."""
        if name not in self._runs:
            raise PrivacyError(f"run {name} was never begun with this client: begin it first")
        return self._runs[name]

    def terms(self, run: str) -> Terms:
        """Return the conditions of a run that the client has begun; raise PrivacyError for unknown names."""
        return self.run(run).terms

    def epsilon(
        self,
        delta: float,
        *,
        unit: Unit = "client",
        also: Terms | None = None,
        turn: int | None = None,
        until: str | None = None,
        record_group: int | None = None,
        at_most: float = inf,
        limit: float | None = None,
    ) -> float:
        """Return epsilon at delta of all runs that protect `unit`, plus the planned run `also`, if given.

        A run in which this client has a path costs what the rounds cost that it took part in; `also` costs
        what it may at worst, taking part `at_most` so often, or what it has cost with one more `turn`, a
        round. `until`: the last run that counts, by the order in which they began; None for all.
        `limit`: the budget, by which several runs are weighed (`compose_runs`); here and below.

        Of records it is what one pays that is in this group in the run `until`, or else in `also`; without
        one what the record pays that is drawn most often in every run. Raises PrivacyError where they have no
        common accounting, for `also` of another unit, and for a run that began under other terms.
        """
        if also is not None and also.unit != unit:
            raise PrivacyError(
                f"a {also.unit}'s charges cannot be added to a {unit}'s; account each by itself"
            )
        others = {run.terms.record_is for run in self.runs_of(unit)} - {
            "" if also is None else also.record_is
        }
        if also is not None and others:
            raise PrivacyError(
                f"this ledger has runs about a {others.pop() or 'row'}, and this one is about a "
                f"{also.record_is or 'row'}: these figures do not add up; use a ledger of its own for each"
            )
        runs: dict[str, tuple[Terms, Sequence[int]]] = {
            run.terms.run: (run.terms, run.rounds) for run in self.runs_of(unit)
        }
        if also is not None and (not self._has_begun(also) or also.pays_by_turn):
            runs[also.run] = also, runs[also.run][1] if also.run in runs else ()
        grouped = also if until is None else runs[until][0]
        own = [*runs.values()][: None if until is None else [*runs].index(until) + 1]
        charged = []
        for terms, rounds in own:
            if terms is not also or not terms.pays_by_turn:
                costs = terms.spent_charges(rounds, grouped, record_group)
            elif turn is None:
                costs = terms.planned_charges(rounds, at_most)
            else:
                costs = terms.spent_charges([*rounds, turn], grouped, record_group)
            charged.append((*paid_first(terms), *costs))
        held_out = [terms.held_out for terms, _ in own]
        return _dearest(charged, held_out, delta, limit, apart=_kept_apart([terms for terms, _ in own]))

    def epsilon_against_server(
        self,
        delta: float,
        *,
        unit: Unit = "client",
        one_more_in: tuple[str, int] | None = None,
        more_steps: int = 0,
        limit: float | None = None,
    ) -> float:
        """Return epsilon against the server of all sent updates, and of one more in the given round, if any.

        Batches of records are drawn on the client, so their sampling counts against the server as well: it
        is what the steps cost that were taken, and `more_steps` in the run of that name.
        """
        more_run, more_round = one_more_in or (None, None)
        runs, held_out, own = [], [], self.runs_of(unit)
        for each in own:
            more = [more_round] if each.terms.run == more_run and more_round is not None else []
            once = each.sent | {work for index in more if (work := once_in(each.terms, index))}
            held_out.append(each.terms.held_out if "held_out_counts" in once else ())
            taken = [index for index in more if once_in(each.terms, index) is None]
            steps = sum(each.steps) + (more_steps if taken else 0)
            first = paid_first(each.terms, once)
            runs.append((*first, *each.terms.seen_charges([*each.drawn_in, *taken], steps)))
        return _dearest(runs, held_out, delta, limit, apart=_kept_apart([each.terms for each in own]))

    def chance_of_round(self, run: str, round_index: int) -> float:
        """Return the probability that sampling draws a client at least as often as it was asked to take part.

        This round is included.

        P(K >= k), k being in how many rounds it was asked, other than to fill a sum: of those with at most a
        certain noise, and the least for all noises from this round's on. Rounds of all runs count, of this
        run those up to now, of others all; so what many short runs ask adds up, and cheap rounds of much
        noise make no room for dear ones. K is taken as binomial at the mean rate, whose tail is not below
        that of different rates (Hoeffding, "On the Distribution of the Number of Successes in Independent
        Trials", 1956, Theorem 4).
        """
        drawn: dict[float, tuple[int, float, int]] = {}
        noise_now = 0.0
        for each in self.runs_of(self.terms(run).unit):
            asked, end = set(each.drawn_in), each.terms.num_rounds
            if each.terms.run == run:
                asked.add(round_index)
                end = max(asked) + 1
            for planned, rate, noise in each.terms.draws() if isinstance(each.terms, SampledTerms) else ():
                if each.terms.run == run and round_index in planned:
                    noise_now = noise
                span = range(max(planned.start, each.terms.first_round), min(planned.stop, end))
                rounds, expected, so_far = drawn.get(noise, (0, 0.0, 0))
                times = sum(index in span for index in asked)
                drawn[noise] = rounds + len(span), expected + len(span) * rate, so_far + times
        chance, rounds, expected, so_far = 1.0, 0, 0.0, 0
        for noise in sorted(drawn):
            more, expected_more, times = drawn[noise]
            rounds, expected, so_far = rounds + more, expected + expected_more, so_far + times
            if times and noise >= noise_now and so_far > expected:
                # P(K >= k); it takes any number of rounds, and what is no number is no chance at all.
                tail = float(special.betainc(so_far, rounds - so_far + 1, expected / rounds))
                chance = min(chance, tail if tail >= 0.0 else 0.0)
        return chance

    def begin(
        self,
        terms: Terms,
        *,
        epsilons: Sequence[float],
        delta: float,
        edge_trusted: bool = False,
        secret: str = "",
    ) -> None:
        """Record a new run, its conditions and budgets; a second call with equal conditions has no effect."""
        if not self._has_begun(terms):
            budgets = tuple(require_positive("a run's epsilon", epsilon) for epsilon in epsilons)
            if not budgets or (terms.unit == "client" and len(budgets) > 1):
                raise PrivacyError(f"a run about a {terms.unit} cannot have {len(budgets)} budgets; give one")
            self._runs[terms.run] = ChargedRun(
                terms, budgets, require_delta(delta), edge_trusted=edge_trusted, secret=secret
            )

    def forget_free(self, most: int = MOST_FREE, most_bytes: int = MOST_FREE_BYTES) -> None:
        """Forget the oldest runs that have cost no privacy, where they are too many or too long together.

        Else whoever begins runs without a turn fills the disk, and every message reads all of it. A run that
        is forgotten has to begin again before it has a turn. The newest stays.
        """
        free = [name for name, run in self._runs.items() if run.is_free]
        sizes = (len(json.dumps(self._runs[name].to_dict())) for name in reversed(free))
        kept = max(1, sum(size <= most_bytes for size in islice(accumulate(sizes), most)))
        for name in free[:-kept]:
            del self._runs[name]

    def check_round(self, run: str, round_index: int) -> Terms:
        """Return the run's conditions; raise PrivacyError if the client may not send an update in a round.

        Raises PrivacyError for a run that was not begun, a round outside its terms, one in which an
        update was sent, and where its records have paid for all their steps.
        """
        begun = self.run(run)
        require_count("the round", round_index, at_least=0)
        once = once_in(begun.terms, round_index)
        if once is not None:
            if once in begun.sent:
                raise PrivacyError(f"run {run} has had its {_ALREADY[once]} already; it is paid for once")
            return begun.terms
        if round_index >= begun.terms.num_rounds:
            raise PrivacyError(
                f"round {round_index} of run {run} lies beyond the {begun.terms.num_rounds} of its terms"
            )
        if round_index < begun.terms.first_round:
            raise PrivacyError(
                f"round {round_index} of run {run} lies before round {begun.terms.first_round}, from which "
                "on this client was charged"
            )
        if begun.rounds.count(round_index) >= begun.terms.updates_in(round_index):
            raise PrivacyError(
                f"round {round_index} of run {run} has had its update already; a round has one"
            )
        if isinstance(begun.terms, LimitsRounds):
            begun.terms.check_turn(begun.rounds, round_index)
        if isinstance(begun.terms, RecordBudgets) and not begun.terms.steps_left(sum(begun.steps)):
            raise PrivacyError(
                f"the records of this client have paid for all {sum(begun.steps)} steps of run {run}"
            )
        return begun.terms

    def charge(self, run: str, round_index: int, num_steps: int = 0, *, fills: bool = False) -> None:
        """Record an update before it is sent, with the number of its DP-SGD steps if records are protected.

        One that `fills` a sum costs nothing against the server. Refused as in `check_round`, and where there
        are more steps than are left, or none.
        """
        terms, begun = self.check_round(run, round_index), self.run(run)
        once = once_in(terms, round_index)
        if once is not None:
            begun.sent.add(once)
            return
        if isinstance(terms, RecordBudgets):
            terms.check_steps(round_index, sum(begun.steps), num_steps)
        begun.steps.append(num_steps)
        begun.rounds.append(round_index)
        if fills:
            begun.filled.append(round_index)

    def to_dict(self) -> dict[str, Any]:
        """Return the ledger as a JSON object, which `from_dict` can read."""
        return {"version": FORMAT_VERSION, "runs": [run.to_dict() for run in self._runs.values()]}

    @classmethod
    def from_dict(cls, data: object) -> "ClientLedger":
        """Return the ledger that `to_dict` saved; raise PrivacyError if data is incomplete or wrong."""
        if not isinstance(data, Mapping) or set(data) != {"version", "runs"}:
            raise PrivacyError("the ledger is not a mapping of version and runs")
        if data["version"] not in READ_VERSIONS:
            readable = " and ".join(map(str, READ_VERSIONS))
            raise PrivacyError(
                f"the ledger has version {data['version']!r}; this program reads {readable}: use the "
                "version that wrote it"
            )
        if not isinstance(data["runs"], list):
            raise PrivacyError("the ledger's runs are not a list")
        ledger = cls()
        for number, entry in enumerate(data["runs"]):
            ledger._restore(number, entry)
        return ledger

    def _restore(self, number: int, entry: object) -> None:
        if not isinstance(entry, Mapping) or set(entry) - _NOT_IN_ALL != _ENTRY:
            raise PrivacyError(f"the ledger's run {number} is not a mapping of {', '.join(sorted(_ENTRY))}")
        lists = [entry[name] for name in ("epsilons", "rounds", "steps")]
        if not isinstance(entry["terms"], Mapping) or not all(isinstance(each, list) for each in lists):
            raise PrivacyError(
                f"the ledger's run {number} has no terms, or no lists of budgets, rounds and steps"
            )
        if len(entry["steps"]) != len(entry["rounds"]):
            raise PrivacyError(f"the ledger's run {number} lacks the steps of some rounds")
        if type(trusted := entry["edge_trusted"]) is not bool:
            raise PrivacyError(
                f"the ledger's run {number} has edge_trusted {trusted!r}, which is neither true nor false"
            )
        terms = Terms.from_scalars(entry["terms"])
        if terms.run in self._runs:
            raise PrivacyError(f"the ledger holds run {terms.run} twice")
        self.begin(
            terms,
            epsilons=entry["epsilons"],
            delta=entry["delta"],
            edge_trusted=trusted,
            secret=str(entry.get(SHOWN, "")),
        )
        for round_index, num_steps in zip(entry["rounds"], entry["steps"], strict=True):
            self.charge(terms.run, round_index, num_steps)
        # Whatever stands there: what may have been sent counts.
        self._runs[terms.run].sent = {work for work, name in SENT.items() if name in entry}
        for each in entry.get(TAKEN_BACK, []):
            if not isinstance(each, list) or [type(index) for index in each] != [int, int]:
                raise PrivacyError(
                    f"the ledger's run {number} does not say which noise was taken back, by turn and round"
                )
            self.run(terms.run).take_back(*each)
        self._runs[terms.run].filled = filled_rounds(entry)

    def runs_of(self, unit: Unit) -> list[ChargedRun]:
        """Return the recorded runs that protect this unit (client or record)."""
        return [run for run in self._runs.values() if run.terms.unit == unit]

    def _has_begun(self, terms: Terms) -> bool:
        begun = self._runs.get(terms.run)
        if begun is not None and begun.terms != replace(
            terms,
            first_round=begun.terms.first_round,
            # A ledger of before does not name it, and its runs go on.
            dealt_by=begun.terms.dealt_by and terms.dealt_by,
        ):
            raise PrivacyError(
                f"run {terms.run} has begun under other terms: begin a new run, or offer the same terms"
            )
        return begun is not None


_ALREADY: Mapping[Once, str] = {
    "held_out_counts": "counts on held-out records",
    "vote": "vote",
    "norm_histogram": "norm counted",
}
_ENTRY = {"terms", "epsilons", "delta", "rounds", "steps", "edge_trusted"}
_NOT_IN_ALL = {*SENT.values(), TAKEN_BACK, FILLED, SHOWN}


def _epsilon_of(runs: Sequence[tuple[Charge, ...]], delta: float, limit: float | None) -> float:
    """Return the joint epsilon of several runs; runs without a privacy cost do not count.

    Paths together are one Gaussian of all the zCDP, exactly, and a filter as well.
    """
    charged = [run for run in runs if run]
    charges = [charge for run in charged for charge in run]
    if charges and all(isinstance(charge.event, Gaussian) for charge in charges):
        return compose_against_server(charges, delta)
    return compose_runs(charged, delta, limit).epsilon


def _kept_apart(runs: Sequence[Terms]) -> bool:
    """Whether all runs keep the same records for tests only, so that no run trains on these records."""
    return all(run.held_out for run in runs) and len({run.held_out_by for run in runs}) == 1


def _dearest(
    runs: Sequence[tuple[Charge, ...]],
    held_out: Sequence[tuple[Charge, ...]],
    delta: float,
    limit: float | None,
    *,
    apart: bool,
) -> float:
    """Return the joint epsilon of training and tests; if they share no record (`apart`), the larger of both.

    Where they are not kept apart by all runs, a record may be trained on in one and held out in another: all
    adds up.
    """
    if not any(held_out):
        return _epsilon_of(runs, delta, limit)
    if apart:
        return max(_epsilon_of(runs, delta, limit), _epsilon_of(held_out, delta, limit))
    return _epsilon_of([(*run, *own) for run, own in zip(runs, held_out, strict=True)], delta, limit)
