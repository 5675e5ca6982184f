"""Events: kinds of release (such as a noised sum), with all numbers that privacy accounting needs.

An event states each number in its own unit, so that a reader need not know an accountant's conventions.
`gdpfed.privacy.accountants` computes epsilon from a list of charges.
"""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal, get_args

from gdpfed.errors import PrivacyError
from gdpfed.privacy.validation import (
    require_choice,
    require_count,
    require_number,
    require_positive,
    require_rate,
)

Unit = Literal["client", "record"]
"""Whose presence is protected: a client with all it holds, or one record of a client."""

Sampling = Literal["poisson", "fixed_size", "allocation", "scheduled"]
"""poisson: each client is drawn independently with probability q_m. fixed_size: exactly round(q_m |G_m|)
clients are drawn. allocation: each client is in one round of each block, drawn independently and in secret.
scheduled: clients have turns, which are not secret."""
SECRET_SAMPLINGS: tuple[Sampling, ...] = ("poisson", "fixed_size")
"""The samplings of `SampledGaussian`: who takes part in a round is secret, and so a sum costs less."""

Adjacency = Literal["zero_out", "replace_one"]
"""What differs in a neighbouring run: one client's update becomes zero, or another update of norm <= C."""

WindowBound = Literal["convex", "window"]
"""What bounds how far a record moves the end of a window of local steps."""

NoiseLaw = Literal["gaussian", "discrete_gaussian"]
"""Continuous Gaussian noise, or discrete Gaussian noise added in integer steps."""


class Event:
    """Base class of events; each subclass describes one kind of release to the privacy accountants."""

    kinds: ClassVar[dict[str, type["Event"]]] = {}
    kind: ClassVar[str]
    unit: ClassVar[Unit | None] = None
    """The only privacy unit to which the event applies; None for any."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "kind" in vars(cls):
            Event.kinds[cls.kind] = cls

    @property
    def is_noisy(self) -> bool:
        """Whether the release has any noise; without noise, no privacy is promised."""
        raise TypeError(f"{type(self).__name__} does not say whether it is noisy")

    @property
    def law(self) -> NoiseLaw:
        """The kind of the release's noise: continuous or discrete Gaussian."""
        return "gaussian"

    @property
    def num_releases(self) -> int:
        """How many noised sums are released together."""
        return 1

    def for_members(self) -> "Event":
        """Return the event that counts against an attacker who knows which clients were sampled."""
        return self

    def continuous(self, share: float) -> "Event":
        """Return the same event with continuous Gaussian noise, its standard deviation multiplied by `share`.

        Raises PrivacyError if the event's noise is always continuous.
        """
        raise PrivacyError(f"{self.kind} has continuous noise only; use privacy.noise=gaussian")

    def to_dict(self) -> dict[str, Any]:
        """Return the event as a JSON object, which `event_from_dict` can read."""
        return {"kind": self.kind, **asdict(self)}  # type: ignore[call-overload]


@dataclass(frozen=True, kw_only=True)
class SampledGaussian(Event):
    """One round of one group: sample clients, sum clipped updates, add N(0, noise_stddev^2).

    Contributions have L2 norm at most `clipping_norm` (C). The *sum* has noise of standard deviation
    `noise_stddev` in each coordinate, in the unit of C. `sampling_rate` is q_m and `group_size` is |G_m|;
    under fixed_size sampling the actual rate is round(q_m |G_m|) / |G_m|. `num_sums` sums over the same
    cohort are released, each with independent noise.
    """

    kind: ClassVar[str] = "sampled_gaussian"

    sampling: Sampling
    sampling_rate: float
    group_size: int
    noise_stddev: float
    clipping_norm: float
    adjacency: Adjacency = "zero_out"
    noise: NoiseLaw = "gaussian"
    num_sums: int = 1

    def __post_init__(self) -> None:
        require_choice("sampling", self.sampling, SECRET_SAMPLINGS)
        require_choice("adjacency", self.adjacency, get_args(Adjacency))
        require_choice("noise", self.noise, get_args(NoiseLaw))
        require_rate("sampling_rate", self.sampling_rate)
        require_count("group_size", self.group_size)
        require_count("num_sums", self.num_sums)
        require_positive("clipping_norm", self.clipping_norm)
        _require_stddev(self.noise_stddev)
        if self.sampling == "fixed_size":
            fixed_cohort_size(self.sampling_rate, self.group_size)

    @property
    def noise_multiplier(self) -> float:
        """The noise multiplier sigma_m / sqrt(num_sums) of a round's sums as one release, for any adjacency.

        k sums over one cohort cost at most as much as one release of k d coordinates, which a client moves by
        sqrt(k) C. This also holds if a later sum depends on an earlier released one.
        """
        return self.noise_stddev / self.clipping_norm / math.sqrt(self.num_sums)

    @property
    def cohort_size(self) -> int:
        """The number of clients drawn in each round under fixed_size sampling."""
        return fixed_cohort_size(self.sampling_rate, self.group_size)

    @property
    def is_noisy(self) -> bool:
        return self.noise_stddev > 0.0

    @property
    def law(self) -> NoiseLaw:
        return self.noise

    @property
    def num_releases(self) -> int:
        return self.num_sums

    def for_members(self) -> "Gaussian":
        return Gaussian(
            noise_stddev=self.noise_stddev / math.sqrt(self.num_sums),
            clipping_norm=self.clipping_norm,
            adjacency=self.adjacency,
            noise=self.noise,
        )

    def continuous(self, share: float) -> "SampledGaussian":
        return replace(self, noise="gaussian", noise_stddev=self.noise_stddev * share)


@dataclass(frozen=True, kw_only=True)
class Gaussian(Event):
    """A noised sum that certainly contains the protected client or record, so sampling does not cut its cost.

    A contribution has L2 norm at most `clipping_norm`; the noise has standard deviation `noise_stddev` per
    coordinate. One release is rho-zCDP with rho = (distance clipping_norm / noise_stddev)^2 / 2.
    """

    kind: ClassVar[str] = "gaussian"

    noise_stddev: float
    clipping_norm: float
    adjacency: Adjacency = "zero_out"
    noise: NoiseLaw = "gaussian"

    def __post_init__(self) -> None:
        require_choice("adjacency", self.adjacency, get_args(Adjacency))
        require_choice("noise", self.noise, get_args(NoiseLaw))
        require_positive("clipping_norm", self.clipping_norm)
        _require_stddev(self.noise_stddev)

    @property
    def noise_multiplier(self) -> float:
        """The noise's deviation divided by the sensitivity: the clipping norm, doubled under replace_one."""
        distance = 1.0 if self.adjacency == "zero_out" else 2.0
        return self.noise_stddev / self.clipping_norm / distance

    @property
    def is_noisy(self) -> bool:
        return self.noise_stddev > 0.0

    @property
    def law(self) -> NoiseLaw:
        return self.noise

    def continuous(self, share: float) -> "Gaussian":
        return replace(self, noise="gaussian", noise_stddev=self.noise_stddev * share)


@dataclass(frozen=True, kw_only=True)
class DPSGDSteps(Event):
    """`num_steps` steps of DP-SGD on one client's records, released together.

    In each step the client draws every record with probability `batch_rate`, clips its gradient to C, and
    adds noise of standard deviation `noise_multiplier` C to the batch's sum. In a neighbouring run, one
    record's gradient is zero. The draw is secret, also from the server. If a person may be a record of up to
    `parties` clients, each of these clients' steps counts as a release: docs/records.md has the proof.
    """

    kind: ClassVar[str] = "dp_sgd_steps"
    unit: ClassVar[Unit | None] = "record"
    bound: ClassVar[WindowBound | None] = None

    batch_rate: float
    noise_multiplier: float
    num_steps: int
    parties: int = 1

    def __post_init__(self) -> None:
        require_rate("batch_rate", self.batch_rate)
        require_count("num_steps", self.num_steps)
        require_count("parties", self.parties)
        _require_stddev(self.noise_multiplier, "noise_multiplier")

    @property
    def num_releases(self) -> int:
        return self.num_steps * self.parties

    @property
    def is_noisy(self) -> bool:
        return self.noise_multiplier > 0.0

    def to_dict(self) -> dict[str, Any]:
        values = super().to_dict()
        return values if self.parties > 1 else {key: values[key] for key in values if key != "parties"}


@dataclass(frozen=True, kw_only=True)
class GaussianMixture(Event):
    """A noised sum that one client or record changes by sensitivities[k] with probability weights[k].

    For example, a unit that is part of a random number of the draws in a sum moves the sum by a random
    distance. It is the mixture of Gaussians of dp-accounting (Choquette-Choo et al., arXiv:2312.17341).
    """

    kind: ClassVar[str] = "gaussian_mixture"

    noise_stddev: float
    sensitivities: tuple[float, ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "sensitivities", tuple(self.sensitivities))
        object.__setattr__(self, "weights", tuple(self.weights))
        _require_stddev(self.noise_stddev)
        if not self.weights or len(self.sensitivities) != len(self.weights):
            raise PrivacyError(
                f"a mixture has {len(self.sensitivities)} sensitivities and {len(self.weights)} weights; "
                "give one weight each"
            )
        for value in self.sensitivities:
            if not 0.0 <= require_number("a sensitivity", value) < math.inf:
                raise PrivacyError(f"a sensitivity is {value}; it must be finite and not negative")
        for value in self.weights:
            if not 0.0 <= require_number("a weight", value) <= 1.0:
                raise PrivacyError(f"a weight of a mixture is {value}; it must lie in [0, 1]")
        if abs(math.fsum(self.weights) - 1.0) > 1e-9:
            raise PrivacyError(
                f"the weights of a mixture sum to {math.fsum(self.weights):.9g}; they must sum to one"
            )

    @property
    def is_noisy(self) -> bool:
        return self.noise_stddev > 0.0


@dataclass(frozen=True, kw_only=True)
class LocalWindows(Event):
    """Local training in windows of `window_steps` steps; each window's last model is released with noise.

    Every step draws each record with probability `batch_rate` q, in secret. `num_steps` counts the steps of
    all windows; a window has m = `window_steps`. `noise_multiplier` z is the noise of one window's release,
    in units of the `bound`:

    * convex: the loss is convex, and steps are so short that they bring no two models further apart. So a
      record that is drawn j times moves the released model by at most j units, j ~ Binomial(m, q);
    * window: every step is clipped. So a record that is first drawn in step j moves the released model by at
      most (m - j + 1) / m units.

    Source: docs/h2fdp.md, with proofs.
    """

    kind: ClassVar[str] = "local_windows"
    unit: ClassVar[Unit | None] = "record"
    parties: ClassVar[int] = 1

    bound: WindowBound
    batch_rate: float
    noise_multiplier: float
    num_steps: int
    window_steps: int

    def __post_init__(self) -> None:
        require_choice("bound", self.bound, get_args(WindowBound))
        require_rate("batch_rate", self.batch_rate)
        require_count("num_steps", self.num_steps)
        require_count("window_steps", self.window_steps)
        _require_stddev(self.noise_multiplier, "noise_multiplier")
        if self.num_steps % self.window_steps:
            raise PrivacyError(
                f"{self.num_steps} steps are not whole windows of {self.window_steps}; release whole windows"
            )

    @property
    def num_windows(self) -> int:
        """The number of windows (`window_steps` steps each); the model is released, noised, after each."""
        return self.num_steps // self.window_steps

    @property
    def is_noisy(self) -> bool:
        return self.noise_multiplier > 0.0

    @property
    def mixture(self) -> GaussianMixture:
        """A window's release as a Gaussian mixture: how far one record shifts it, with which probability."""
        q, m = self.batch_rate, self.window_steps
        if self.bound == "convex":
            moves = [float(met) for met in range(1, m + 1)]
            chances = [math.comb(m, met) * q**met * (1 - q) ** (m - met) for met in range(1, m + 1)]
        else:
            moves = [(m - first) / m for first in range(m)]
            chances = [q * (1 - q) ** first for first in range(m)]
        never = max(0.0, 1.0 - math.fsum(chances))
        return GaussianMixture(
            noise_stddev=self.noise_multiplier,
            sensitivities=(0.0, *moves),
            weights=(never, *chances),
        )


RecordEvent = DPSGDSteps | LocalWindows
"""The events of steps on records; all have `batch_rate`, `noise_multiplier`, `num_steps` and `parties`, and a
`bound`, which is None if every step is released."""


def fixed_cohort_size(sampling_rate: float, group_size: int) -> int:
    """Return round(q_m |G_m|), the cohort size under fixed-size sampling.

    Raises PrivacyError if it is 0, since the group would then never take part.
    """
    count = round(sampling_rate * group_size)
    if count < 1:
        raise PrivacyError(
            f"sampling_rate {sampling_rate} of {group_size} clients rounds to none; "
            f"choose at least {1 / group_size:.3g}, or poisson sampling"
        )
    return count


def _require_stddev(value: object, name: str = "noise_stddev") -> None:
    if not 0.0 <= require_number(name, value) < math.inf:
        raise PrivacyError(f"{name} is {value}; it must be finite and not negative")
