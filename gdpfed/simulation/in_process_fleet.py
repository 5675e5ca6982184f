"""Runs simulated clients in this process: trains them, sums their updates, and carries out whole runs."""

import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Self

import numpy as np
import numpy.typing as npt

from conf.schema import Config, SecAggConfig
from gdpfed.clients.noise import noised_counts, secret_bits
from gdpfed.errors import ConfigError
from gdpfed.learning.task import Task
from gdpfed.methods.base import ClientSum
from gdpfed.privacy.ledgers.charged import ChargedCounts
from gdpfed.record_steps import kind_of
from gdpfed.report.run_observers import default_observers
from gdpfed.rounds.extensions.client_memory import CAN_KEEP
from gdpfed.rounds.fleet import Fleet
from gdpfed.rounds.loop import Announce
from gdpfed.rounds.pairwise import StageRequests
from gdpfed.rounds.plain import plain_sum, sum_noise_steps
from gdpfed.rounds.prepared import PreparedSum
from gdpfed.rounds.run import MakeObservers, PreparedRun
from gdpfed.runs.round_log import RoundLogEntry
from gdpfed.simulation.compiled_evaluation import with_compiled_loops
from gdpfed.simulation.engine import Cohort, Engine, StepSum, SumJob
from gdpfed.simulation.engine_choice import choose_engine
from gdpfed.simulation.joined_sessions import Identities, JoinedSessions, masked_updates, roster_of
from gdpfed.simulation.package_errors import packages_named
from secagg import Encoding, Identity, Roster, Stage


class InProcessFleet(Fleet):
    """A fleet of simulated clients that an engine trains in this process, without messages.

    With secure aggregation their real sessions are joined to the server's in memory: keys, shares, masks
    and recovery are those of a run over Flower. Without it the updates are summed and the noise of the
    sum is drawn at once. Release the engine with ``close``, or use it as a context manager.
    """

    clients_can = frozenset({CAN_KEEP})

    def __init__(self, secagg: SecAggConfig, run_label: str, engine: Engine) -> None:
        super().__init__(secagg, run_label)
        self.engine = engine
        self._identities = Identities()
        self._joined: dict[str, JoinedSessions] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.engine.close()

    def roster_of(self, clients: Sequence[int]) -> Roster:
        """Return these clients' public keys for checking signatures; no keys unless secagg.mode=active."""
        return roster_of(self._identities_of(clients))

    @property
    def has_edges(self) -> bool:
        """True, since this process can simulate edge servers between clients and server."""
        return True

    @property
    def shows_single_updates(self) -> bool:
        """Whether the server can read single clients' updates: True unless masks hide them."""
        return not self.secagg.hides_updates

    def release_counts(self, task: Task, charged: ChargedCounts) -> npt.NDArray[np.float64]:
        """Return all clients' class counts, each with noise from the client's own secret random bits."""
        noise = charged.take().noise_stddev
        own = enumerate(task.class_counts())
        return np.stack([noised_counts(counts, noise, secret_bits(client)) for client, counts in own])

    def sum_wave(self, sums: Sequence[PreparedSum], upcoming: Sequence[PreparedSum]) -> dict[str, ClientSum]:
        """Compute sums that have no common clients, without masks at edge servers; return them by name."""
        at_edges = [each for each in sums if each.at_edge]
        if not at_edges:
            return super().sum_wave(sums, upcoming)
        others = [each for each in sums if not each.at_edge]
        return self.sum_plain(at_edges) | (super().sum_wave(others, upcoming) if others else {})

    def exchange(self, asked: Sequence[StageRequests]) -> list[dict[int, bytes]]:
        """Carry out one stage of several secure sums at once; return the clients' answers for each sum."""
        if asked[0].stage is Stage.ADVERTISE:
            self._joined = {
                each.prepared.name: JoinedSessions(
                    each.prepared, self._identities_of(sorted(each.prepared.members))
                )
                for each in asked
            }
        masking = [each for each in asked if each.stage is Stage.MASK]
        masked = dict(zip(map(id, masking), self._masked(masking), strict=True))
        return [masked[id(each)] if id(each) in masked else self._answers(each) for each in asked]

    def sum_plain(self, sums: Sequence[PreparedSum]) -> dict[str, ClientSum]:
        """Train all cohorts at once and add up their updates without masks."""
        jobs = [
            SumJob(
                each.order,
                each.start,
                Cohort(each.drawn, each.parameters.encoding(len(each.clients)), each.parts, each.beside.kept),
            )
            for each in sums
        ]
        started = perf_counter()
        with packages_named([job.order for job in jobs]):
            trained = self.engine.sums_of(jobs)
        self._spend("train", started)
        return {
            each.name: self._plain(each, job.cohort.encoding, own)
            for each, job, own in zip(sums, jobs, trained, strict=True)
        }

    def _plain(self, each: PreparedSum, encoding: Encoding, trained: StepSum) -> ClientSum:
        started = perf_counter()
        total = trained.total
        total += sum_noise_steps(each.order, each.parameters, each.beside.noise)
        self._spend("noise", started)
        return plain_sum(each.name, each.parameters, encoding.to_residues(total), each.clients)

    def _identities_of(self, clients: Sequence[int]) -> dict[int, Identity]:
        return self._identities.of(clients) if self.secagg.signs else {}

    def _masked(self, asked: Sequence[StageRequests]) -> list[dict[int, bytes]]:
        """Answer the masking stage of several sums, training the clients of all sums at once."""
        if not asked:
            return []
        started = perf_counter()
        with packages_named([each.prepared.order for each in asked]):
            answers = masked_updates(
                self.engine, [(self._joined[each.prepared.name], each.requests) for each in asked]
            )
        self._spend(str(Stage.MASK), started)
        return answers

    def _answers(self, asked: StageRequests) -> dict[int, bytes]:
        started = perf_counter()
        answers = self._joined[asked.prepared.name].answers(asked.stage, asked.requests)
        self._spend(str(asked.stage), started)
        return answers

    def _spend(self, phase: str, started: float) -> None:
        self.seconds[phase] = self.seconds.get(phase, 0.0) + perf_counter() - started


logger = logging.getLogger(__name__)


def simulate(
    config: Config,
    *,
    observe: Callable[[RoundLogEntry], None] | None = None,
    make_observers: MakeObservers = default_observers,
) -> Path:
    """Run a training in this process as ``flwr run`` does over messages; write the same files.

    `config`: a checked configuration; ``run.resume`` continues a run of either kind. `observe`: is given the
    record of every round. `make_observers`: the observers of the run, made before anything is written.
    Returns the run directory. Raises ConfigError, PrivacyError, LearningError, RunError: before anything is
    written, for input that cannot be used; later only for a file system that refuses, and at the end of a run
    without a sum.
    """
    return simulate_prepared(PreparedRun.of(config), observe=observe, make_observers=make_observers)


def simulate_prepared(
    prepared: PreparedRun,
    *,
    observe: Callable[[RoundLogEntry], None] | None = None,
    announce: Announce = logger.info,
    make_observers: MakeObservers = default_observers,
) -> Path:
    """Run a prepared training like :func:`simulate`; ``announce`` receives lines for the log."""
    config, label = prepared.config, f"simulation {secrets.token_hex(8)}"
    if config.run.mailbox is not None:
        raise ConfigError(
            f"run.mailbox={config.run.mailbox} is for the run of an edge, over Flower: leave it out here"
        )
    config.secagg.refuse_roster()
    plan = prepared.method.plan
    records = plan.private and plan.about_records
    if records and prepared.config.privacy.client_records is not None:
        for client, count in enumerate(prepared.config.privacy.client_records):
            held = len(prepared.task.client_indices(client))
            if held != count:
                raise ConfigError(
                    f"privacy.client_records says {count} records of client {client}, and the data set gives "
                    f"it {held}: leave it out, or train over messages, where nodes bring records of their own"
                )
    own_noise = any(kind_of(work).on_records and kind_of(work).own_noise for work in plan.works)
    engine, which = choose_engine(
        config.simulation,
        prepared.task,
        config.run.device,
        records=records,
        noised_steps=own_noise and config.training.is_sgd,
    )
    evaluate_model = with_compiled_loops(prepared.evaluate_model, prepared.task, config.run.device)
    prepared = replace(prepared, evaluate_model=evaluate_model)
    with InProcessFleet(config.secagg, label, engine) as fleet:
        announce(f"training {which}")
        with prepared.open(fleet, make_observers, logger.info) as run:
            for record in run.rounds():
                if observe is not None:
                    observe(record)
            run.conclude()
    return prepared.path
