"""The parameters of DP-SGD on records: number of steps, batch rates, clipping bound and noise.

A client that adds its own noise to its whole update gets the same parameters, for one step.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, Literal

from gdpfed.errors import LearningError, PrivacyError, either, not_known
from gdpfed.registry import Registry

Work = str
"""The kind of computation of a client for a sum, named after its file in `gdpfed.clients.works`."""

Once = Literal["held_out_counts", "vote", "norm_histogram"]
"""What is summed once in a run, outside of the rounds: counts on held-out records, votes, or update norms."""
NORM_MULTIPLES = (1 / 8, 1 / 4, 1 / 2, 1.0)
"""Bin ends of the histogram of update norms, in clipping norms; one more bin has all larger norms."""

RecordIs = Literal["record", "person"]
"""What one protected record is: a row, or a person with all rows, whose gradients are added up."""


def person_words(parties: int) -> str:
    """Return words for a record that is a person, as in "person at up to 3 parties"; "" if `parties` is 0."""
    several = f" at up to {parties} parties" if parties > 1 else ""
    return f"person{several}" if parties else ""


LEAST_NORM, MOST_NORM = 1e-12, 1e30
"""The smallest and the largest clipping norm of a record: far above the smallest numbers of float32, and so
far below its largest that no sum of a hundred million clipped gradients overflows."""


@dataclass(frozen=True)
class WorkKind:
    """The properties of one kind of client computation (a "work"), such as whether it uses records.

    `on_records`: the client takes steps on records. `own_noise`: the client adds noise itself, so that the
    result is private against everyone who sees it. `window`: the client takes several steps without noise and
    releases only the model after the last step: "convex", of a convex loss; "window", where every step is
    clipped. `held_out`: the client counts answers on records that it never trains on. One record changes two
    counts by 1 each; counts divided by their number have norm at most 1 for a whole client. `once`: the sum
    that is made once in a run, outside of the rounds. A vote is 1 for one of several training settings and 0
    for the others; the client tries the settings by steps on records or by rounds of local training. A norm
    histogram is 1 for the bin of the update's norm and 0 for the others.
    """

    on_records: bool
    own_noise: bool = False
    window: Literal["convex", "window"] | None = None
    held_out: bool = False
    once: Once | None = None

    @property
    def vote(self) -> bool:
        """Whether this kind of client computation is a vote on training settings."""
        return self.once == "vote"


KINDS: Mapping[str, WorkKind] = {
    "update": WorkKind(on_records=False),
    "noised_update": WorkKind(on_records=False, own_noise=True),
    "dp_sgd": WorkKind(on_records=True, own_noise=True),
    "gradient_sum": WorkKind(on_records=True),
    "convex_steps": WorkKind(on_records=True, window="convex"),
    "window_steps": WorkKind(on_records=True, window="window"),
    "held_out_counts": WorkKind(on_records=False, held_out=True, once="held_out_counts"),
    "held_out_rates": WorkKind(on_records=False, held_out=True),
    "vote": WorkKind(on_records=False, once="vote"),
    "vote_by_rounds": WorkKind(on_records=False, once="vote"),
    "norm_histogram": WorkKind(on_records=False, once="norm_histogram"),
}

WORKS: Registry[Any] = Registry(
    "work",
    "gdpfed.works",
    built_in={
        path.stem: f"gdpfed.clients.works.{path.stem}"
        for path in (Path(__file__).parent / "clients" / "works").glob("[a-z]*.py")
    },
    error=LearningError,
)
"""The table of client computations (works): built-in modules, and modules of installed packages."""

PACKAGE_KINDS: Registry[WorkKind] = Registry("kind of work", "gdpfed.work_kinds", error=PrivacyError)
"""The properties of the client computations (works) that packages add, by the name of the work."""

PLAIN = WorkKind(on_records=False)
"""The properties of a client computation that states none: an update that the sum clips and noises."""


def kind_of(work: str) -> WorkKind:
    """Return the properties of one kind of client computation (a work) by its name.

    Raises PrivacyError: no table has the work, so its privacy cost is unknown, or its package gives something
    else than a `WorkKind`.
    """
    if work in KINDS:
        return KINDS[work]
    if work not in WORKS.names():
        raise PrivacyError(f"{not_known(f'work={work}', WORKS.names())}, or install the package that has it")
    if work not in PACKAGE_KINDS.names():
        return PLAIN
    kind = PACKAGE_KINDS.get(work)
    if not isinstance(kind, WorkKind):
        raise PrivacyError(
            f"the kind of work {work!r} is a {type(kind).__name__}, so its privacy cost is not known: its "
            "package must give a WorkKind of gdpfed.record_steps"
        )
    return kind


def require_record_work(name: str, work: str, *, by_steps: bool = False) -> None:
    """Raise PrivacyError unless `work` means noisy steps on records and, with `by_steps`, releases each step.

    `name`: the setting that the error names. Raises PrivacyError: it is another work, or as in `kind_of`.
    """
    kind = kind_of(work)
    if not kind.on_records or (by_steps and kind.window is not None):
        fitting = (key for key, each in KINDS.items() if each.on_records and not (by_steps and each.window))
        what = "release each of its noisy steps" if by_steps else "take noisy steps"
        raise PrivacyError(f"{name}={work} does not {what} on records: use {either(sorted(fitting))}")


@dataclass(frozen=True, kw_only=True)
class RecordSteps:
    """The DP-SGD steps of one client in one round: number, batch rates, clipping norm and noise.

    A step draws records independently of each other, clips each drawn record's gradient to L2 norm C, and
    adds the gradients up. For convex_steps, C is the bound on a record's gradient. For window_steps, C is the
    bound on a whole step, and single gradients are not clipped. For a noised update, C is the bound on the
    whole update, which is one step on all records.

    Attributes:
        num_steps: tau.
        batch_rates: q, the probability that a step draws a record: one rate for each group of records, in the
            order of the groups, or one rate for all records.
        clipping_norm: C.
        noise_multiplier: sigma; the client adds noise of standard deviation C sigma to every step's sum. It
            is 0 if the noise is that of the sum over many clients.

    Raises PrivacyError: a number is out of range.
    """

    num_steps: int
    batch_rates: tuple[float, ...]
    clipping_norm: float
    noise_multiplier: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch_rates", tuple(self.batch_rates))
        if type(self.num_steps) is not int or self.num_steps < 1:
            raise PrivacyError(f"num_steps is {self.num_steps!r}; it must be a whole number from 1")
        if not self.batch_rates:
            raise PrivacyError("batch_rates is empty; give one rate, or one for every group of records")
        for rate in self.batch_rates:
            if not 0.0 < rate <= 1.0:
                raise PrivacyError(f"a batch rate is {rate}; it must lie in (0, 1]")
        if not LEAST_NORM <= self.clipping_norm <= MOST_NORM:
            raise PrivacyError(
                f"a record's clipping_norm is {self.clipping_norm}; it must be from {LEAST_NORM:g} to "
                f"{MOST_NORM:g}"
            )
        if not 0.0 <= self.noise_multiplier < inf:
            raise PrivacyError(
                f"a step's noise_multiplier is {self.noise_multiplier}; it must be finite and not negative"
            )


def record_move(work: str, steps: RecordSteps) -> float:
    """Return how far (L2 norm) one record can move the vector that a client computes, before it is weighted.

    It is C for each step that draws the record. For window_steps with m steps, it is 2 C m in total.
    """
    return (2 * steps.num_steps if kind_of(work).window == "window" else 1) * steps.clipping_norm
