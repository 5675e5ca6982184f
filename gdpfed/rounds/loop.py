"""The loop over rounds: record the privacy cost, sum updates, change the model, evaluate, tell observers."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from math import isfinite
from time import perf_counter
from typing import Any

import numpy as np

from gdpfed.clients.order import TrainingOrder
from gdpfed.errors import BudgetExhausted, RunError, TrainingOver
from gdpfed.learning.training.evaluate import Evaluation
from gdpfed.learning.training.optimizers import LocalTraining
from gdpfed.methods.base import ClientSum, Cohorts, Method, SumRequest, Theta
from gdpfed.privacy.ledgers.charged import ExpectedSum
from gdpfed.privacy.mechanism_options import sampling_rule
from gdpfed.privacy.sampling.cohorts import draw_cohorts
from gdpfed.rounds.enough import present_for_a_round, reachable_by_group, without_small_sums
from gdpfed.rounds.extensions.base import Extension, RoundLeftOut
from gdpfed.rounds.fleet import Fleet
from gdpfed.rounds.observers import Observer, RoundEnded
from gdpfed.rounds.state import RunState
from gdpfed.runs.directory import RunDirectory
from gdpfed.runs.round_log import WHOLE_ROUND, RoundLogEntry, finite

NOT_EVALUATED = Evaluation(None, None)
INTERRUPTED = "interrupted before its end: charged, and not repeated"
Announce = Callable[[str], None]
EvaluateModel = Callable[[Theta], Evaluation]


@dataclass(frozen=True)
class _Outcome:
    """What a round's log entry says about its clients and sums, besides the metrics of the model."""

    cohort_sizes: list[int]
    failures: dict[str, str]
    reachable: list[int] = field(default_factory=list)
    sums: list[ClientSum] = field(default_factory=list)
    fields: dict[str, Any] = field(default_factory=dict)
    noted: dict[str, float] = field(default_factory=dict)


@dataclass(kw_only=True)
class RoundLoop:
    """Runs the rounds of a training method with the clients of a fleet.

    Attributes:
        method: plan, cohorts and step.
        fleet: the clients.
        order: the clients' instructions; the loop sets training and round in it for every round.
        training_of: returns the local training of a round, by its index.
        state: the state from which the run begins or continues; the loop changes it.
        files: the run directory.
        evaluate_model: returns metrics and loss of a model on the test split.
        evaluate_every: after how many rounds the next evaluation follows.
        observers: objects that are told of every round, in this order.
        announce: is called with one line of text when the run begins, and when it ends early.
        early: before which round the training ended, and why; empty unless it ended early.
    """

    method: Method
    fleet: Fleet
    order: TrainingOrder
    training_of: Callable[[int], LocalTraining]
    state: RunState
    files: RunDirectory
    evaluate_model: EvaluateModel
    evaluate_every: int
    observers: Sequence[Observer]
    announce: Announce
    early: str = ""

    def rounds(self, theta: Theta, num_rounds: int, last_round: int) -> Iterator[tuple[Theta, RoundLogEntry]]:
        """Run the remaining rounds, up to ``last_round``; yield each round's model and log entry.

        Raises:
            RunError: the loss of the model is not finite, or too few clients can be reached for a round; such
                a round is not charged.
        """
        first, end = self.state.completed_rounds, min(num_rounds, last_round)
        self.announce(f"{self.method.name} from round {first + 1}, files in {self.files.path}")
        for index in range(first, end):
            try:
                theta, record = self._round(index, theta, end)
            except (BudgetExhausted, TrainingOver) as error:
                self.early = f"before round {index + 1}: {error}"
                self.announce(f"training ends {self.early}")
                return
            yield theta, record

    def _round(self, index: int, theta: Theta, end: int) -> tuple[Theta, RoundLogEntry]:
        """Run a round, or skip it if an earlier process stopped in it; return the model and the log entry."""
        started = perf_counter()
        self.fleet.seconds.clear()
        if self.state.ledger.charged_rounds > index:
            outcome = self._interrupted(index)
        else:
            theta, outcome = self._train(index, theta, end)
            if self.state.extensions.replacing(index) is None:
                self.state.extensions.tell(Extension.stepped, self.method.released(theta))
        trained = perf_counter()
        released = self.released(theta)
        due = (index + 1) % self.evaluate_every == 0 or index + 1 == end
        evaluation = self.evaluate_model(released) if due else NOT_EVALUATED
        if evaluation.loss is not None and not isfinite(evaluation.loss):
            raise RunError(
                f"round {index + 1}: the model's loss is {evaluation.loss}, so training has diverged; the "
                "round is charged. Begin a new run with a smaller training.learning_rate (in an app of your "
                "own: its learning rate) or method.server_learning_rate"
            )
        now = perf_counter()
        seconds = self.fleet.seconds | {"evaluate": now - trained, "total": now - started}
        record = self._record(index, evaluation, outcome, seconds)
        self.state.completed_rounds = index + 1
        ended = RoundEnded(index, theta, released, outcome.sums, record)
        if due:
            self.state.extensions.tell(Extension.evaluated, ended)
        for observer in self.observers:
            observer.round_ended(ended)
        return theta, record

    def _train(self, index: int, theta: Theta, end: int) -> tuple[Theta, _Outcome]:
        """Record a round's privacy cost in the ledger before the round runs; the ledger must allow each sum.

        Meanwhile clients may agree on keys for the next round. The keys reveal nothing about data, and sums
        that use them are charged in the next round.
        """
        ledger, order, extensions = self.state.ledger, self._order_for(index), self.state.extensions
        start, left_out = theta, ""
        try:
            start = extensions.start(order, theta)
            present = present_for_a_round(self.method.plan, self.fleet, index, self.files.path)
        except RoundLeftOut as reason:
            left_out, present = str(reason), frozenset()
        cohorts = self._cohorts(index, present)
        sizes = [len(cohort) for cohort in cohorts]
        reachable = reachable_by_group(self.method.plan, present)
        ledger.open_round(index, cohorts)
        self.files.save_ledger(ledger)
        if left_out:
            ledger.close_round()
            return theta, _Outcome(sizes, {WHOLE_ROUND: left_out}, reachable)
        sums = list[ClientSum]()

        def upcoming() -> Sequence[ExpectedSum[SumRequest]]:
            following = index + 1
            if following == end or extensions.replacing(following) is not None:
                return []
            draw = cache(partial(self._cohorts, following, present))
            ahead = self.method.requests_ahead(start, following, draw)
            requests = extensions.asked(self._order_for(following), ahead)
            return ledger.expect(following, draw(), requests) if requests else []

        def sum_updates(requests: Sequence[SumRequest]) -> list[ClientSum]:
            charged = ledger.charge(index, extensions.asked(order, requests))
            summed = self.fleet.sum_updates(order, charged, upcoming=upcoming, extensions=extensions)
            pairs = zip(summed, charged, strict=True)
            taken = [replace(result, groups=ledger.groups_of(paid.request)) for result, paid in pairs]
            taken = extensions.taken(order, taken)
            sums.extend(taken)
            return taken

        if (replacing := extensions.replacing(index)) is not None:
            replacing.round(start, index, cohorts, sum_updates)
            theta = start
        else:
            theta = self._next_model(self.method.round(start, index, cohorts, sum_updates)[0], start)
        ledger.close_round()
        failures = {result.name: result.failure for result in sums if result.failure is not None}
        noted = self.method.noted(index)
        return theta, _Outcome(sizes, failures, reachable, sums, extensions.record(), noted)

    def _next_model(self, found: object, start: Theta) -> Theta:
        """Return a method's new model as float32[d]; raise RunError for another shape or type."""
        moved = np.asarray(found)
        if moved.shape == start.shape and moved.dtype.kind in "fiu":
            return moved.astype(np.float32, copy=False)
        said = f"step returned shape {moved.shape} of {moved.dtype}, not {start.shape} of float32"
        raise RunError(f"method={self.method.name}: {said}; the round is charged. Correct it, then resume")

    def released(self, theta: Theta) -> Theta:
        """Return the model to release after the last round, shape (d,)."""
        return self.state.extensions.released(self.method.released(theta))

    def _interrupted(self, index: int) -> _Outcome:
        """Describe an interrupted round; its cohort sizes are those in the ledger that the log lacks."""
        charged = list(self.state.ledger.total_participations())
        for record in self.files.completed_records(index):
            charged = [total - size for total, size in zip(charged, record.cohort_sizes, strict=True)]
        return _Outcome(charged, {WHOLE_ROUND: INTERRUPTED})

    def _cohorts(self, index: int, present: frozenset[int] | None) -> Cohorts:
        """Sample the cohorts of a round, then handle absent clients and cohorts that are too small.

        A client that cannot be reached leaves the cohort, so no participation of it is counted. Under
        fixed_size sampling it stays, since the accounting assumes cohorts of the full size; if records are
        protected it leaves there too. The returned arrays are read-only.
        """
        ledger, plan = self.state.ledger, self.state.ledger.plan
        by_key = sampling_rule(plan.mechanism) is None
        drawn = draw_cohorts(plan, index, self.state.sampling_key) if by_key else self.method.sample(index)
        cohorts: Cohorts = ledger.with_steps_left(drawn, index)
        if present is not None and not plan.absent_clients_count:
            cohorts = tuple(cohort[np.isin(cohort, list(present))] for cohort in cohorts)
        cohorts = self.state.extensions.drawn(self.fleet, index, cohorts, present)
        if not self.method.reads_alone:
            cohorts = without_small_sums(plan, self.fleet.secagg, cohorts)
        for cohort in cohorts:
            cohort.flags.writeable = False
        return cohorts

    def _order_for(self, index: int) -> TrainingOrder:
        return replace(self.order, training=self.training_of(index), round_index=index)

    def _record(
        self, index: int, evaluation: Evaluation, outcome: _Outcome, seconds: dict[str, float]
    ) -> RoundLogEntry:
        shares = [(each.asked, each.share_stddev) for each in outcome.sums]
        return RoundLogEntry(
            round=index + 1,
            accuracy=evaluation.accuracy,
            loss=evaluation.loss,
            metrics={} if list(evaluation.metrics) == ["accuracy"] else dict(evaluation.metrics),
            cohort_sizes=outcome.cohort_sizes,
            reachable=outcome.reachable,
            survivors=[each.survivors for each in outcome.sums],
            failures=outcome.failures,
            spent_epsilon=finite(self.state.ledger.spent()),
            epsilon_against_server=finite(self.state.ledger.against_server()),
            upload_bytes=[each.upload_bytes for each in outcome.sums],
            noise_stddevs=[each.noise_stddev for each in outcome.sums],
            groups_in_sums=[list(each.groups) for each in outcome.sums],
            seconds={name: round(value, 4) for name, value in seconds.items()},
            noted=outcome.noted,
            turns=self.state.ledger.turns_in(index),
            noise_shares=shares if any(share for _, share in shares) else [],
            **outcome.fields,
        )
