"""One run, from checked configuration to files: prepare, begin or resume, train, conclude."""

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Self, cast

import numpy as np

from conf.schema import VOTABLE, Config
from gdpfed.clients.configured import order_of, record_counts, task_of, training_of
from gdpfed.clients.order import TrainingOrder
from gdpfed.errors import RunError
from gdpfed.learning.models import flatten
from gdpfed.learning.task import Task
from gdpfed.learning.training.evaluate import central_evaluation, nothing_tested
from gdpfed.methods import Method, make_method, resolve
from gdpfed.methods.base import ClientSum, SumRequest, Theta
from gdpfed.methods.vote import RecordRun, vote_request, with_setting
from gdpfed.privacy.sampling.cohorts import refuse_skipped
from gdpfed.privacy.sampling.laws import ClientIds
from gdpfed.privacy.sums_once import Vote
from gdpfed.rounds.average import ReleasedAverage
from gdpfed.rounds.client_memory import ClientMemory
from gdpfed.rounds.counts import refuse_without_counts, with_released_counts
from gdpfed.rounds.enough import present_for_a_round, without_a_sum
from gdpfed.rounds.fleet import Fleet
from gdpfed.rounds.held_out import TOO_FEW, record_request, result_of_counts, round_requests
from gdpfed.rounds.loop import Announce, EvaluateModel, RoundLoop, Start, where_it_left
from gdpfed.rounds.norm_factor import NormFactor
from gdpfed.rounds.observers import Observer, RunConcluded, RunOpened
from gdpfed.rounds.state import RoundFiles, RunState, begin, restore
from gdpfed.rounds.vote import NO_VOTE, VoteResult, in_words
from gdpfed.runs.directory import Enrolment, RunDirectory
from gdpfed.runs.known_data import refuse_other_data
from gdpfed.runs.paths import require_unused, reserved, run_path
from gdpfed.runs.round_log import RoundLogEntry, read_rounds


@dataclass(frozen=True, kw_only=True)
class PreparedRun:
    """A run that is planned and checked, before its clients are there and anything is written.

    Attributes:
        path: where its files go.
        name: what clients know the run by, the same when it is resumed.
        order: what clients train in round 0.
        resumed: the files and the state of the run that is continued; None for a new one.
        enrolment: who takes part, and how tables are read.
        memory: what clients keep between their rounds.
    """

    config: Config
    method: Method
    task: Task
    order: TrainingOrder
    path: Path
    name: str
    evaluate_model: EvaluateModel
    resumed: tuple[RunDirectory, tuple[RunState, Theta]] | None
    enrolment: Enrolment
    memory: ClientMemory

    @classmethod
    def of(cls, config: Config, identities: Mapping[int, str] | None = None) -> Self:
        """Plan, load the data, and read the run to continue if there is one.

        A run that is continued keeps the clients' keys: another one is refused.

        Raises:
            ConfigError, PrivacyError, LearningError, RunError: input that cannot be used.
        """
        path = path_of(config)
        if config.run.resume is None:
            require_unused(path)
        else:
            refuse_other_data(path, task_of(config))
        config = resolve(config)
        method = make_method(config)
        refuse_skipped(method.plan, config.secagg.minimum_cohort)
        task = task_of(config)
        # Refuses a partition that does not fit the data before anything is written.
        task.client_indices(0)
        task.check_record_groups()
        evaluate_model: EvaluateModel = nothing_tested
        if config.run.evaluation != "nodes":
            evaluate_model = central_evaluation(task, config.run.device, config.dataset.metrics)
        files = RunDirectory.resume(path, config) if config.run.resume else None
        if files is None and config.run.directory is None:
            path = reserved(path)
        average, memory = ReleasedAverage(config.method.average), ClientMemory(config, method.plan, path)
        enrolment = Enrolment(identities, task.client_names, task.load().columns)
        return cls(
            config=config,
            method=method,
            task=task,
            order=replace(order_of(config, task), announced=method.announced),
            path=path,
            name=secrets.token_hex(16) if files is None else files.load_name(method.plan, enrolment),
            evaluate_model=evaluate_model,
            resumed=None if files is None else (files, restore(files, method, average, memory)),
            enrolment=enrolment,
            memory=memory,
        )

    @property
    def next_round(self) -> int:
        """The first round, from 0, that is not charged yet."""
        return 0 if self.resumed is None else self.resumed[1][0].ledger.charged_rounds

    @property
    def last_round(self) -> int:
        """The round after which this process stops."""
        return self.config.run.last_round

    def open(
        self,
        fleet: Fleet,
        make_observers: "MakeObservers",
        announce: Announce,
        start: Start = where_it_left,
    ) -> "OpenRun":
        """Check the fleet's sums, make the observers, then make or continue the run directory.

        An observer that cannot do its work says so when it is made: nothing is written yet. ``start`` says
        from which model every round starts.

        Raises:
            RunError: sums that do not fit, an observer that cannot work, or a directory that cannot be used.
        """
        method = self.method
        requests = self._largest_requests()
        fleet.check(self.order, requests)
        self.memory.check(requests, can_keep=fleet.keeps_client_states)
        refuse_without_counts(fleet, method, self.task)
        with ExitStack() as closing:
            observers = make_observers(self, announce)
            for observer in observers:
                closing.callback(observer.closed)
            if self.resumed is None:
                files = RunDirectory.create(
                    self.path, self.config, method, self.name, self.enrolment, self.task
                )
                closing.enter_context(files.held())
                average = ReleasedAverage(self.config.method.average)
                state, theta = begin(files, method, self.task, average, self.memory)
            else:
                files, (state, theta) = self.resumed
                closing.enter_context(files.held())
            with_released_counts(fleet, method, self.task, state.ledger, files)
            files.keep_rounds(state.completed_rounds)
            self.memory.open(state.completed_rounds)
            loop = RoundLoop(
                method=method,
                fleet=fleet,
                order=self.order,
                training_of=partial(training_of, self.config),
                state=state,
                files=files,
                evaluate_model=self.evaluate_model,
                observers=[RoundFiles(files, method, state), *observers],
                announce=announce,
                start=start,
            )
            for observer in loop.observers:
                observer.opened(RunOpened(files.path, state.completed_rounds))
            return OpenRun(self, loop, theta, closing.pop_all())

    def _largest_requests(self) -> list[SumRequest]:
        """Return the method's requests over the largest cohorts, of every round that differs from others."""
        plan, theta = self.method.plan, flatten(self.task.build_model())
        starts = {0}
        for group in plan.groups:
            starts |= set(accumulate(round_range.num_rounds for round_range in group.ranges[:-1]))
        requests = [
            request
            for index in sorted(starts)
            for request in self.method.requests(theta, index, self._largest_cohorts(index))
        ]
        requests = NormFactor(plan).asked(requests)
        if plan.last_round_counts:
            last = plan.num_rounds - 1
            cohorts = self._largest_cohorts(last)
            requests += round_requests(self.method, theta, last, cohorts, self.order.task.classes_counted)
        if plan.held_out is not None:
            everybody = [client for group in plan.groups for client in group.clients]
            requests.append(self.held_out_request(everybody, theta))
        if plan.vote is not None:
            everybody = [client for group in plan.groups for client in group.clients]
            requests.append(vote_request(self.method, theta, everybody, self.config))
        return requests

    def held_out_request(self, clients: Sequence[int], model: Theta) -> SumRequest:
        """Return the request for counts of held-out records that follows the last round."""
        most = float(record_counts(self.config).max())
        classes = self.order.task.classes_counted
        return record_request(self.method, model.astype(np.float32), clients, most, classes)

    def _largest_cohorts(self, round_index: int) -> list[ClientIds]:
        law = self.method.plan.law
        rates = [group.at(round_index).sampling_rate for group in self.method.plan.groups]
        return [
            np.asarray(group.clients[: law.largest_expected(rate, len(group.clients))], dtype=np.int64)
            for group, rate in zip(self.method.plan.groups, rates, strict=True)
        ]


MakeObservers = Callable[[PreparedRun, Announce], Sequence[Observer]]


@dataclass
class OpenRun:
    """A run with its clients and its files; under ``with``, so that its observers are closed at the end.

    Attributes:
        theta: the model as of the last round, shape (d,).
    """

    prepared: PreparedRun
    loop: RoundLoop
    theta: Theta
    _closing: ExitStack

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._closing.close()

    @property
    def released(self) -> Theta:
        """The model that is released as of the last round, shape (d,)."""
        return self.loop.released(self.theta)

    def rounds(self) -> Iterator[RoundLogEntry]:
        """Run the rounds that are left, and yield the record of each."""
        num_rounds = self.prepared.config.run.num_rounds
        self._vote()
        for theta, record in self.loop.rounds(self.theta, num_rounds, self.prepared.last_round):
            self.theta = theta
            yield record

    def conclude(self) -> None:
        """Tell the observers; then write the released model unless the run is to go on later.

        The checkpoint goes last, so that a run whose observers fail here can be resumed and concluded.

        Raises:
            RunError: the run is over, all its files are written, and not one of its rounds has a sum.
        """
        files, ledger = self.loop.files, self.loop.state.ledger
        self._count_held_out()
        released, records = self.released, read_rounds(files.path)
        concluded = RunConcluded(
            released,
            records,
            ledger.spent(),
            ledger.against_server(),
            ledger.charged_rounds,
        )
        for observer in self.loop.observers:
            observer.concluded(concluded)
        if self.prepared.last_round < self.prepared.config.run.num_rounds:
            files.seal()
            self.loop.announce(f"paused; continue with run.resume={files.path}")
        else:
            files.finish(self.prepared.task, released.astype(np.float32))
            self.prepared.memory.forget()
            files.seal()
            if not any(record.summed for record in records):
                raise RunError(without_a_sum(records, files.path))
            self.loop.announce(f"done; the run's files are in {files.path}")

    def _count_held_out(self) -> None:
        """Have clients count what the released model gets right, once, where the plan pays for it.

        It is charged, and that is on the disk, before anybody is asked. So it is never asked a second time.
        """
        prepared, ledger = self.prepared, self.loop.state.ledger
        last = prepared.method.plan.num_rounds
        due = prepared.method.plan.held_out is not None and "held_out_counts" not in ledger.charged_once
        if not due or ledger.charged_rounds < last:
            return
        try:
            there = self._there(last - 1)
        except RunError as error:
            self.loop.announce(f"no evaluation at the clients: {error}")
            return
        summed = self._sum_once(prepared.held_out_request(there, self.released), last)
        result = result_of_counts(summed, prepared.order.task.classes_counted)
        if result is None:
            self.loop.announce(TOO_FEW.format(summed.failure))
        else:
            result.save(self.loop.files.path)
            self.loop.announce("; ".join(["on held-out records", *result.lines]))

    def _vote(self) -> None:
        """Have clients vote on settings, once, where the plan pays for it, and go on with what they chose.

        Where there is no sum, or a process ended before it was written down, the run has its own settings.
        """
        prepared, ledger, path = self.prepared, self.loop.state.ledger, self.loop.files.path
        if prepared.method.plan.vote is None:
            return
        config, method = prepared.config, prepared.method
        if "vote" not in ledger.charged_once:
            index = Vote.index(method.plan.num_rounds)
            request = vote_request(method, self.theta, self._there(0), config)
            summed = self._sum_once(request, index)
            found = VoteResult.of(config, summed)
            if found is None:
                own = in_words([getattr(config.training, key) for key in VOTABLE])
                self.loop.announce(NO_VOTE.format(summed.failure, own))
            else:
                found.save(path)
                self.loop.announce("; ".join([f"{found.clients} clients voted", *found.lines]))
        chosen = VoteResult.read(path)
        if chosen is not None:
            voted = with_setting(config, chosen.chosen)
            if method.plan.about_records:
                cast("RecordRun", method).config = voted
            self.loop.training_of = partial(training_of, voted)

    def _there(self, round_index: int) -> list[int]:
        """Who can be reached for a sum beside the rounds; who comes now agrees to rounds from this one on.

        Raises RunError: too few for any sum, which is not charged then.
        """
        plan, fleet = self.prepared.method.plan, self.loop.fleet
        present = present_for_a_round(plan, fleet, round_index, self.loop.files.path)
        everybody = [client for group in plan.groups for client in group.clients]
        return [client for client in everybody if present is None or client in present]

    def _sum_once(self, request: SumRequest, index: int) -> ClientSum:
        """Charge a sum beside the rounds, on the disk before anybody is asked, and have it summed."""
        charged = self.loop.state.ledger.charge_once(request)
        self.loop.files.save_ledger(self.loop.state.ledger)
        order = replace(self.prepared.order, round_index=index)
        return self.loop.fleet.sum_updates(order, [charged])[0]


def path_of(config: Config) -> Path:
    """Return the directory of the run's files."""
    chosen = config.run.resume or config.run.directory
    return run_path(chosen, config.dataset.name, config.method.name)
