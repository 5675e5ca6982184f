"""The state of a run, new or restored from files, and the observer that saves it."""

import os
from dataclasses import dataclass
from hashlib import sha256

from gdpfed.errors import RunError
from gdpfed.learning.models import flatten
from gdpfed.learning.task import Task
from gdpfed.learning.training.optimizers import LocalTraining
from gdpfed.methods.base import Method, SumRequest, Theta
from gdpfed.privacy.ledgers.server import Ledger
from gdpfed.privacy.sampling.cohorts import KEY_BYTES
from gdpfed.record_steps import RecordSteps
from gdpfed.rounds.extensions.base import Extension, Extensions
from gdpfed.rounds.observers import Observer, RoundEnded
from gdpfed.runs.checkpoint import Checkpoint
from gdpfed.runs.directory import RunDirectory

REQUESTS = (SumRequest, LocalTraining, RecordSteps)
"""The class of a method's requests, then the classes of values in them; subclasses are refused."""


@dataclass
class RunState:
    """The state from which a run continues: privacy ledger, sampling key, and state of optional features.

    Attributes:
        completed_rounds: how many rounds are complete.
        sampling_key: the secret key with which cohorts are drawn.
        ledger: what was charged, at most one round more than ``completed_rounds``.
        extensions: the run's extensions with their state between rounds, some of which is secret.
    """

    completed_rounds: int
    sampling_key: bytes
    ledger: Ledger
    extensions: Extensions


def begin(files: RunDirectory, method: Method, task: Task, extensions: Extensions) -> tuple[RunState, Theta]:
    """Make a new run's state, and save it before the first round.

    A private run draws its cohorts with a key from the operating system's random generator: amplification
    by sampling holds only if no adversary knows the cohorts. Without privacy the key follows from the seed,
    so that the run can be repeated.
    """
    public_key = sha256(f"gdpfed cohorts {task.seed}".encode()).digest()
    key = secret_sampling_key() if method.plan.private else public_key
    state = RunState(0, key, new_ledger(method), extensions)
    theta = flatten(task.build_model())
    files.save_ledger(state.ledger)
    Checkpoint(theta, 0, key, extensions.state_dict()).save(files.path)
    return state, theta


def new_ledger(method: Method) -> Ledger:
    """Return a method's privacy ledger, in which no cost is recorded yet."""
    return Ledger(method.plan, subject_of(method), REQUESTS)


def subject_of(method: Method) -> str:
    """Return the method's name as it appears in a ledger's error messages."""
    return f"method {method.name}"


def secret_sampling_key() -> bytes:
    """Draw a new secret key for sampling, so that cohorts are unpredictable."""
    return os.urandom(KEY_BYTES)


def restore(files: RunDirectory, method: Method, extensions: Extensions) -> tuple[RunState, Theta]:
    """Restore the state of a stopped run from its files, without writing any."""
    checkpoint = Checkpoint.load(files.path)
    ledger = files.load_ledger(method.plan, subject_of(method), REQUESTS)
    if not 0 <= ledger.charged_rounds - checkpoint.completed_rounds <= 1:
        raise RunError(
            f"run.resume={files.path}: the ledger has {ledger.charged_rounds} rounds and the checkpoint "
            f"{checkpoint.completed_rounds}: they are not of one run, restore both from one copy"
        )
    files.completed_records(checkpoint.completed_rounds)
    try:
        own = extensions.restore(checkpoint.method_state, checkpoint.completed_rounds)
        method.load_state_dict(own)
    except ValueError as error:
        raise RunError(f"run.resume={files.path}: {error}; restore the checkpoint from a copy") from None
    state = RunState(checkpoint.completed_rounds, checkpoint.sampling_key, ledger, extensions)
    return state, checkpoint.theta


class RoundFiles(Observer):
    """Writes every round to the run directory: its log entry first, then the checkpoint.

    A process that ends between the two leaves a log entry without its checkpoint; resuming drops the entry.
    """

    def __init__(self, files: RunDirectory, method: Method, state: RunState) -> None:
        self._files, self._method, self._state = files, method, state

    def round_ended(self, ended: RoundEnded) -> None:
        """Save a round: its log entry, then a checkpoint with theta, from which the run continues."""
        self._files.append_round(ended.record)
        state = self._state
        kept = self._method.state_dict() | state.extensions.state_dict()
        Checkpoint(ended.theta, ended.record.round, state.sampling_key, kept).save(self._files.path)
        state.extensions.tell(Extension.saved)
