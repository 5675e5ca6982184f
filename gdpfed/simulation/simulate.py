"""A run in this process, from its configuration to its files."""

import logging
import secrets
from collections.abc import Callable
from pathlib import Path

from conf.schema import Config
from gdpfed.report.records import RoundRecord
from gdpfed.rounds.run import PreparedRun
from gdpfed.simulation.fleet import InProcessFleet
from gdpfed.simulation.sequential import SequentialEngine

logger = logging.getLogger(__name__)


def simulate(config: Config, *, observe: Callable[[RoundRecord], None] | None = None) -> Path:
    """Train in this process what ``flwr run`` trains over messages, with the same files.

    Args:
        config: a checked configuration; ``run.resume`` continues a run of either kind.
        observe: is given the record of every round.

    Returns:
        The run directory.

    Raises:
        ConfigError, PrivacyError, LearningError, RunError: before anything is written, for input that
            cannot be used; later only for a file system that refuses.
    """
    return simulate_prepared(PreparedRun.of(config), observe=observe)


def simulate_prepared(prepared: PreparedRun, *, observe: Callable[[RoundRecord], None] | None = None) -> Path:
    """As :func:`simulate`, for a run that is prepared already."""
    label = f"simulation {secrets.token_hex(8)}"
    with InProcessFleet(prepared.config.secagg, label, SequentialEngine()) as fleet:
        run = prepared.open(fleet, logger.info)
        for record in run.rounds():
            if observe is not None:
                observe(record)
        run.conclude()
    return prepared.path
