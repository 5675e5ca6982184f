"""Optional arguments of the functions that make privacy plans."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

from gdpfed.privacy.accountants.accountant import RenyiOrders
from gdpfed.privacy.events import Adjacency, NoiseLaw, Sampling
from gdpfed.privacy.sums_once import SumOnce
from gdpfed.privacy.validation import require_count, require_positive


@dataclass(frozen=True, kw_only=True)
class RelativeRounds:
    """Consecutive rounds, with factors on the plan's sampling rate, clipping norm and noise."""

    num_rounds: int
    sampling_rate: float = 1.0
    clipping_norm: float = 1.0
    noise_multiplier: float = 1.0

    def __post_init__(self) -> None:
        require_count("num_rounds", self.num_rounds)
        for name in ("sampling_rate", "clipping_norm", "noise_multiplier"):
            require_positive(f"a round's relative {name}", getattr(self, name))


class PlanOptions(TypedDict, total=False):
    """Optional arguments of plans for all privacy mechanisms.

    `delta` None means `default_delta`, and 1e-5 for records. `sums_hidden` False says that the server sees
    single updates, against which no epsilon holds.
    """

    delta: float | None
    accountant: str
    sampling: Sampling
    sums_hidden: bool


class SumOptions(PlanOptions, total=False):
    """Optional arguments of plans in which clients are sampled and their updates summed.

    `group_sampling_rates` None means `sampling_rate` in each group, and given ones are used as they are;
    `group_clipping_norms` None means `clipping_norm` in each group. With `one_sum` all cohorts are one sum
    under one noise, the largest sigma_m C_m that a group needs. `sums_per_round` sums may be asked of each
    cohort, and `schedule` says how rounds differ, in order; None means that they do not. `first` is paid
    before the first round, and rounds are planned with the rest.
    """

    first: SumOnce | None
    renyi_orders: RenyiOrders
    noise: NoiseLaw
    adjacency: Adjacency
    group_sampling_rates: Sequence[float] | None
    group_clipping_norms: Sequence[float] | None
    one_sum: bool
    sums_per_round: int
    schedule: Sequence[RelativeRounds] | None
