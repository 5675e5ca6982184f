"""The server's instruction to train (order): what a client must compute in a round, as plain values."""

import json
from dataclasses import asdict, dataclass, fields, replace
from hashlib import sha256
from math import inf
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from gdpfed.errors import InputError
from gdpfed.learning.models import fingerprint
from gdpfed.learning.task import Task
from gdpfed.learning.training.optimizers import LocalTraining
from gdpfed.record_steps import WORKS, RecordSteps, WorkKind, kind_of
from secagg import SumParameters

Scalar = str | int | float | list[float]

PART_FIELDS = ("clipping_norm", "weight", "fills")
RANGE_FIELDS = ("smallest_norm", "smallest_weight", "largest_weight")
ADAPTIVE_FIELDS = ("norm_factor", "indicator_share")
FILL_FIELDS = ("fills", "may_fill")
ROUND_FIELDS = (
    *("round_index", "window", "device", "noise", "work", "announced", "may_fill"),
    *(*PART_FIELDS, *RANGE_FIELDS, *ADAPTIVE_FIELDS),
)
LIST_FIELDS = ("taps", "settings")
RECORD_FIELDS = {f"record_{field.name}": field.name for field in fields(RecordSteps)}
"""The names of the fields of `RecordSteps` among the plain values of an order with steps on records."""

LARGEST_RATIO = 10.0
"""The largest allowed ratio of two clipping norms, or of two weights, in one sum.

With a larger ratio, a server could make all members but one count for almost nothing, and learn its update.
"""
MOST_WORK = 1e13
"""The largest number of examples that a client trains on in a round, times parameters: hours on one core."""
MOST_ROUNDING = 0.1
"""The largest part of a client's vector, or of a record's effect on it, that rounding may take."""
# The product of norm and weight may be rounded differently on the server and on the client.
ROUNDING = 1e-9


class OrderError(InputError):
    """Raised if the server's instruction to train (order) does not fit what the client agreed to."""


def stands_out_of_zeros(noise_multiplier: float) -> str:
    """Say why this noise cannot hide a client's update in a sum in which all others send zeros; "" if it can.

    Among zeros, only the noise hides an update. It suffices if it is at least 1 / `LARGEST_RATIO` of the
    bound, as the other members' updates may be.
    """
    if noise_multiplier * LARGEST_RATIO >= 1:
        return ""
    return (
        f"members may send zeros in a sum whose noise is {noise_multiplier:.3g} of its clipping norm, below "
        f"1/{LARGEST_RATIO:g}: one client's update would stand out"
    )


@dataclass(frozen=True)
class ClientPart:
    """One client's own values in a sum: its clipping norm, its weight, and its DP-SGD steps.

    `clipping_norm`: w_i C_i, the L2 bound on the contribution; infinite if the sum's bound holds. `weight`:
    w_i. `records`: the parameters of its DP-SGD steps, or of its own noise; None without either. `fills`:
    whether it was not drawn and sends zeros, so that the sum has enough members.
    """

    clipping_norm: float = inf
    weight: float = 1.0
    records: RecordSteps | None = None
    fills: bool = False


@dataclass(frozen=True)
class TrainingOrder:
    """The server's instruction to a client in one round: task, local training, clipping norm and weight.

    Attributes:
        device: the device that the server asks for; ``auto`` lets the client choose.
        noise: the law of the noise that the client adds, gaussian or discrete_gaussian.
        work: what the client computes, by the name of its file in `gdpfed.clients.works`, such as ``update``.
        clipping_norm: w_i C_i, the L2 bound on this client's contribution; infinite if the sum's bound holds.
        weight: w_i, the factor of what the client computes; clipping comes after it.
        fills: whether this client sends zeros under its noise, and reads no example.
        may_fill: whether the server may tell members to fill the sum; the same for all members.
        smallest_norm: a lower bound on the clipping norms in the sum; infinite if all have the sum's.
        smallest_weight, largest_weight: bounds on the weights in the sum.
        norm_factor: F; what the client computes is divided by F before it is clipped.
        indicator_share: rho; if above 0, the contribution has one more coordinate, which says whether the
            update was clipped (`gdpfed.learning.training.local_update.with_indicator`).
        records: the parameters of this client's steps on records, or of its own noise on its whole update.
        window: the number of the training within the round, from 0, if clients train several times in it.
        announced: digest of what clients were told before the plan was made; empty if they were told nothing.
        taps: the parts of this round's noise that later rounds subtract; empty if noise is independent.
        settings: the settings of a vote, one after the other, each with its values of `conf.limits.VOTABLE`.
    """

    task: Task
    training: LocalTraining
    round_index: int
    device: str
    noise: str = "gaussian"
    work: str = "update"
    clipping_norm: float = inf
    weight: float = 1.0
    fills: bool = False
    may_fill: bool = False
    smallest_norm: float = inf
    smallest_weight: float = 1.0
    largest_weight: float = 1.0
    norm_factor: float = 1.0
    indicator_share: float = 0.0
    records: RecordSteps | None = None
    window: int = 0
    announced: str = ""
    taps: tuple[float, ...] = ()
    settings: tuple[float, ...] = ()

    @property
    def kind(self) -> WorkKind:
        """The kind of computation that the server asks for; raises OrderError for an unknown name."""
        self.check_kind()
        return kind_of(self.work)

    def check_kind(self) -> None:
        """Raise OrderError if the server asks for an unknown kind of computation."""
        if self.work not in WORKS.names():
            raise OrderError(f"the server asks for {self.work!r}; clients compute {', '.join(WORKS.names())}")

    @property
    def more_coordinates(self) -> int:
        """The number of coordinates that a client's contribution has besides those of the model."""
        return int(self.indicator_share > 0)

    def to_scalars(self) -> dict[str, Scalar]:
        """Return the server's instruction as one flat mapping of plain values; the task becomes JSON."""
        flat: dict[str, Scalar] = {"task": self.task.to_json()} | asdict(self.training)
        flat |= {name: getattr(self, name) for name in ROUND_FIELDS}
        flat |= {name: list(getattr(self, name)) for name in LIST_FIELDS}
        if self.records is not None:
            flat |= {key: getattr(self.records, name) for key, name in RECORD_FIELDS.items()}
            flat["record_batch_rates"] = list(self.records.batch_rates)
        return flat

    def for_part(self, part: ClientPart) -> Self:
        """Return this instruction with one client's norm, weight and steps, and whether it sends zeros."""
        own = {name: getattr(part, name) for name in PART_FIELDS}
        return replace(self, records=part.records, **own)

    @property
    def record_groups(self) -> tuple[tuple[float, ...], int]:
        """The fraction of the records in each group, and the seed by which records are assigned to groups."""
        return self.task.record_shares, self.task.seed

    @property
    def private_by_itself(self) -> bool:
        """Whether the client's own noise makes its update private, so that the sum need not hide it."""
        steps = self.records
        return kind_of(self.work).own_noise and steps is not None and steps.noise_multiplier > 0

    def context(self, theta: npt.NDArray[np.float32]) -> bytes:
        """Return a hash of the model and of the instruction without the client's own values (norm, weight).

        The client's own norm, weight, steps and `fills` are left out, since they differ between the clients
        of a sum. The ranges of all norms and weights, and `may_fill`, are hashed. So a client whose values
        lie in the ranges (`check_part`) knows how little the others may count, and whether they may be zeros.
        It does not learn which client has which value.
        """
        scalars = json.dumps(self.for_part(ClientPart()).to_scalars(), sort_keys=True)
        return sha256(scalars.encode() + fingerprint(theta)).digest()

    def check_work(self, dimension: int) -> None:
        """Raise OrderError for local training so long that it would keep a node busy for hours.

        Raises OrderError: tau times the batch size times d is more than `MOST_WORK`.
        """
        steps, batch = self.training.local_steps, self.training.batch_size
        if self.records is None and steps * batch * dimension > MOST_WORK:
            raise OrderError(
                f"{steps} local steps of {batch} examples with {dimension} parameters are more work than "
                f"{MOST_WORK:g}: use fewer steps or smaller batches"
            )

    def check_part(self, parameters: SumParameters) -> None:
        """Raise OrderError if a sum's weights, norms or zeros could single out this client's contribution.

        If the client's own noise makes its contribution private, the ratio of weights is not limited. Raises
        OrderError: this client's norm or weight is outside the ranges; a range is wider than `LARGEST_RATIO`,
        or than one value if the sum has no noise; or others may send zeros under too little noise.
        """
        if self.may_fill and (little := stands_out_of_zeros(parameters.noise_multiplier)):
            raise OrderError(little)
        largest = parameters.clipping_norm
        own, smallest = min(self.clipping_norm, largest), min(self.smallest_norm, largest)
        ratio = LARGEST_RATIO if parameters.noise_multiplier > 0 else 1.0
        ranges = {
            "clipping norm": (smallest, own, largest),
            "weight": (self.smallest_weight, self.weight, self.largest_weight),
        }
        for name, (low, value, high) in ranges.items():
            # The comparison is written so that a NaN is refused.
            if not low * (1 - ROUNDING) <= value <= high * (1 + ROUNDING):
                raise OrderError(
                    f"{name} {value:.6g} is not in the range of the sum, {low:.6g} to {high:.6g}: plan the "
                    "sum with a range that holds it"
                )
            most = inf if name == "weight" and self.private_by_itself else ratio
            if not 0 < high <= low * most * (1 + ROUNDING):
                raise OrderError(
                    f"{name}s from {low:.6g} to {high:.6g} in one sum: the largest may be {ratio:g} times "
                    "the smallest, or one client's update would stand out"
                )

    @classmethod
    def from_scalars(cls, scalars: dict[str, Any]) -> Self:
        """Read the server's instruction from the flat mapping that :meth:`to_scalars` returned.

        Raises KeyError, ValueError, TypeError: a value is missing or has a wrong form. Raises OrderError:
        `fills` or `may_fill` is neither true nor false.
        """
        for name in FILL_FIELDS:
            if type(scalars[name]) is not bool:
                raise OrderError(f"the server sent {name}={scalars[name]!r}; it must be true or false")
        records = None
        if RECORD_FIELDS.keys() & scalars.keys():
            records = RecordSteps(**{name: scalars[key] for key, name in RECORD_FIELDS.items()})
        training = {field.name: scalars[field.name] for field in fields(LocalTraining)}
        return cls(
            task=Task.from_json(scalars["task"]),
            training=LocalTraining(**training),
            **{name: scalars[name] for name in ROUND_FIELDS}
            | {name: tuple(scalars[name]) for name in LIST_FIELDS},
            records=records,
        )
