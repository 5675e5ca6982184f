"""The round loop as a Flower strategy."""

from collections.abc import Callable, Iterable
from typing import NoReturn

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from gdpfed.clients.messages import THETA_RECORD
from gdpfed.rounds.run import OpenRun


class PrivateStrategy(Strategy):
    """Runs a method's rounds, each of as many exchanges as its sums need.

    Args:
        run: the run, whose fleet is behind the grid.
    """

    def __init__(self, run: OpenRun) -> None:
        self.run = run

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run the rounds that are left.

        Everything is fixed by the run's configuration, its state and the fleet that was made from it;
        the arguments that Flower has for it are not used.
        """
        del grid, initial_arrays, num_rounds, timeout, train_config, evaluate_config, evaluate_fn
        result = Result()
        for record in self.run.rounds():
            metrics = MetricRecord({"accuracy": record.accuracy, "loss": record.loss})
            result.evaluate_metrics_serverapp[record.round] = metrics
        result.arrays = arrays_of(self.run)
        return result

    def summary(self) -> None:
        """Nothing to add: the round loop says what it is about to run."""

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """No client evaluates: accuracy on its own data would leave it in clear."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Nothing to aggregate, see :meth:`configure_evaluate`."""
        return None

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> NoReturn:
        """Refused: a round here is several exchanges, which :meth:`start` drives."""
        raise TypeError("PrivateStrategy trains in several exchanges a round: call start()")

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> NoReturn:
        """Refused, as :meth:`configure_train`."""
        raise TypeError("PrivateStrategy trains in several exchanges a round: call start()")


def arrays_of(run: OpenRun) -> ArrayRecord:
    """The run's released model as Flower carries it."""
    return ArrayRecord({THETA_RECORD: Array(run.released)})
