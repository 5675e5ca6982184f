"""A run in this process, from its configuration to its files."""

import logging
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path

from conf.schema import Config
from gdpfed.errors import ConfigError
from gdpfed.report.run_observers import default_observers
from gdpfed.rounds.loop import Announce
from gdpfed.rounds.run import MakeObservers, PreparedRun
from gdpfed.runs.round_log import RoundLogEntry
from gdpfed.simulation.engine_choice import choose_engine
from gdpfed.simulation.in_process_fleet import InProcessFleet

logger = logging.getLogger(__name__)


def simulate(
    config: Config,
    *,
    observe: Callable[[RoundLogEntry], None] | None = None,
    make_observers: MakeObservers = default_observers,
) -> Path:
    """Train in this process what ``flwr run`` trains over messages, with the same files.

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
    """Do as :func:`simulate` does, for a prepared run; ``announce`` is told what happens."""
    config, label = prepared.config, f"simulation {secrets.token_hex(8)}"
    if config.run.mailbox is not None:
        raise ConfigError(
            f"run.mailbox={config.run.mailbox} is for the run of an edge, over Flower: leave it out here"
        )
    config.secagg.refuse_roster()
    plan = prepared.method.plan
    records = plan.private and plan.about_records
    if records and prepared.config.privacy.client_records is not None:
        _check_record_counts(prepared, prepared.config.privacy.client_records)
    engine, which = choose_engine(config.simulation, prepared.task, config.run.device, records=records)
    with InProcessFleet(config.secagg, label, engine) as fleet:
        announce(f"training {which}")
        with prepared.open(fleet, make_observers, logger.info) as run:
            for record in run.rounds():
                if observe is not None:
                    observe(record)
            run.conclude()
    return prepared.path


def _check_record_counts(prepared: PreparedRun, given: Sequence[int]) -> None:
    """Refuse numbers of records that are not those of the clients that are simulated.

    Raises ConfigError: names the first client of whom they are not.
    """
    for client, count in enumerate(given):
        held = len(prepared.task.client_indices(client))
        if held != count:
            raise ConfigError(
                f"privacy.client_records says {count} records of client {client}, and the data set gives it "
                f"{held}: leave it out, or train over messages, where nodes bring records of their own"
            )
