"""One run from configuration to files: prepare, begin or resume, train, conclude."""

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Self

import numpy as np

from conf.schema import Config
from gdpfed.clients.configured import order_of, task_of, training_of
from gdpfed.clients.messages import one_line
from gdpfed.clients.order import TrainingOrder
from gdpfed.clients.trial import try_gradient, try_schedule
from gdpfed.errors import ConfigError, RunError
from gdpfed.learning.models import flatten
from gdpfed.learning.task import Task
from gdpfed.learning.training.evaluate import central_evaluation, nothing_tested
from gdpfed.methods import Method, make_method, resolve
from gdpfed.methods.base import ClientSum, SumRequest, Theta
from gdpfed.methods.sum_parameters import can_sum
from gdpfed.privacy.sampling.cohort_sizes import refuse_skipped, starts_of_ranges
from gdpfed.privacy.sampling.cohorts import fills_cohorts
from gdpfed.privacy.sampling.laws import ClientIds
from gdpfed.registry import Registry, is_ours
from gdpfed.rounds.enough import present_for_a_round, without_a_sum
from gdpfed.rounds.extensions.base import Extension, Extensions
from gdpfed.rounds.extensions.table import extensions_of
from gdpfed.rounds.fleet import Fleet
from gdpfed.rounds.loop import Announce, EvaluateModel, RoundLoop
from gdpfed.rounds.observers import Observer, RunConcluded, RunOpened
from gdpfed.rounds.state import RoundFiles, RunState, begin, restore
from gdpfed.runs.directory import Enrolment, RunDirectory
from gdpfed.runs.known_data import refuse_other_data
from gdpfed.runs.paths import require_unused, reserved, run_path
from gdpfed.runs.round_log import RoundLogEntry, read_rounds
from gdpfed.runs.run_end import RunEnd


@dataclass(frozen=True, kw_only=True)
class PreparedRun:
    """A run that is planned and checked, before clients join and files are written.

    Attributes:
        path: where its files go.
        name: what clients know the run by, the same when it is resumed.
        order: what clients train in round 0.
        resumed: the files and the state of the run that is continued; None for a new one.
        enrolment: who takes part, and how tables are read.
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

    @classmethod
    def of(
        cls,
        config: Config,
        identities: Mapping[int, str] | None = None,
        evaluate_model: EvaluateModel | None = None,
    ) -> Self:
        """Make the plan, load the data, and read the files of the run to resume, if any.

        A run that is continued keeps the clients' keys: another one is refused. ``evaluate_model`` stands in
        for the evaluation on the data's test split.

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
        refuse_skipped(method.plan, method.least_members(config))
        task = task_of(config)
        # Refuses a partition that does not fit the data before anything is written.
        task.client_indices(0)
        task.check_record_groups()
        task.make_loss()
        try_schedule(config)
        if is_ours(type(method)):
            # A package's method may train without a gradient.
            try_gradient(task)
        if evaluate_model is None:
            evaluate_model = nothing_tested
            if config.run.evaluation != "nodes":
                evaluate_model = central_evaluation(task, config.run.device, config.dataset.metrics)
        files = RunDirectory.resume(path, config) if config.run.resume else None
        if files is None and config.run.directory is None:
            path = reserved(path)
        enrolment = Enrolment(identities, task.client_names, task.load().columns)
        run = cls(
            config=config,
            method=method,
            task=task,
            order=replace(order_of(config, task), announced=method.announced),
            path=path,
            name=secrets.token_hex(16) if files is None else files.load_name(method.plan, enrolment),
            evaluate_model=evaluate_model,
            resumed=None,
            enrolment=enrolment,
        )
        extensions = extensions_of(run)
        if files is None:
            return run
        return replace(run, resumed=(files, restore(files, method, extensions)))

    @property
    def next_round(self) -> int:
        """The next round, counted from 0, whose privacy cost is not recorded yet."""
        return 0 if self.resumed is None else self.resumed[1][0].ledger.charged_rounds

    @property
    def last_round(self) -> int:
        """The number of rounds after which this process stops."""
        return self.config.run.last_round

    def open(
        self,
        fleet: Fleet,
        make_observers: "MakeObservers",
        announce: Announce,
        more: Sequence[Extension] = (),
    ) -> "OpenRun":
        """Check all sums, make the run's observers, and create the run directory or open the existing one.

        An observer that cannot do its work says so when it is made: nothing is written yet. ``more`` are
        extensions of whoever starts the run; they keep nothing in its checkpoint.

        Raises:
            RunError: sums that do not fit, an observer that cannot work, or a directory that cannot be used.
        """
        if self.resumed is None:
            extensions = extensions_of(self, more)
        else:
            extensions = Extensions([*more, *self.resumed[1][0].extensions])
        largest = extensions.asked(self.order, self._requests_of(self.largest_cohorts))
        requests = largest + extensions.largest(self)
        # Their grid is coarser than that of the largest ones; where cohorts are filled up, these are larger.
        usual = [] if fills_cohorts(self.method.plan) else self._requests_of(self._usual_cohorts)
        possible = [each for each in usual if can_sum(self.config.secagg, len(each.clients))]
        fleet.check(self.order, [*requests, *extensions.asked(self.order, possible)], extensions)
        extensions.tell(Extension.check, self, fleet, requests)
        with ExitStack() as closing:
            observers = [*extensions, *make_observers(self, announce)]
            for observer in observers:
                closing.callback(observer.closed)
            files = RunDirectory.make(self.path) if self.resumed is None else self.resumed[0]
            closing.enter_context(files.held())
            if self.resumed is None:
                files.begin(self.config, self.method, self.name, self.enrolment, self.task)
                state, theta = begin(files, self.method, self.task, extensions)
            else:
                state, theta = self.resumed[1]
                state.extensions = extensions
            files.keep_rounds(state.completed_rounds)
            loop = RoundLoop(
                method=self.method,
                fleet=fleet,
                order=self.order,
                training_of=partial(training_of, self.config),
                state=state,
                files=files,
                evaluate_model=self.evaluate_model,
                evaluate_every=self.config.run.evaluate_every,
                observers=[RoundFiles(files, self.method, state), *observers],
                announce=announce,
            )
            run = OpenRun(self, loop, theta, closing)
            extensions.tell(Extension.opened_run, run)
            for observer in loop.observers:
                observer.opened(RunOpened(files.path, state.completed_rounds))
            run.closing = closing.pop_all()
            return run

    def _requests_of(self, cohorts_of: Callable[[int], Sequence[ClientIds]]) -> list[SumRequest]:
        """Return requests over the cohorts of each range of rounds with the same sampling rates."""
        theta = flatten(self.task.build_model())
        return [
            request
            for index in starts_of_ranges(self.method.plan)
            for request in self.method.requests(theta, index, cohorts_of(index))
        ]

    def largest_cohorts(self, round_index: int) -> list[ClientIds]:
        """Return clients of each group, in a number that the round's cohorts very rarely exceed."""
        return self._first_clients(round_index, self.method.plan.law.largest_expected)

    def _usual_cohorts(self, round_index: int) -> list[ClientIds]:
        """Return clients of each group, in the mean number that a round draws."""
        return self._first_clients(round_index, lambda rate, size: round(rate * size))

    def _first_clients(self, round_index: int, count: Callable[[float, int], int]) -> list[ClientIds]:
        rates = [group.at(round_index).sampling_rate for group in self.method.plan.groups]
        return [
            np.asarray(group.clients[: count(rate, len(group.clients))], dtype=np.int64)
            for group, rate in zip(self.method.plan.groups, rates, strict=True)
        ]


MakeObservers = Callable[[PreparedRun, Announce], Sequence[Observer]]

RUN_OBSERVERS: Registry[MakeObservers] = Registry(
    "observers of runs",
    "gdpfed.run_observers",
    built_in={"shown": "gdpfed.report.run_observers:default_observers"},
    error=ConfigError,
)
"""Who watches a run, handed in by name: no part of the kernel knows a report."""


@dataclass
class OpenRun:
    """A run with its clients and files; used with ``with``, so that its observers are closed at the end.

    Attributes:
        theta: the model as of the last round, shape (d,).
        closing: what is to be done at the end, whatever happens.
    """

    prepared: PreparedRun
    loop: RoundLoop
    theta: Theta
    closing: ExitStack

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.closing.close()

    @property
    def released(self) -> Theta:
        """Return the model to release after the last round, shape (d,)."""
        return self.loop.released(self.theta)

    def rounds(self) -> Iterator[RoundLogEntry]:
        """Run the remaining rounds, and yield the log entry of each."""
        num_rounds = self.prepared.config.run.num_rounds
        self.loop.state.extensions.tell(Extension.before_rounds, self)
        for theta, record in self.loop.rounds(self.theta, num_rounds, self.prepared.last_round):
            self.theta = theta
            yield record

    def conclude(self) -> None:
        """Tell observers that the run ends; write the released model, unless the run is to be resumed.

        The checkpoint goes last, so that a run whose observers fail here can be resumed and concluded.

        Raises:
            RunError: the run is over, all its files are written, and not one of its rounds has a sum.
        """
        files, ledger, extensions = self.loop.files, self.loop.state.ledger, self.loop.state.extensions
        of_last_round = self.released
        extensions.tell(Extension.after_rounds, self)
        released, records = self.released, read_rounds(files.path)
        paused = self.prepared.last_round < self.prepared.config.run.num_rounds
        if not paused:
            self._end(of_last_round, released).save(files.path)
        concluded = RunConcluded(
            released, records, ledger.spent(), ledger.against_server(), ledger.charged_rounds
        )
        for observer in self.loop.observers:
            observer.concluded(concluded)
        if paused:
            files.seal()
            self.loop.announce(f"paused; continue with run.resume={files.path}")
        else:
            files.finish(self.prepared.task, released.astype(np.float32))
            extensions.tell(Extension.finished)
            files.seal()
            if not any(record.summed for record in records):
                raise RunError(without_a_sum(records, files.path))
            self.loop.announce(f"done; the run's files are in {files.path}")

    def _end(self, of_last_round: Theta, released: Theta) -> RunEnd:
        """Return why the run ended early, and metrics of a released model other than the last round's."""
        early = one_line(self.loop.early)
        if np.array_equal(of_last_round, released):
            return RunEnd(early)
        found = self.prepared.evaluate_model(released)
        return RunEnd(early, found.accuracy, dict(found.metrics))

    def there(self, round_index: int) -> list[int]:
        """Wait until enough clients for a sum outside the rounds can be reached; return all that can be.

        Raises RunError: too few for any sum, which is not charged then.
        """
        plan, fleet = self.prepared.method.plan, self.loop.fleet
        present = present_for_a_round(plan, fleet, round_index, self.loop.files.path)
        everybody = plan.clients
        return [client for client in everybody if present is None or client in present]

    def sum_once(self, request: SumRequest, index: int) -> ClientSum:
        """Save the cost of a sum outside the rounds in the ledger; then ask the clients, and return the sum.

        ``index`` is the round that its clients are told. Raises PrivacyError: the plan pays for no such sum,
        or it has been charged.
        """
        charged = self.loop.state.ledger.charge_once(request)
        self.loop.files.save_ledger(self.loop.state.ledger)
        order = replace(self.prepared.order, round_index=index)
        return self.loop.fleet.sum_updates(order, [charged])[0]


def path_of(config: Config) -> Path:
    """Return the directory of the run's files."""
    chosen = config.run.resume or config.run.directory
    return run_path(chosen, config.dataset.name, config.method.name)
