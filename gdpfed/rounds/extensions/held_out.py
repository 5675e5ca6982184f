"""Evaluation of the released model on clients' held-out records, by noised sums of counts or accuracies."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import hypot, isinf, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from gdpfed.clients.configured import record_counts
from gdpfed.errors import RunError
from gdpfed.learning.models import flatten
from gdpfed.learning.training.held_out_counts import (
    Interval,
    counts_dimension,
    judged,
    judged_rates,
    number_of,
)
from gdpfed.methods.base import ClientSum, Cohorts, Method, SumRequest, SumUpdates, Theta
from gdpfed.privacy.release import NoiseAt
from gdpfed.privacy.sums_once import RECORD_MOVES
from gdpfed.rounds.extensions.base import Extension
from gdpfed.runs.file_formats import HELD_OUT_FILE, read_result, save_result

if TYPE_CHECKING:
    from gdpfed.rounds.run import OpenRun, PreparedRun

TOO_FEW = "no evaluation at the clients: {}; what was charged stays charged"


@dataclass(frozen=True)
class PartyCounts:
    """The released model's results on one client's records: noised counts, and metrics from them."""

    client: int
    counts: Sequence[float]
    metrics: Mapping[str, Interval]

    @property
    def cases(self) -> float:
        """The number of records that were counted, estimated from the noised counts."""
        return number_of(self.counts)


@dataclass(frozen=True)
class HeldOutResult:
    """The released model's results on the records that clients hold out.

    Attributes:
        clients: how many are in the sum.
        weighs: whether records count alike, or clients.
        noise_stddev: of the noise in every count, in units of a record, or of a client; in those of one
            client it is less by sqrt(clients).
        counts: as they were released: of records the confusion matrix and two histograms of scores, of
            clients the shares of their records that are answered rightly and wrongly, added up.
        metrics: by name, with intervals.
        parties: counts and metrics of every client that is in the sum, where each has its own.
    """

    clients: int
    weighs: str
    noise_stddev: float
    counts: Sequence[float]
    metrics: Mapping[str, Interval]
    parties: Sequence[PartyCounts] = ()

    @classmethod
    def read(cls, directory: Path) -> Self | None:
        """Read the evaluation at clients from a run's directory; None if there is none.

        Raises:
            RunError: its file is damaged, or of another format.
        """
        return read_result(directory / HELD_OUT_FILE, "an evaluation at the clients", cls._of_values)

    @classmethod
    def _of_values(cls, values: dict[str, Any]) -> Self:
        metrics = _metrics(values.pop("metrics"))
        parties = [
            PartyCounts(each["client"], each["counts"], _metrics(each["metrics"]))
            for each in values.pop("parties", [])
        ]
        return cls(**values, metrics=metrics, parties=parties)

    def save(self, directory: Path) -> None:
        """Write the evaluation at clients into a run's directory."""
        save_result(directory / HELD_OUT_FILE, asdict(self))

    @property
    def cases(self) -> float | None:
        """The noisy number of records that were counted; None if clients sent accuracies, not counts."""
        return number_of(self.counts) if self.weighs == "records" else None

    @property
    def lines(self) -> list[str]:
        """The metrics as text, one line for each, in percent."""
        return [f"{name}: {in_percent(each)}" for name, each in self.metrics.items()]


def round_requests(
    method: Method, model: Theta, round_index: int, cohorts: Cohorts, num_classes: int
) -> list[SumRequest]:
    """Return a round's requests for sums of the accuracies that clients measure on held-out records."""
    dimension = counts_dimension(num_classes, rates=True)
    return [
        replace(request, start=model, work="held_out_rates", coordinates=dimension)
        for request in method.requests(model, round_index, cohorts)
    ]


def record_request(
    method: Method, model: Theta, clients: Sequence[int], most_records: float, num_classes: int
) -> SumRequest:
    """Return the request for counts on held-out records after a run that protects records has trained."""
    planned = method.plan.held_out
    stddev = 0.0 if planned is None else planned.noise_stddev
    bound = RECORD_MOVES * most_records
    return SumRequest(
        name="held-out records",
        clients=np.asarray(sorted(clients), dtype=np.int64),
        clipping_norm=bound,
        noise_multiplier=stddev / bound,
        noise_at=NoiseAt.CLIENT,
        work="held_out_counts",
        unit="record",
        start=model,
        coordinates=counts_dimension(num_classes) * (1 if planned is None else planned.blocks),
    )


def result_of_counts(summed: ClientSum, num_classes: int) -> HeldOutResult | None:
    """Compute metrics from noised counts, also for each client if the sum keeps the clients' counts apart."""
    if summed.total is None:
        return None
    blocks = np.asarray(summed.total).reshape(-1, counts_dimension(num_classes))
    noise, parties = summed.noise_stddev, list[PartyCounts]()
    if len(blocks) > 1:
        members = sorted(summed.members)
        parties = [
            PartyCounts(member, blocks[member].tolist(), judged(blocks[member], num_classes, noise))
            for member in members
        ]
        # Blocks of clients that are not in the sum are noise alone.
        blocks, noise = blocks[members], noise * sqrt(len(members))
    total = blocks.sum(axis=0)
    metrics = judged(total, num_classes, noise)
    return HeldOutResult(summed.survivors, "records", noise, total.tolist(), metrics, parties)


def in_percent(metric: Interval) -> str:
    """Write a metric with its interval, in percent."""
    if metric.value is None:
        return "not defined under this noise"
    return f"{100 * metric.value:.1f} % ({100 * (metric.low or 0):.1f} to {100 * (metric.high or 0):.1f})"


def _metrics(values: Mapping[str, Any]) -> dict[str, Interval]:
    return {name: Interval(**each) for name, each in values.items()}


def result_of_rates(requests: Sequence[SumRequest], sums: Sequence[ClientSum]) -> HeldOutResult | None:
    """Compute metrics from sums to which each client added its accuracy on its own held-out records.

    Returns None if no group has a sum.
    """
    total, noise, survivors = np.zeros(2), 0.0, 0
    for request, each in zip(requests, sums, strict=True):
        if each.total is None:
            continue
        bound = min(request.smallest_norm, request.clipping_norm)
        unit = 1.0 if isinf(bound) else bound
        total += each.total / unit
        noise = hypot(noise, each.noise_stddev / unit)
        survivors += each.survivors
    if not survivors:
        return None
    return HeldOutResult(survivors, "clients", noise, total.tolist(), judged_rates(total, noise))


class RatesInLastRound(Extension):
    """In the last round, clients send their accuracy on held-out records instead of updates."""

    key = "held_out_rates"

    def __init__(self, run: "PreparedRun") -> None:
        self._method, self._classes = run.method, run.order.task.classes_counted
        self._last = run.method.plan.num_rounds - 1
        self._run: OpenRun | None = None

    @classmethod
    def of(cls, run: "PreparedRun") -> Self | None:
        """Return this extension for a run; None if clients train in the last round as in any other."""
        return cls(run) if run.method.plan.last_round_counts else None

    def largest(self, run: "PreparedRun") -> list[SumRequest]:
        """Return the requests for the last round's sums over cohorts of a size that is rarely exceeded."""
        model, cohorts = flatten(run.task.build_model()), run.largest_cohorts(self._last)
        return round_requests(self._method, model, self._last, cohorts, self._classes)

    def opened_run(self, run: "OpenRun") -> None:
        """Remember the run, whose released model is to be evaluated."""
        self._run = run

    def replaces(self, round_index: int) -> bool:
        """Whether this is the last round, in which clients evaluate the final model instead of training."""
        return round_index == self._last

    def round(self, theta: Theta, round_index: int, cohorts: Cohorts, sum_updates: SumUpdates) -> None:
        """Have the round's clients evaluate the released model on held-out records, and save the result."""
        if self._run is None:
            return
        loop = self._run.loop
        model = loop.released(theta).astype(np.float32)
        requests = round_requests(self._method, model, round_index, cohorts, self._classes)
        result = result_of_rates(requests, sum_updates(requests))
        if result is not None:
            result.save(loop.files.path)


class CountsAfterRounds(Extension):
    """After the last round, clients count the released model's right answers on held-out records."""

    key = "held_out_counts"

    @classmethod
    def of(cls, run: "PreparedRun") -> Self | None:
        """Return this extension for a run; None if its plan includes no counts on held-out records."""
        return None if run.method.plan.held_out is None else cls()

    def largest(self, run: "PreparedRun") -> list[SumRequest]:
        """Return the request for counts on held-out records, as if all clients could be reached."""
        everybody = run.method.plan.clients
        return [self._request(run, everybody, flatten(run.task.build_model()))]

    def after_rounds(self, run: "OpenRun") -> None:
        """Ask all reachable clients, once, for their counts on held-out records.

        It is charged, and that is on the disk, before anybody is asked. So it is never asked a second time.
        """
        prepared, ledger = run.prepared, run.loop.state.ledger
        last = prepared.method.plan.num_rounds
        if "held_out_counts" in ledger.charged_once or ledger.charged_rounds < last:
            return
        try:
            there = run.there(last - 1)
        except RunError as error:
            run.loop.announce(f"no evaluation at the clients: {error}")
            return
        request = self._request(prepared, there, run.released)
        summed = run.sum_once(request, last)
        result = result_of_counts(summed, prepared.order.task.classes_counted)
        if result is None:
            run.loop.announce(TOO_FEW.format(summed.failure))
        else:
            result.save(run.loop.files.path)
            run.loop.announce("; ".join(["on held-out records", *result.lines]))

    def _request(self, run: "PreparedRun", clients: Sequence[int], model: Theta) -> SumRequest:
        most, classes = float(record_counts(run.config).max()), run.order.task.classes_counted
        return record_request(run.method, model.astype(np.float32), clients, most, classes)
