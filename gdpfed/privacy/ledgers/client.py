"""What one client has agreed to and sent, kept by itself across runs.

A run is charged in full when it begins, from the round on in which the client came: sampling hides a
client only if the rounds that it is not drawn in count as well, and those it never hears of. Against the
server, which knows whom it asked, only the updates that were really sent count. Where a run protects
records, all the steps that they may pay for are charged when it begins, and those that were taken are
written down round by round. A client that has a path in a run, under noise of its own, pays for the rounds
alone that it takes part in: no sampling hides it, so the others cost nothing. A client and its records have
figures of their own, which never add up.

What sampling hides is only so if a client is drawn at the rates of its terms, which it cannot see. What it
sees is how often it was asked, and `ClientLedger.chance_of_round` compares that with the rates.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from gdpfed.errors import PrivacyError
from gdpfed.late_import import late_import
from gdpfed.privacy.accountants.composition import compose_against_server, compose_runs
from gdpfed.privacy.charges import Charge
from gdpfed.privacy.events import Gaussian, SampledGaussian, Unit
from gdpfed.privacy.ledgers.terms import RecordTerms, Terms, upgraded_scalars
from gdpfed.privacy.validation import require_count, require_delta, require_positive

special = late_import("scipy.special")

FORMAT_VERSION = 5
"""Of a ledger with a run at a trusted edge; without one it is written as version 4 if it has a path, as
version 3 if it has a run about records, else as version 2, which it then is."""
VERSION_OF_PATHS = 4
VERSION_OF_RECORDS = 3
VERSION_OF_CLIENTS = 2


@dataclass
class ChargedRun:
    """One run: its terms, the client's budget when it began, and the rounds with an update, in order.

    Attributes:
        epsilons: one budget, or one for each group of the client's records.
        steps: of every round in `rounds`, where records are protected; empty otherwise.
        edge_trusted: whether the server was an edge that saw single updates, by the client's own word.
    """

    terms: Terms
    epsilons: tuple[float, ...]
    delta: float
    rounds: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    edge_trusted: bool = False

    @property
    def steps_left(self) -> int:
        """How many steps its records may still pay for."""
        return self.terms.num_steps - sum(self.steps)

    def sent(self, more_in: int | None = None) -> list[Charge]:
        """The sums that the server knows this client to be part of, and one more in a round."""
        rounds = [*self.rounds, *([] if more_in is None else [more_in])]
        return [
            Charge(event=replace(self.terms.event(index), num_sums=1), count=count, unit=self.terms.unit)
            for index, count in Counter(rounds).items()
        ]

    def path_charges(self, more_in: int | None = None) -> tuple[Charge, ...]:
        """What the rounds taken cost a client that has a path, and one more round."""
        return self.terms.path_charges([*self.rounds, *([] if more_in is None else [more_in])])

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form of an entry."""
        entry: dict[str, Any] = {"terms": self.terms.to_scalars(), "delta": self.delta, "rounds": self.rounds}
        if self.edge_trusted:
            entry["edge_trusted"] = True
        if self.terms.unit == "client":
            (epsilon,) = self.epsilons
            return {**entry, "epsilon": epsilon}
        return {**entry, "epsilons": list(self.epsilons), "steps": self.steps}


class ClientLedger:
    """The runs that a client has begun, by name, in order."""

    def __init__(self) -> None:
        """Open an empty ledger."""
        self._runs: dict[str, ChargedRun] = {}

    @property
    def runs(self) -> tuple[ChargedRun, ...]:
        """Every run that was begun."""
        return tuple(self._runs.values())

    def run(self, name: str) -> ChargedRun:
        """A run that was begun; PrivacyError where it was not."""
        if name not in self._runs:
            raise PrivacyError(f"run {name} was never begun with this client")
        return self._runs[name]

    def terms(self, run: str) -> Terms:
        """The terms that a run was begun under; PrivacyError where it was not begun."""
        return self.run(run).terms

    def epsilon(
        self,
        delta: float,
        *,
        unit: Unit = "client",
        also: Terms | None = None,
        record_group: int | None = None,
        at_most: float = inf,
    ) -> float:
        """Epsilon at delta of all runs that protect a unit, and of `also` unless it has begun.

        A run in which this client has a path costs what the rounds cost that it took part in; `also` costs
        what it may at worst, taking part `at_most` so often. That is checked before every round as well.

        Of records it is what one pays that is in this group in `also`; without one what the record pays
        that is drawn most often in every run.

        Raises PrivacyError where they have no common accounting, for `also` of another unit, and for a run
        that began under other terms.
        """
        if also is not None and also.unit != unit:
            raise PrivacyError(
                f"a {also.unit}'s charges cannot be added to a {unit}'s; account each by itself"
            )
        charged = self._of(unit)
        has_begun = also is not None and self._has_begun(also)
        if also is not None and (also.has_path or not has_begun):
            begun = self._runs.get(also.run)
            taken = [] if begun is None else begun.rounds
            charged = [run for run in charged if run is not begun]
            worst = list(also.dearest_rounds(taken, at_most)) if also.has_path else []
            charged.append(ChargedRun(also, (), delta, worst))
        groups = None if also is None or record_group is None else also.records
        runs = [_charges_in(each, groups, record_group) for each in charged]
        return _epsilon_of(runs, delta)

    def epsilon_with_round(self, delta: float, run: str, round_index: int) -> float:
        """Epsilon at delta for records of all runs, with one more round of a run in which there is a path."""
        runs = [
            each.path_charges(round_index) if each.terms.run == run else _charges_in(each, None, None)
            for each in self._of("record")
        ]
        return _epsilon_of(runs, delta)

    def epsilon_against_server(
        self,
        delta: float,
        *,
        unit: Unit = "client",
        one_more_in: tuple[str, int] | None = None,
        more_steps: int = 0,
    ) -> float:
        """Epsilon at delta of the updates sent, and of one more in the run of that name and its round.

        Batches of records are drawn on the client, so their sampling counts against the server as well: it
        is what the steps cost that were taken, and `more_steps` in the run of that name.
        """
        more_run, more_round = one_more_in or (None, None)
        if unit == "record":
            runs = [
                run.path_charges(more_round if run.terms.run == more_run else None)
                if run.terms.has_path
                else run.terms.step_charges(sum(run.steps) + (more_steps if run.terms.run == more_run else 0))
                for run in self._of("record")
            ]
            return _epsilon_of(runs, delta)
        sent = [
            charge
            for run in self._of(unit)
            for charge in run.sent(more_in=more_round if run.terms.run == more_run else None)
        ]
        return compose_against_server(sent, delta)

    def chance_of_round(self, run: str, round_index: int) -> float:
        """How likely draws at the rates of all terms are to ask a client so often, with one more round.

        P(K >= k), k being in how many rounds it was asked: of those with at most a certain noise, and the
        least for all noises from this round's on. Rounds of all runs count, of this run those up to now, of
        others all; so what many short runs ask adds up, and cheap rounds of much noise make no room for dear
        ones. K is taken as binomial at the mean rate, whose tail is not below that of different rates
        (Hoeffding, "On the Distribution of the Number of Successes in Independent Trials", 1956, Theorem 4).
        """
        drawn: dict[float, tuple[int, float, int]] = {}
        for each in self._of("client"):
            asked, end = set(each.rounds), each.terms.num_rounds
            if each.terms.run == run:
                asked.add(round_index)
                end = max(asked) + 1
            first = 0
            for charge in each.terms.charges:
                event, last = charge.event, first + charge.count
                span, first = range(max(first, each.terms.first_round), min(last, end)), last
                if isinstance(event, SampledGaussian):
                    times = sum(index in span for index in asked)
                    rounds, expected, so_far = drawn.get(event.noise_multiplier, (0, 0.0, 0))
                    expected += len(span) * event.sampling_rate
                    drawn[event.noise_multiplier] = rounds + len(span), expected, so_far + times
        chance, rounds, expected, so_far = 1.0, 0, 0.0, 0
        noise_now = self.terms(run).event(round_index).noise_multiplier
        for noise in sorted(drawn):
            more, expected_more, times = drawn[noise]
            rounds, expected, so_far = rounds + more, expected + expected_more, so_far + times
            if times and noise >= noise_now and so_far > expected:
                chance = min(chance, float(special.bdtrc(so_far - 1, rounds, expected / rounds)))
        return chance

    def begin(
        self, terms: Terms, *, epsilons: Sequence[float], delta: float, edge_trusted: bool = False
    ) -> None:
        """Charge a run in full, under a budget; the same terms again, from any round, charge nothing."""
        if not self._has_begun(terms):
            budgets = tuple(require_positive("a run's epsilon", epsilon) for epsilon in epsilons)
            if not budgets or (terms.unit == "client" and len(budgets) > 1):
                raise PrivacyError(f"a run about a {terms.unit} cannot have {len(budgets)} budgets")
            self._runs[terms.run] = ChargedRun(
                terms, budgets, require_delta(delta), edge_trusted=edge_trusted
            )

    def check_round(self, run: str, round_index: int) -> Terms:
        """The terms under which this client may send an update in a round.

        Raises PrivacyError for a run that was not begun, a round outside its terms, one in which an
        update was sent, and where its records have paid for all their steps.
        """
        begun = self.run(run)
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
        records = begun.terms.records
        updates = begun.terms.event(round_index).num_sums if records is None else records.sums_per_round
        if begun.rounds.count(round_index) >= updates:
            raise PrivacyError(f"round {round_index} of run {run} has had its update already")
        if begun.terms.unit == "record" and not begun.steps_left:
            raise PrivacyError(
                f"the records of this client have paid for all {begun.terms.num_steps} steps of run {run}"
            )
        return begun.terms

    def charge(self, run: str, round_index: int, num_steps: int = 0) -> None:
        """Write down the update that is about to be sent, and its steps where records are protected.

        Refused as in `check_round`, and where there are more steps than are left, or none.
        """
        terms, begun = self.check_round(run, round_index), self.run(run)
        if terms.unit == "record":
            require_count(f"the steps of round {round_index} of run {run}", num_steps)
            if terms.has_path and num_steps > 1:
                raise PrivacyError(
                    f"round {round_index} of run {run} would take {num_steps} steps; a path has one a round"
                )
            if num_steps > begun.steps_left:
                raise PrivacyError(
                    f"round {round_index} of run {run} would take {num_steps} steps, and {begun.steps_left} "
                    f"of the {terms.num_steps} of its terms are left"
                )
            begun.steps.append(num_steps)
        begun.rounds.append(round_index)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, which `from_dict` reads."""
        version = VERSION_OF_RECORDS if self._of("record") else VERSION_OF_CLIENTS
        if any(run.terms.has_path for run in self.runs):
            version = VERSION_OF_PATHS
        if any(run.edge_trusted for run in self.runs):
            version = FORMAT_VERSION
        return {"version": version, "runs": [run.to_dict() for run in self._runs.values()]}

    @classmethod
    def from_dict(cls, data: object) -> "ClientLedger":
        """Return the ledger that `to_dict` saved; PrivacyError for data that is incomplete or wrong."""
        if not isinstance(data, Mapping) or set(data) != {"version", "runs"}:
            raise PrivacyError("it is no mapping of version and runs")
        if data["version"] not in range(1, FORMAT_VERSION + 1):
            raise PrivacyError(
                f"it has version {data['version']!r}; this program reads 1 to {FORMAT_VERSION}"
            )
        if not isinstance(data["runs"], list):
            raise PrivacyError("its runs are no list")
        ledger = cls()
        for number, entry in enumerate(data["runs"]):
            ledger._restore(number, entry, data["version"])
        return ledger

    def _restore(self, number: int, entry: object, version: int) -> None:
        if not isinstance(entry, Mapping) or not set(entry) >= _ENTRY:
            raise PrivacyError(f"its run {number} is no mapping of terms, budget and rounds")
        if not isinstance(entry["terms"], Mapping) or not isinstance(entry["rounds"], list):
            raise PrivacyError(f"its run {number} has no terms or no list of rounds")
        # What was spent under an earlier version stays spent.
        terms = Terms.from_scalars(upgraded_scalars(entry["terms"]) if version == 1 else entry["terms"])
        more = {"epsilons", "steps"} if terms.unit == "record" else {"epsilon"}
        trusted = entry.get("edge_trusted", False)
        if type(trusted) is not bool:
            raise PrivacyError(
                f"its run {number} has edge_trusted {trusted!r}, which is neither true nor false"
            )
        if set(entry) - {"edge_trusted"} != _ENTRY | more:
            raise PrivacyError(f"its run {number} lacks or has odd entries beside {', '.join(sorted(more))}")
        if terms.run in self._runs:
            raise PrivacyError(f"it holds run {terms.run} twice")
        steps: list[int] = [0] * len(entry["rounds"])
        epsilons: list[Any] = [entry.get("epsilon")]
        if terms.unit == "record":
            steps, epsilons = entry["steps"], entry["epsilons"]
            lists = isinstance(steps, list) and isinstance(epsilons, list)
            if not lists or len(steps) != len(entry["rounds"]):
                raise PrivacyError(f"its run {number} has no budgets or not the steps of every round")
        self.begin(terms, epsilons=epsilons, delta=entry["delta"], edge_trusted=trusted)
        for round_index, num_steps in zip(entry["rounds"], steps, strict=True):
            self.charge(terms.run, round_index, num_steps)

    def _of(self, unit: Unit) -> list[ChargedRun]:
        """The runs that protect a unit."""
        return [run for run in self._runs.values() if run.terms.unit == unit]

    def _has_begun(self, terms: Terms) -> bool:
        begun = self._runs.get(terms.run)
        if begun is not None and begun.terms != replace(terms, first_round=begun.terms.first_round):
            raise PrivacyError(f"run {terms.run} has begun under other terms")
        return begun is not None


_ENTRY = {"terms", "delta", "rounds"}


def _charges_in(run: ChargedRun, groups: RecordTerms | None, record_group: int | None) -> tuple[Charge, ...]:
    """What a run costs; of records one that is in a group of others' terms.

    A run that makes other groups may have the record in any, and so counts at its largest batch rate.
    """
    terms = run.terms
    if terms.has_path:
        return run.path_charges()
    if terms.records is None:
        return terms.own_charges
    alike = groups is not None and terms.records.groups_as(groups)
    return terms.step_charges(terms.num_steps, record_group if alike else None)


def _epsilon_of(runs: Sequence[tuple[Charge, ...]], delta: float) -> float:
    """What runs cost together; those without a charge are none.

    Paths together are one Gaussian of all the zCDP, exactly, and a filter as well.
    """
    charged = [run for run in runs if run]
    charges = [charge for run in charged for charge in run]
    if charges and all(isinstance(each.event, Gaussian) for each in charges):
        return compose_against_server(charges, delta)
    return compose_runs(charged, delta).epsilon
