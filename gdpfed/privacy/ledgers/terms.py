"""What a server promises one client before a training: enough for the client to account for it itself."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self, get_args

from gdpfed.errors import PrivacyError
from gdpfed.privacy.accountants.composition import Charge
from gdpfed.privacy.accountants.noise_law import NoiseLaw
from gdpfed.privacy.events import Adjacency, SampledGaussian, Sampling
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.validation import require_choice, require_count, require_delta, require_number

Scalar = str | int | float

MOST_NAME_CHARACTERS = 64


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The terms of one client's group for one run.

    Attributes:
        run: names the run, the same when it is resumed.
        group: index of the client's group in the plan.
        epsilon: what the plan promises the group at `delta`, by its own `accountant`.
        sampling, sampling_rate, group_size, adjacency: how the group's cohorts are drawn, and what is
            protected.
        noise_stddev: of the group's sum, per coordinate, in the unit of `clipping_norm`.
        num_rounds: T; the group is sampled in no more rounds.
        first_round: the round, from 0, from which on this client is among those sampled from.
        noise: the law of the noise that the client adds its share of.
        sums_hidden: whether the server sees sums alone.
        dropout_tolerance: largest fraction of a cohort that may vanish from a sum.
        corrupt_tolerance: fraction of a cohort whose noise is not relied on.
    """

    run: str
    group: int
    epsilon: float
    delta: float
    accountant: str
    sampling: Sampling
    sampling_rate: float
    group_size: int
    adjacency: Adjacency
    noise_stddev: float
    clipping_norm: float
    num_rounds: int
    noise: NoiseLaw
    sums_hidden: bool
    first_round: int = 0
    dropout_tolerance: float = 0.0
    corrupt_tolerance: float = 0.0

    def __post_init__(self) -> None:
        for name in ("run", "accountant"):
            value = getattr(self, name)
            if not isinstance(value, str) or not 0 < len(value) <= MOST_NAME_CHARACTERS:
                raise PrivacyError(
                    f"the terms' {name} is {value!r}; give a name of up to {MOST_NAME_CHARACTERS} characters"
                )
        require_count("the terms' group", self.group, at_least=0)
        require_count("the terms' num_rounds", self.num_rounds)
        if require_count("the terms' first_round", self.first_round, at_least=0) >= self.num_rounds:
            raise PrivacyError(
                f"the terms' first_round is {self.first_round}; it must be below their {self.num_rounds} "
                "rounds"
            )
        require_number("the terms' epsilon", self.epsilon)
        require_delta(self.delta)
        require_choice("the terms' noise", self.noise, get_args(NoiseLaw))
        if not isinstance(self.sums_hidden, bool):
            raise PrivacyError(f"the terms' sums_hidden is {self.sums_hidden!r}; give true or false")
        for name in ("dropout_tolerance", "corrupt_tolerance"):
            if not 0.0 <= require_number(f"the terms' {name}", getattr(self, name)) < 1.0:
                raise PrivacyError(f"the terms' {name} is {getattr(self, name)}; it must lie in [0, 1)")
        _ = self.mechanism

    @property
    def mechanism(self) -> SampledGaussian:
        """What one round of the group releases; refuses numbers that no round can have."""
        return SampledGaussian(
            sampling=self.sampling,
            sampling_rate=self.sampling_rate,
            group_size=self.group_size,
            noise_stddev=self.noise_stddev,
            clipping_norm=self.clipping_norm,
            adjacency=self.adjacency,
        )

    @property
    def charge(self) -> Charge:
        """All rounds that this client may be sampled in, as they are accounted."""
        return Charge(self.mechanism, self.num_rounds - self.first_round, self.noise)

    def to_scalars(self) -> dict[str, Scalar]:
        """One flat mapping, for a message or a file."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_scalars(cls, scalars: Mapping[str, Any]) -> Self:
        """Inverse of :meth:`to_scalars`.

        Raises PrivacyError for entries that are missing, unknown or out of range.
        """
        names = {field.name for field in fields(cls)}
        odd = ", ".join(sorted(names ^ set(scalars)))
        if odd:
            raise PrivacyError(f"the terms lack or have unknown entries: {odd}")
        return cls(**scalars)


def terms_of(
    plan: PrivacyPlan,
    group_index: int,
    run: str,
    *,
    first_round: int = 0,
    dropout_tolerance: float,
    corrupt_tolerance: float,
) -> Terms:
    """The terms of one group of a plan from a round on, with the tolerances of its sums."""
    group, mechanism = plan.groups[group_index], plan.mechanism(group_index)
    return Terms(
        run=run,
        group=group_index,
        epsilon=group.epsilon,
        delta=plan.delta,
        accountant=plan.accountant,
        sampling=mechanism.sampling,
        sampling_rate=mechanism.sampling_rate,
        group_size=mechanism.group_size,
        adjacency=mechanism.adjacency,
        noise_stddev=mechanism.noise_stddev,
        clipping_norm=mechanism.clipping_norm,
        num_rounds=plan.num_rounds,
        first_round=first_round,
        noise=plan.noise,
        sums_hidden=plan.sums_hidden,
        dropout_tolerance=dropout_tolerance,
        corrupt_tolerance=corrupt_tolerance,
    )
