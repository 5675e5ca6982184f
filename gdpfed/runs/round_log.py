"""The log of a run's rounds: one entry a round, one line each in `rounds.jsonl`."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from math import isnan, nan
from pathlib import Path

from gdpfed.json_files import WRONG_FORM, read_json
from gdpfed.runs.file_formats import ROUNDS_FILE, VERSION_KEY, check_version, versioned

WHOLE_ROUND = "round"
"""The name of what failed where it is not one sum, but the whole round."""


def failed_in(round_number: int, name: str) -> str:
    """Say where a failure was: "round 3", or "round 3, group 1" for one of the round's sums."""
    return f"round {round_number}" if name == WHOLE_ROUND else f"round {round_number}, {name}"


@dataclass(frozen=True)
class RoundLogEntry:
    """The log entry of one round: cohorts, sums, metrics and epsilon; ``round`` counts from 1.

    Attributes:
        accuracy: the released model's accuracy on the server's test split; None if labels are not classes, if
            the server has no test split, or if the round was not evaluated.
        loss: the mean test loss of the same model; cross-entropy is in nats.
        metrics: the chosen metrics by name; the first is displayed. Empty if accuracy is the only one.
        cohort_sizes: for each group, the number of clients in the cohort, fillers included.
        filled: for each group, how many of them were not drawn and sent zeros, so that every round has its
            sum; empty if there were none.
        reachable: for each group, the number of clients that could be reached; empty if an earlier process
            was interrupted in the round, since the number is then unknown.
        turns: for each group, the clients that took part, if turns are scheduled; empty under sampling.
        taken_back: for each requested sum, pairs of a client that took noise back and the earlier round (from
            1) in whose sum it had added that noise; empty if no client did.
        noise_shares: for each requested sum, the number of members, also those without an update, and the
            standard deviation of each survivor's noise in the sum; empty if no client adds noise.
        survivors: for each requested sum, the number of clients in it; 0 if there is no sum.
        failures: why a sum is missing, by its name; the name ``round`` stands for the whole round.
        spent_epsilon: each group's spent epsilon; None without a promise.
        epsilon_against_server: for each group, epsilon against the server and the other members of sums, of
            the client that took part most often; None without a promise against the server.
        upload_bytes: for each requested sum, how many bytes a client sent for one coordinate.
        noise_stddevs: for each requested sum, C sigma: the smallest noise that was asked for.
        groups_in_sums: for each requested sum, the groups of its clients.
        seconds: wall time by phase.
        clipping_norm: C(t) of adaptive clipping, the mean of all clients' norms; None if it is fixed.
        fraction_within: the released, noised fraction of clients within their norm, from which the next C
            follows; None if there was no sum.
        noted: values, computed from what single clients released, from which later samples follow; empty if
            there are none.
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
    """Return the log entry of the last evaluated round; if no round was evaluated, return the last entry."""
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
