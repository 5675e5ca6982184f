"""Metrics in MLflow, an optional extra: ``pip install 'gdpfed[mlflow]'`` and ``run.mlflow=URI``.

The extra is MLflow's client, which speaks to a tracking server; whoever has all of MLflow installed may
name a database too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from time import time
from typing import TYPE_CHECKING

from gdpfed.errors import RunError
from gdpfed.report.progress import metrics_of
from gdpfed.rounds.observers import Observer, RoundEnded

if TYPE_CHECKING:
    from mlflow import MlflowClient

EXPERIMENT = "gdpfed"
# By default a tracker that does not answer is tried for minutes, every round anew.
PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}


class TrackingError(RunError):
    """A tracker that cannot be used; the message names the setting and the remedy."""


class MlflowRun(Observer):
    """One run of the experiment ``gdpfed``; if the tracker fails later, training goes on without it.

    Args:
        uri: of a tracking server.
        name: of the run.
        settings: parameters of the run, by name.
        announce: is told in one line when the tracker fails.
        cohorts: whether it is told what depends on who was drawn. Without it rounds are a second apart.

    Raises TrackingError: MLflow is not installed, or the tracker cannot be reached.
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
                f"run.mlflow={uri}: MLflow is not installed: pip install 'gdpfed[mlflow]', or leave it out"
            ) from None
        for variable, value in PATIENCE.items():
            os.environ.setdefault(variable, value)
        self._uri, self._announce, self._failure = uri, announce, MlflowException
        self._cohorts, self._opened = cohorts, time()
        try:
            self._client: MlflowClient | None = MlflowClient(tracking_uri=uri)
            self._run_id = self._open(self._client, name, settings)
        except MlflowException as error:
            raise TrackingError(f"run.mlflow={uri} cannot be used: {_one_line(error)}") from None

    def round_ended(self, ended: RoundEnded) -> None:
        """Log the round's numbers."""
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
            self._announce(f"run.mlflow={self._uri} failed, going on without: {_one_line(error)}")

    def closed(self) -> None:
        if self._client is not None:
            try:
                self._client.set_terminated(self._run_id)
            except self._failure as error:
                self._announce(f"run.mlflow={self._uri} failed at the end: {_one_line(error)}")

    def _open(self, client: MlflowClient, name: str, settings: Mapping[str, str]) -> str:
        experiment = client.get_experiment_by_name(EXPERIMENT)
        chosen = experiment.experiment_id if experiment else client.create_experiment(EXPERIMENT)
        run = client.create_run(chosen, run_name=name)
        for key, value in settings.items():
            client.log_param(run.info.run_id, key, value)
        return str(run.info.run_id)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
