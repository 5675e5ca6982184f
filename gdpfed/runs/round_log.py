"""The log of a run's rounds: one entry a round, one line each in `rounds.jsonl`."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from math import isnan, nan
from pathlib import Path

from gdpfed.json_files import WRONG_FORM, read_json
from gdpfed.runs.file_formats import ROUNDS_FILE, VERSION_KEY, check_version, versioned


@dataclass(frozen=True)
class RoundLogEntry:
    """The log entry of one round: cohorts, sums, metrics and epsilon; ``round`` counts from 1.

    Attributes:
        accuracy: of the model after the round, on the server's test split; None where labels are numbers, the
            server has none, or the round was not evaluated.
        loss: the same model's mean of what training minimises; cross-entropy is in nats.
        metrics: the metrics that were chosen, by name in their order, the one that is shown first; empty
            where it is accuracy alone.
        cohort_sizes: clients of every group that were asked: those that were drawn, and those that fill.
        filled: how many of these were not drawn and sent zeros, so that there is a sum
            whoever was drawn; empty where nobody did.
        reachable: clients of every group that could be reached, of which the sample is drawn; empty where
            nobody knows any more, the round having been interrupted.
        turns: the clients of every group whose turn it was; empty where a sample is drawn.
        taken_back: of every requested sum, pairs of a client that took noise back in it and the round, from
            1, in whose sum it had added it; empty where nobody did.
        noise_shares: of every requested sum, how many members it had, those without an update included, and
            the standard deviation of each survivor's noise in it; empty where no client adds any.
        survivors: clients in every requested sum; 0 where there was none.
        failures: why a sum is missing, by its name; ``round`` names what ended the whole round.
        spent_epsilon: accounted epsilon of every group so far; None where nothing is promised.
        epsilon_against_server: of the client that took part most often, also against members of its sums;
            None where nothing is promised against the server.
        upload_bytes: bytes a coordinate that a client of every requested sum has sent.
        noise_stddevs: C sigma of every requested sum, the least noise that was asked for.
        groups_in_sums: the groups that every requested sum was asked of.
        seconds: wall time by phase.
        clipping_norm: C(t) of adaptive clipping, the mean norm of the updates; None where it is fixed.
        fraction_within: the part of the clients within their norm, with its noise, from which the next C
            follows; None where there was no sum.
        noted: what later samples follow from, made of what single clients released; empty where none do.
    """

    round: int
    accuracy: float | None
    loss: float | None
    cohort_sizes: list[int]
    survivors: list[int]
    failures: dict[str, str]
    spent_epsilon: list[float | None]
    epsilon_against_server: list[float | None]
    upload_bytes: list[float] = field(default_factory=list)
    noise_stddevs: list[float] = field(default_factory=list)
    groups_in_sums: list[list[int]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    reachable: list[int] = field(default_factory=list)
    metrics: dict[str, float | None] = field(default_factory=dict)
    clipping_norm: float | None = None
    fraction_within: float | None = None
    noted: dict[str, float] = field(default_factory=dict)
    turns: list[list[int]] = field(default_factory=list)
    taken_back: list[list[tuple[int, int]]] = field(default_factory=list)
    noise_shares: list[tuple[int, float]] = field(default_factory=list)
    filled: list[int] = field(default_factory=list)

    @property
    def shown(self) -> tuple[str, float]:
        """The name and value of the metric that is displayed for the round."""
        name, value = next(iter(self.metrics.items()), ("accuracy", self.accuracy))
        return name, nan if value is None else value

    @property
    def evaluated(self) -> bool:
        """Whether the round's displayed metric has a value."""
        return not isnan(self.shown[1])

    @property
    def summed(self) -> bool:
        """Whether the round has any sum."""
        return any(self.survivors)

    @property
    def num_corrections(self) -> int:
        """How many clients subtracted earlier noise without sending an update."""
        updating = {client for turns in self.turns for client in turns}
        return len({client for each in self.taken_back for client, _ in each} - updating)

    @property
    def training_seconds(self) -> float:
        """Wall time of the round without its evaluation."""
        return self.seconds["total"] - self.seconds["evaluate"]

    def to_json(self) -> str:
        """Return the entry as one line of JSON, with the format version first."""
        values = asdict(self)
        if not self.metrics:
            del values["metrics"]
        if self.clipping_norm is None:
            del values["clipping_norm"], values["fraction_within"]
        for name in ("noted", "turns", "taken_back", "noise_shares", "filled"):
            if not values[name]:
                del values[name]
        return json.dumps(versioned(values), allow_nan=False)


def last_evaluated(records: Sequence[RoundLogEntry]) -> RoundLogEntry:
    """Return the last round whose displayed metric has a value; the last one of all if none has."""
    return next((record for record in reversed(records) if record.evaluated), records[-1])


def read_rounds(directory: Path) -> list[RoundLogEntry]:
    """Read the complete lines of a run's log; a last line still being written is left out.

    Raises:
        ValueError: a complete line is not a record; the message names file and line.
        RunError: a line is of another format.
    """
    path = directory / ROUNDS_FILE
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    records = []
    for number, line in enumerate((each for each in lines if each.endswith("\n")), start=1):
        try:
            values = read_json(line)
            check_version(path, values.pop(VERSION_KEY, None))
            records.append(RoundLogEntry(**values))
        except WRONG_FORM as error:
            raise ValueError(f"{path} line {number} is not a record of a round: {error}") from None
    return records


def finite(values: Sequence[float | None]) -> list[float | None]:
    """Return numbers for JSON, with None in place of infinity."""
    return [None if value is None or value == float("inf") else value for value in values]
