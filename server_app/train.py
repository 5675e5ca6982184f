"""A run on Flower's grid."""

from functools import partial
from logging import INFO

from flwr.common.logger import log
from flwr.serverapp import Grid

from conf.schema import Config
from gdpfed.rounds.run import PreparedRun
from server_app.exchange import Exchanger
from server_app.fleet import GridFleet
from server_app.join import join_clients
from server_app.strategy import PrivateStrategy, arrays_of


def train(grid: Grid, config: Config, run_label: str) -> None:
    """Check everything, then make or open the run directory, then train.

    Raises:
        ConfigError, PrivacyError, LearningError, RunError: before anything is written, for input that
            cannot be used; later only for a file system that refuses.
    """
    prepared, waits = PreparedRun.of(config), config.run.timeout_seconds
    nodes, roster = join_clients(grid, prepared.task.num_clients, config.secagg.mode, waits)
    fleet = GridFleet(Exchanger(grid, nodes, waits), config.secagg, run_label, roster)
    run = prepared.open(fleet, partial(log, INFO, "%s"))
    PrivateStrategy(run).start(grid, arrays_of(run), num_rounds=config.run.num_rounds)
    run.conclude()
