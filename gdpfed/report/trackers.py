"""Sends a run's metrics to TensorBoard files and, optionally, to MLflow.

The extra ``mlflow`` installs MLflow's client, for which ``run.mlflow=URI`` names a tracking server. If all of
MLflow is installed, the URI can also name a database.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from time import time
from typing import TYPE_CHECKING

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary

from gdpfed.errors import RunError, words_of
from gdpfed.installed import how_to_install
from gdpfed.report.metric_display import metrics_of
from gdpfed.rounds.observers import Observer, RoundEnded, RunOpened
from gdpfed.runs.file_formats import EVENTS_FOLDER

if TYPE_CHECKING:
    from mlflow import MlflowClient


class EventFiles(Observer):
    """Writes metrics to TensorBoard files in the run directory: each process of a run writes one file.

    The files are in the run directory. ``tensorboard --logdir`` finds them, given that directory or a folder
    of runs. The library's SummaryWriter hands events to a thread, so a killed process loses the last ones.
    Its EventsWriter, used here, writes each event at once.

    `cohorts`: whether the file shows values that depend on the drawn clients. Without them the time stamps of
    rounds are one second apart, since real times depend on the draw.
    """

    def __init__(self, *, cohorts: bool) -> None:
        self._cohorts = cohorts
        self._closing = ExitStack()

    def opened(self, run: RunOpened) -> None:
        """Open the file; TensorBoard then ignores entries of an unfinished round from an earlier process."""
        folder = run.path / EVENTS_FOLDER
        folder.mkdir(exist_ok=True)
        # Files of two processes that start in the same second differ in the number of completed rounds.
        self._writer = EventsWriter(str(folder / "events"), f".{run.completed_rounds}")
        self._closing.callback(self._writer.close)
        self._opened = time()
        begins = Event(
            wall_time=self._opened,
            step=run.completed_rounds + 1,
            session_log=SessionLog(status=SessionLog.START),
        )
        self._writer.write_event(begins)
        self._writer.flush()

    def round_ended(self, ended: RoundEnded) -> None:
        """Add a round's numbers to the TensorBoard file on disk."""
        record = ended.record
        found = metrics_of(record, cohorts=self._cohorts)
        values = [Summary.Value(tag=name, simple_value=value) for name, value in found.items()]
        wall_time = time() if self._cohorts else self._opened + record.round
        event = Event(wall_time=wall_time, step=record.round, summary=Summary(value=values))
        self._writer.write_event(event)
        self._writer.flush()

    def closed(self) -> None:
        self._closing.close()


EXPERIMENT = "gdpfed"
# With MLflow's own defaults, its client tries for minutes to reach a tracker that does not answer.
PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}


class TrackingError(RunError):
    """Raised if a tracker such as MLflow cannot be used; the message names the setting and the remedy."""


class MlflowRun(Observer):
    """Sends a run's numbers to MLflow; if MLflow fails, training continues without it.

    Args:
        uri: the address of a tracking server.
        name: the name of the run.
        settings: parameters of the run, by name.
        announce: a function that is called with one line of text when the tracker fails.
        cohorts: whether MLflow receives values that depend on the drawn clients; without them the time stamps
            of rounds are one second apart.

    Raises TrackingError if MLflow is not installed or the tracker cannot be reached.
    """

    def __init__(
        self,
        uri: str,
        name: str,
        settings: Mapping[str, str],
        announce: Callable[[str], None],
        *,
        cohorts: bool,
    ) -> None:
        try:
            from mlflow import MlflowClient
            from mlflow.exceptions import MlflowException
        except ImportError:
            raise TrackingError(
                f"run.mlflow={uri}: MLflow is not installed: {how_to_install('mlflow')}, or leave it out"
            ) from None
        for variable, value in PATIENCE.items():
            os.environ.setdefault(variable, value)
        self._uri, self._announce, self._failure = uri, announce, MlflowException
        self._cohorts, self._opened = cohorts, time()
        try:
            self._client: MlflowClient | None = MlflowClient(tracking_uri=uri)
            self._run_id = self._open(self._client, name, settings)
        except MlflowException as error:
            raise TrackingError(
                f"run.mlflow={uri} cannot be used: {words_of(error, 200)}; check the address, or leave it out"
            ) from None

    def round_ended(self, ended: RoundEnded) -> None:
        """Log the numbers of a round in MLflow."""
        client = self._client
        if client is None:
            return
        try:
            number = ended.record.round
            at = round(1000 * (time() if self._cohorts else self._opened + number))
            for name, value in metrics_of(ended.record, cohorts=self._cohorts).items():
                client.log_metric(self._run_id, name, value, timestamp=at, step=number)
        except self._failure as error:
            self._client = None
            self._announce(f"run.mlflow={self._uri} failed, going on without: {words_of(error, 200)}")

    def closed(self) -> None:
        if self._client is not None:
            try:
                self._client.set_terminated(self._run_id)
            except self._failure as error:
                self._announce(f"run.mlflow={self._uri} failed at the end: {words_of(error, 200)}")

    def _open(self, client: MlflowClient, name: str, settings: Mapping[str, str]) -> str:
        experiment = client.get_experiment_by_name(EXPERIMENT)
        chosen = experiment.experiment_id if experiment else client.create_experiment(EXPERIMENT)
        run = client.create_run(chosen, run_name=name)
        for key, value in settings.items():
            client.log_param(run.info.run_id, key, value)
        return str(run.info.run_id)
