"""Finds for each record budget the batch rate, clipping norm or number of steps that stays within it.

Rates and norms that fit one noise are those of Boenisch et al., arXiv:2303.17046 (Sample and Scale).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from gdpfed.errors import PrivacyError
from gdpfed.privacy.accountants.accountant import Accountant
from gdpfed.privacy.mechanisms.records.calibration import largest_batch_rate, step_noise, steps_allowed
from gdpfed.privacy.planning.groups import SHARES_TOLERANCE, Group, check_budgets
from gdpfed.privacy.planning.shared_noise_rates import scaled_clipping_norms, shared_noise_sampling_rates
from gdpfed.privacy.validation import require_choice, require_count, require_positive, require_rate
from gdpfed.record_steps import Work, require_record_work

Heterogeneous = Literal["rate", "scale", "steps"]
"""What differs where budgets do: the batch rate at one noise, the norm of a record at one noise, or how many
steps there are until a budget is spent."""

SHARE_UNITS = 10_000


@dataclass(frozen=True, kw_only=True)
class Budgeted:
    """Settings that keep records within one budget: batch rate, noise, clipping norm and steps a round."""

    epsilon: float
    batch_rate: float
    noise_multiplier: float
    clipping_norm: float
    schedule: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class RecordTraining:
    """Training settings that all groups of records in a plan share, such as mean batch rate and steps.

    Attributes:
        batch_rate: q; the mean over parties or groups of records where rates differ, as long as the noise
            follows from it; the largest one where the noise is given.
        clipping_norm: C; the mean where norms differ.
        schedule: tau of every round in which a client takes part.
        noise_multiplier: sigma; None for the least that the budgets allow.
        heterogeneous: what differs where budgets do.
        work: dp_sgd, noise on every client's own steps; gradient_sum, one noise on the sum of all clients.
        whole_rounds: a client takes all steps of a round or none; so it is where clients are sampled.
        parties: S, at how many clients a person may be at most; its steps at all of them are paid for.
    """

    batch_rate: float
    clipping_norm: float
    schedule: tuple[int, ...]
    noise_multiplier: float | None = None
    heterogeneous: Heterogeneous = "rate"
    work: Work = "dp_sgd"
    whole_rounds: bool = False
    parties: int = 1

    def __post_init__(self) -> None:
        require_count("parties", self.parties)
        require_rate("batch_rate", self.batch_rate)
        require_positive("clipping_norm", self.clipping_norm)
        require_choice("heterogeneous", self.heterogeneous, get_args(Heterogeneous))
        require_record_work("work", self.work, by_steps=True)
        for steps in self.schedule:
            require_count("a round's steps", steps, at_least=0)
        if not any(self.schedule):
            raise PrivacyError(
                "the budget allows no whole round of steps: use fewer local steps, more noise or a smaller "
                "batch rate"
            )
        if self.noise_multiplier is not None:
            require_positive("noise_multiplier", self.noise_multiplier)

    @property
    def paid_steps(self) -> int:
        """The steps of all rounds, times the largest number of clients that may hold one person's records."""
        return sum(self.schedule) * self.parties


def as_parts(groups: Sequence[Group], budgets: Sequence[tuple[float, float]]) -> list[Group]:
    """Return a `Group` for each privacy budget of records, with size proportional to its share of records."""
    if len(groups) != 1:
        raise PrivacyError(f"{len(groups)} groups of clients have budgets by record; make them one group")
    check_budgets([epsilon for epsilon, _ in budgets])
    shares = [require_positive("a share of the records", share) for _, share in budgets]
    if abs(math.fsum(shares) - 1) > SHARES_TOLERANCE:
        raise PrivacyError(
            f"the shares of the records {shares} sum to {math.fsum(shares):.6g}; they must sum to one"
        )
    ends = [round(SHARE_UNITS * math.fsum(shares[:m])) for m in range(len(shares) + 1)]
    return [
        Group(epsilon, range(start, end))
        for (epsilon, _), start, end in zip(budgets, ends[:-1], ends[1:], strict=True)
    ]


def within_budgets(
    accountant: Accountant, parts: Sequence[Group], training: RecordTraining, delta: float
) -> list[Budgeted]:
    """Choose batch rate, noise, clipping norm and steps of each round for every budget of records."""
    makers = {"rate": _own_rates, "scale": _own_norms, "steps": _own_steps}
    return makers[training.heterogeneous](accountant, parts, training, delta)


def _own_rates(
    accountant: Accountant, parts: Sequence[Group], training: RecordTraining, delta: float
) -> list[Budgeted]:
    """Give each budget its own batch rate; noise and numbers of steps are the same for all."""
    total, sigma = training.paid_steps, training.noise_multiplier
    if sigma is not None:
        rates: Sequence[float] = [
            largest_batch_rate(
                accountant,
                epsilon=part.epsilon,
                delta=delta,
                noise_multiplier=sigma,
                num_steps=total,
                at_most=training.batch_rate,
            )
            for part in parts
        ]
    else:
        rates = shared_noise_sampling_rates(
            accountant,
            parts,
            sampling="poisson",
            sampling_rate=training.batch_rate,
            num_rounds=total,
            delta=delta,
        )
        sigma = max(
            step_noise(accountant, epsilon=part.epsilon, delta=delta, batch_rate=rate, num_steps=total)
            for part, rate in zip(parts, rates, strict=True)
        )
    return [
        Budgeted(
            epsilon=part.epsilon,
            batch_rate=rate,
            noise_multiplier=sigma,
            clipping_norm=training.clipping_norm,
            schedule=training.schedule,
        )
        for part, rate in zip(parts, rates, strict=True)
    ]


def _own_norms(
    accountant: Accountant, parts: Sequence[Group], training: RecordTraining, delta: float
) -> list[Budgeted]:
    """Give each budget its own clipping norm, smaller for stricter budgets, with one batch rate for all."""
    if training.noise_multiplier is not None:
        raise PrivacyError(
            f"noise_multiplier {training.noise_multiplier:g} leaves heterogeneous=scale nothing to choose: "
            "leave it out, or use heterogeneous=rate or steps"
        )
    total = training.paid_steps
    sigmas = [
        step_noise(
            accountant, epsilon=part.epsilon, delta=delta, batch_rate=training.batch_rate, num_steps=total
        )
        for part in parts
    ]
    norms = scaled_clipping_norms(sigmas, [part.size for part in parts], training.clipping_norm)
    return [
        Budgeted(
            epsilon=part.epsilon,
            batch_rate=training.batch_rate,
            noise_multiplier=sigma,
            clipping_norm=norm,
            schedule=training.schedule,
        )
        for part, sigma, norm in zip(parts, sigmas, norms, strict=True)
    ]


def _own_steps(
    accountant: Accountant, parts: Sequence[Group], training: RecordTraining, delta: float
) -> list[Budgeted]:
    """Give each budget as many planned steps as it can pay for, at one batch rate and noise for all."""
    rate, sigma = training.batch_rate, training.noise_multiplier
    if sigma is None:
        largest = max(part.epsilon for part in parts)
        total = training.paid_steps
        sigma = step_noise(accountant, epsilon=largest, delta=delta, batch_rate=rate, num_steps=total)
    budgeted = []
    for part in parts:
        paid = steps_allowed(
            accountant, epsilon=part.epsilon, delta=delta, batch_rate=rate, noise_multiplier=sigma
        )
        allowed = paid // training.parties
        # Each round's steps until those allowed are used up; where rounds are whole, all of a round or none.
        schedule, left = list[int](), allowed
        for steps in training.schedule:
            schedule.append(0 if training.whole_rounds and steps > left else min(steps, left))
            left -= schedule[-1]
        if not any(schedule):
            raise PrivacyError(
                f"epsilon {part.epsilon:g} allows {allowed} steps, fewer than one round has, at batch rate "
                f"{rate:g} and noise multiplier {sigma:.4g}: use more noise, a smaller batch rate, or "
                "heterogeneous=rate"
            )
        budgeted.append(
            Budgeted(
                epsilon=part.epsilon,
                batch_rate=rate,
                noise_multiplier=sigma,
                clipping_norm=training.clipping_norm,
                schedule=tuple(schedule),
            )
        )
    return budgeted
