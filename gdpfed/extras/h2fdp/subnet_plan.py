"""Privacy plans for records behind edge servers: one budget and noise for all, several sums a round.

What is released of a subnet is noised once a sum, or once a step on every device. The mechanisms and their
proofs: docs/h2fdp.md.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

from gdpfed.errors import PrivacyError
from gdpfed.extras.h2fdp.subnet_sums import SubnetSteps, Trust, WindowPlan
from gdpfed.privacy.accountants.accountant import Accountant
from gdpfed.privacy.accountants.calibration import calibrate_windows
from gdpfed.privacy.accountants.estimate import estimated_mixture_noise
from gdpfed.privacy.charges import Charge
from gdpfed.privacy.events import GaussianMixture, LocalWindows, WindowBound
from gdpfed.privacy.group_plan import GroupPlan, RoundRange
from gdpfed.privacy.mechanism_options import RecordGroup
from gdpfed.privacy.mechanisms.records.calibration import step_noise
from gdpfed.privacy.mechanisms.records.mechanism import RecordPlan
from gdpfed.privacy.mechanisms.records.planner import largest_batch, record_accountant, record_delta
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.planning.groups import Group, check_disjoint
from gdpfed.privacy.planning.plan_options import PlanOptions
from gdpfed.privacy.sampling.laws import sampling_law
from gdpfed.privacy.validation import (
    require_count,
    require_length,
    require_positive,
    require_rate,
)
from gdpfed.record_steps import Work, kind_of


@dataclass(frozen=True, kw_only=True)
class Windows:
    """A device's local steps between two sums, and how far a record can move the device's contribution.

    Attributes:
        work: gradient_sum and dp_sgd, whose steps are released each; convex_steps and window_steps, of which
            only the last one is.
        batch_rate: q.
        num_steps: m, steps of a window.
        windows_per_round: J, sums of a subnet in a round.
        move: the unit in which a record moves its device's part: `gdpfed.record_steps.record_move`.
        most_records: the largest D_i.
    """

    work: Work
    batch_rate: float
    num_steps: int
    windows_per_round: int
    move: float
    most_records: int

    def __post_init__(self) -> None:
        require_rate("batch_rate", self.batch_rate)
        require_count("a window's num_steps", self.num_steps)
        require_count("windows_per_round", self.windows_per_round)
        require_count("most_records", self.most_records)
        require_positive("move", self.move)

    @property
    def bound(self) -> WindowBound | None:
        """The kind of bound on a record's effect after a window of steps; None if every step is released."""
        return kind_of(self.work).window

    @property
    def steps_per_round(self) -> int:
        """J m: the number of steps of a device in a round."""
        return self.windows_per_round * self.num_steps

    @property
    def contribution_norm(self) -> float:
        """The clipping norm of a device's contribution, chosen so that clipping very rarely has an effect."""
        if kind_of(self.work).own_noise:
            return math.inf
        if self.bound == "window":
            return self.move / 2
        return self.num_steps * self.move * largest_batch(self.batch_rate, self.most_records)

    def noise(self, accountant: Accountant, epsilon: float, num_rounds: int, delta: float) -> float:
        """Return the noise multiplier z with which all rounds cost at most epsilon at delta."""
        window = self._window
        if window is None:
            steps = num_rounds * self.steps_per_round
            return step_noise(
                accountant, epsilon=epsilon, delta=delta, batch_rate=self.batch_rate, num_steps=steps
            )
        count = num_rounds * self.windows_per_round
        return calibrate_windows(accountant, window, target_epsilon=epsilon, count=count, delta=delta)

    def estimated_noise(self, epsilon: float, num_rounds: int, delta: float) -> float:
        """Return a quick estimate of the noise multiplier that `noise` computes; for comparisons only."""
        window = self._window
        releases = num_rounds * self.windows_per_round
        if window is not None:
            return estimated_mixture_noise(window.mixture, releases, epsilon=epsilon, delta=delta)
        step = GaussianMixture(
            noise_stddev=1.0, sensitivities=(0.0, 1.0), weights=(1 - self.batch_rate, self.batch_rate)
        )
        return estimated_mixture_noise(step, releases * self.num_steps, epsilon=epsilon, delta=delta)

    @property
    def _window(self) -> LocalWindows | None:
        """The accounting event of steps up to a release, at noise 1; None if every step is released."""
        if self.bound is None:
            return None
        return LocalWindows(
            bound=self.bound,
            batch_rate=self.batch_rate,
            noise_multiplier=1.0,
            num_steps=self.num_steps,
            window_steps=self.num_steps,
        )


class SubnetOptions(PlanOptions, total=False):
    """Options that only privacy plans for records behind edge servers have.

    `subnet_rates` are the rates at which devices are drawn in each subnet; None means `sampling_rate` in all.
    The noise is calibrated at `delta` less `reserved_delta`, which something else may use up.
    """

    subnet_rates: Sequence[float] | None
    reserved_delta: float


def subnet_record_plan(
    *,
    subnets: Sequence[Group],
    trust: Sequence[Trust],
    windows: Windows,
    num_rounds: int,
    clipping_norm: float,
    sampling_rate: float = 1.0,
    **options: Unpack[SubnetOptions],
) -> PrivacyPlan:
    """Make the plan under which every record of every device stays within its budget.

    `subnets` have one budget; `trust` is of each. The rates at which devices are drawn are not accounted: a
    device's budget is for all rounds. `clipping_norm` is what the configuration calls so. Raises PrivacyError
    for input that is out of range, and where no valid accounting exists.
    """
    accountant, delta = record_accountant(options), record_delta(options)
    check_disjoint(subnets)
    require_length("trust", trust, len(subnets))
    given_rates = options.get("subnet_rates")
    rates = [sampling_rate] * len(subnets) if given_rates is None else list(given_rates)
    require_length("subnet_rates", rates, len(subnets))
    require_count("num_rounds", num_rounds)
    epsilon = min(subnet.epsilon for subnet in subnets)
    if windows.bound is not None and accountant.name != "pld":
        raise PrivacyError(
            f"privacy.accountant={accountant.name} has no bound for windows of which the last model alone is "
            "released: set privacy.accountant=pld, or method.mechanism=step_sum"
        )
    left = delta - options.get("reserved_delta", 0.0)
    noise = windows.noise(accountant, epsilon, num_rounds, left)
    records = _record_plan(windows, epsilon, noise, num_rounds, accountant, left)
    law, sums_hidden = sampling_law(options.get("sampling", "poisson")), options.get("sums_hidden", True)
    return PrivacyPlan(
        groups=tuple(
            _group_plan(windows, records, subnet, law.drawn_rate(rate, subnet.size), sums_hidden=sums_hidden)
            for subnet, rate in zip(subnets, rates, strict=True)
        ),
        num_rounds=num_rounds,
        delta=delta,
        mechanism=SubnetSteps(
            sampling=law.name,
            works=(windows.work,),
            sums_per_round=windows.windows_per_round,
            trusts=tuple(trust),
            records=(records,) * len(subnets),
        ),
        accountant=accountant.name,
        clipping_norm=clipping_norm,
        sampling_rate=float(sampling_rate),
        sums_hidden=sums_hidden,
    )


def _record_plan(
    windows: Windows, epsilon: float, noise: float, num_rounds: int, accountant: Accountant, delta: float
) -> RecordPlan:
    """Make the plan for all devices' records, with the accountant's epsilon of all rounds together."""
    common: dict[str, Any] = {
        "groups": (
            RecordGroup(epsilon=epsilon, epsilon_accounted=0.0, share=1.0, batch_rate=windows.batch_rate),
        ),
        "clipping_norm": windows.move,
        "noise_multiplier": noise,
        "steps_allowed": num_rounds * windows.steps_per_round,
        "most_rounds": num_rounds,
    }
    if windows.bound is None:
        records = RecordPlan(**common)
    else:
        records = WindowPlan(**common, bound=windows.bound, window_steps=windows.num_steps)
    steps = records.steps_allowed // records.most_rounds
    charge = Charge(event=records.event(0, steps), count=records.most_rounds, unit="record")
    accounted = accountant.epsilon(charge.event, charge.count, delta)
    return replace(records, groups=(replace(records.groups[0], epsilon_accounted=accounted),))


def _group_plan(
    windows: Windows, records: RecordPlan, subnet: Group, sampling_rate: float, *, sums_hidden: bool
) -> GroupPlan:
    summed, norm = not kind_of(windows.work).own_noise, windows.contribution_norm
    accounted = records.groups[0].epsilon_accounted
    return GroupPlan(
        epsilon=records.groups[0].epsilon,
        epsilon_accounted=accounted,
        epsilon_against_server=accounted if sums_hidden or not summed else math.inf,
        participations_p99=records.most_rounds,
        clients=subnet.clients,
        ranges=(
            RoundRange(
                num_rounds=records.most_rounds,
                sampling_rate=sampling_rate,
                clipping_norm=norm,
                noise_multiplier=records.noise_multiplier * windows.move / norm if summed else 0.0,
                record_steps=windows.steps_per_round,
            ),
        ),
    )
