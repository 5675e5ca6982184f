"""One run from a checked configuration to its files: begin or resume, train, conclude."""

import os
from hashlib import sha256
from logging import INFO
from math import ceil, sqrt
from pathlib import Path

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord
from flwr.common.logger import log
from flwr.serverapp import Grid

from conf.schema import Config
from gdpfed.exchange import THETA_RECORD
from gdpfed.learning.local_update import LocalTraining
from gdpfed.learning.models import flatten
from gdpfed.learning.order import TrainingOrder
from gdpfed.learning.task import Task
from gdpfed.methods import Method, make_method
from gdpfed.methods.base import Theta
from gdpfed.privacy.ledger import Ledger
from gdpfed.report.plan_table import plan_lines
from gdpfed.report.records import run_path
from gdpfed.tasks import task_of
from server_app.checkpoint import Checkpoint
from server_app.errors import RunError
from server_app.evaluate import central_evaluation
from server_app.exchange import Exchanger
from server_app.fleet import GridFleet
from server_app.join import join_clients
from server_app.run_directory import RunDirectory
from server_app.strategy import PrivateStrategy, RunState


def train(grid: Grid, config: Config, run_label: str) -> None:
    """Check everything, then make or open the run directory, then train.

    Raises:
        ConfigError, PrivacyError, LearningError, RunError: before anything is written, for input that
            cannot be used; later only for a file system that refuses.
    """
    method = make_method(config)
    task = task_of(config)
    evaluate_model = central_evaluation(task, config.run.device)
    path = path_of(config)
    resumed = RunDirectory.resume(path, config) if config.run.resume else None
    restored = None if resumed is None else restore(resumed, method)
    nodes, roster = join_clients(grid, task.num_clients, config.secagg.mode, config.run.timeout_seconds)
    order, exchanger = order_of(config, task), Exchanger(grid, nodes, config.run.timeout_seconds)
    fleet = GridFleet(exchanger, config.secagg, run_label, roster)
    fleet.check(order, flatten(task.build_model()), method.requests(largest_cohorts(method)))
    for line in plan_lines(method.plan, method.name):
        log(INFO, "%s", line)
    files = resumed or RunDirectory.create(path, config, method.plan)
    state, theta = restored or begin(files, method, task)
    files.keep_rounds(state.completed_rounds)
    last_round = min(config.run.num_rounds, config.run.stop_after_round or config.run.num_rounds)
    strategy = PrivateStrategy(
        method=method,
        fleet=fleet,
        order=order,
        learning_rate_decay=config.dataset.learning_rate_decay,
        state=state,
        files=files,
        evaluate_model=evaluate_model,
        last_round=last_round,
    )
    initial = ArrayRecord({THETA_RECORD: Array(theta)})
    result = strategy.start(grid, initial, num_rounds=config.run.num_rounds)
    final = result.arrays[THETA_RECORD].numpy()
    conclude(files, method, task, final, paused=last_round < config.run.num_rounds)


def largest_cohorts(method: Method) -> list[npt.NDArray[np.int64]]:
    """For every group some of its clients, as many as sampling draws once in a million rounds or more."""
    sizes = (group.expected_cohort_size for group in method.plan.groups)
    largest = (ceil(size + 5 * sqrt(size) + 5) for size in sizes)
    return [
        np.asarray(group.clients[:size], dtype=np.int64)
        for group, size in zip(method.plan.groups, largest, strict=True)
    ]


def path_of(config: Config) -> Path:
    """Where the run's files go."""
    chosen = config.run.resume or config.run.directory
    return run_path(chosen, config.dataset.name, config.method.name)


def order_of(config: Config, task: Task) -> TrainingOrder:
    """The training order of round 0."""
    training = LocalTraining(
        local_steps=config.dataset.local_steps,
        batch_size=config.dataset.batch_size,
        learning_rate=config.dataset.learning_rate,
        momentum=config.dataset.momentum,
    )
    return TrainingOrder(task, training, round_index=0, device=config.run.device, noise=config.privacy.noise)


def begin(files: RunDirectory, method: Method, task: Task) -> tuple[RunState, Theta]:
    """A new run's state, written down before its first round.

    The cohorts of a private run are drawn with a key from the operating system, since amplification
    holds only while nobody can know who was sampled. Without privacy the seed draws them, so that the
    run can be repeated.
    """
    public_key = sha256(f"gdpfed cohorts {task.seed}".encode()).digest()
    key = os.urandom(32) if method.plan.private else public_key
    state = RunState(completed_rounds=0, sampling_key=key, ledger=Ledger(method.plan))
    theta = flatten(task.build_model())
    files.save_ledger(state.ledger)
    Checkpoint(theta, 0, key).save(files.path)
    return state, theta


def restore(files: RunDirectory, method: Method) -> tuple[RunState, Theta]:
    """The state of a run that was stopped; only reads."""
    checkpoint = Checkpoint.load(files.path)
    ledger = files.load_ledger(method.plan)
    if not 0 <= ledger.charged_rounds - checkpoint.completed_rounds <= 1:
        raise RunError(
            f"run.resume={files.path}: the ledger has {ledger.charged_rounds} rounds and the checkpoint "
            f"{checkpoint.completed_rounds}: they are not of one run, restore both from one copy"
        )
    files.completed_records(checkpoint.completed_rounds)
    state = RunState(checkpoint.completed_rounds, checkpoint.sampling_key, ledger)
    return state, checkpoint.theta


def conclude(files: RunDirectory, method: Method, task: Task, theta: Theta, paused: bool) -> None:
    """Draw the curves; write the final model unless the run is to go on later."""
    files.draw(method.plan, f"{method.name} on {task.source.name}")
    if paused:
        log(INFO, "paused; continue with run.resume=%s", files.path)
    else:
        files.finish(task, theta.astype(np.float32))
        log(INFO, "done; the run's files are in %s", files.path)
