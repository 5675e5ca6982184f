"""The round loop as a Flower strategy: charge, sum, step, evaluate, record, checkpoint."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from logging import INFO
from time import perf_counter
from typing import NoReturn

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from gdpfed.exchange import THETA_RECORD
from gdpfed.learning.evaluate import Evaluation
from gdpfed.learning.local_update import LocalTraining
from gdpfed.learning.order import TrainingOrder
from gdpfed.methods.base import ClientSum, Method, Theta
from gdpfed.privacy.errors import BudgetExhausted
from gdpfed.privacy.ledger import Ledger
from gdpfed.report.records import RoundRecord, finite
from server_app.checkpoint import Checkpoint
from server_app.fleet import GridFleet
from server_app.run_directory import RunDirectory

INTERRUPTED = "interrupted before its end: charged, and not repeated"
EvaluateModel = Callable[[Theta], Evaluation]


@dataclass
class RunState:
    """Where a run stands, and what carries it on from there.

    Attributes:
        completed_rounds: rounds behind it.
        sampling_key: draws the cohorts; secret.
        ledger: what has been charged; at most one round ahead of ``completed_rounds``.
    """

    completed_rounds: int
    sampling_key: bytes
    ledger: Ledger


class PrivateStrategy(Strategy):
    """Runs a method's rounds, each of as many exchanges as its sums need.

    Args:
        method: plan, cohorts and step.
        fleet: the clients.
        order: what clients train; learning rate and round are set for every round.
        learning_rate_decay: eta_t = eta * decay**t.
        state: where to begin.
        files: where to write.
        evaluate_model: accuracy and loss of parameters on the test split.
        last_round: stop after this many rounds.
    """

    def __init__(
        self,
        *,
        method: Method,
        fleet: GridFleet,
        order: TrainingOrder,
        learning_rate_decay: float,
        state: RunState,
        files: RunDirectory,
        evaluate_model: EvaluateModel,
        last_round: int,
    ) -> None:
        self.method = method
        self.fleet = fleet
        self.order = order
        self.learning_rate_decay = learning_rate_decay
        self.state = state
        self.files = files
        self.evaluate_model = evaluate_model
        self.last_round = last_round

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
        """Run the rounds that are left of ``num_rounds``.

        Grid, timeout, training and evaluation are fixed by the run's configuration and the fleet that was
        made from it; the arguments that Flower has for them are not used.
        """
        del grid, timeout, train_config, evaluate_config, evaluate_fn
        theta = initial_arrays[THETA_RECORD].numpy()
        result = Result()
        self.summary()
        for index in range(self.state.completed_rounds, min(num_rounds, self.last_round)):
            try:
                theta, record = self._round(index, theta)
            except BudgetExhausted as error:
                log(INFO, "training ends before round %d: %s", index + 1, error)
                break
            metrics = MetricRecord({"accuracy": record.accuracy, "loss": record.loss})
            result.evaluate_metrics_serverapp[index + 1] = metrics
            log(INFO, "%s", _line(record, num_rounds))
        result.arrays = ArrayRecord({THETA_RECORD: Array(theta)})
        return result

    def _round(self, index: int, theta: Theta) -> tuple[Theta, RoundRecord]:
        """One round, charged first; a round that an earlier process had charged is not run again."""
        started = perf_counter()
        cohorts = self.method.cohorts(index, self.state.sampling_key)
        self.fleet.exchanger.seconds.clear()
        sums: list[ClientSum] = []
        interrupted = self.state.ledger.charged_rounds > index
        if not interrupted:
            self.state.ledger.charge(index, cohorts)
            self.files.save_ledger(self.state.ledger)
            sum_updates = partial(self.fleet.sum_updates, self._order_for(index))
            theta, sums = self.method.round(theta, cohorts, sum_updates)
        trained = perf_counter()
        evaluation = self.evaluate_model(theta)
        seconds = self.fleet.exchanger.seconds | {
            "evaluate": perf_counter() - trained,
            "total": perf_counter() - started,
        }
        record = self._record(index, evaluation, cohorts, sums, seconds)
        if interrupted:
            record = replace(record, failures={"round": INTERRUPTED})
        self._keep(index, theta, record)
        return theta, record

    def _keep(self, index: int, theta: Theta, record: RoundRecord) -> None:
        self.files.append_round(record)
        self.state.completed_rounds = index + 1
        key, method_state = self.state.sampling_key, self.method.state_dict()
        Checkpoint(theta, index + 1, key, method_state).save(self.files.path)

    def _order_for(self, index: int) -> TrainingOrder:
        training: LocalTraining = replace(
            self.order.training,
            learning_rate=self.order.training.learning_rate * self.learning_rate_decay**index,
        )
        return replace(self.order, training=training, round_index=index)

    def _record(
        self,
        index: int,
        evaluation: Evaluation,
        cohorts: list[npt.NDArray[np.int64]],
        sums: list[ClientSum],
        seconds: dict[str, float],
    ) -> RoundRecord:
        return RoundRecord(
            round=index + 1,
            accuracy=evaluation.accuracy,
            loss=evaluation.loss,
            cohort_sizes=[len(cohort) for cohort in cohorts],
            survivors=[each.survivors for each in sums],
            failures={each.name: each.failure for each in sums if each.failure is not None},
            spent_epsilon=finite(self.state.ledger.spent()),
            epsilon_against_server=finite(self.state.ledger.against_server()),
            upload_bytes=[each.upload_bytes for each in sums],
            seconds={name: round(value, 4) for name, value in seconds.items()},
        )

    def summary(self) -> None:
        """Log what is about to run."""
        log(
            INFO,
            "%s from round %d, files in %s",
            self.method.name,
            self.state.completed_rounds + 1,
            self.files.path,
        )

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


def _line(record: RoundRecord, num_rounds: int) -> str:
    spent = ", ".join("none" if e is None else f"{e:.2f}" for e in record.spent_epsilon)
    failed = "".join(f"; {name}: {reason}" for name, reason in record.failures.items())
    return (
        f"round {record.round}/{num_rounds}: accuracy {100 * record.accuracy:.1f} %, "
        f"clients {sum(record.survivors)}, epsilon spent {spent}, "
        f"{record.seconds['total']:.1f} s{failed}"
    )
