"""Mechanisms for devices behind edge servers: each edge sums its devices' steps; edge or devices add noise.

The bounds of windows are proved in docs/h2fdp.md. `Trust` says who adds the noise of a subnet's sum.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from gdpfed.errors import PrivacyError
from gdpfed.privacy.events import Event, LocalWindows, RecordEvent, Unit, WindowBound
from gdpfed.privacy.group_plan import GroupPlan
from gdpfed.privacy.mechanism import Mechanism
from gdpfed.privacy.mechanism_options import HasEdges
from gdpfed.privacy.mechanisms.records.mechanism import RecordPlan, RecordSums
from gdpfed.privacy.mechanisms.records.terms import StepTerms
from gdpfed.privacy.mechanisms.sampled.mechanism import SampledSums
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.record_steps import RecordSteps

Trust = Literal["trusted", "secagg", "untrusted"]
"""Who adds the noise of a subnet's sum: its edge, which sees single contributions; its devices together,
under secure aggregation; or every device all of it, as whoever sees one must learn nothing more from it."""


@dataclass(frozen=True, kw_only=True)
class TrustedSubnets(Mechanism, HasEdges):
    """Base class of mechanisms that sum the devices of each edge server separately.

    Attributes:
        trusts: who adds the noise, subnet by subnet.
    """

    no_canaries: ClassVar[str] = "it releases sums of subnets"

    trusts: tuple[Trust, ...]

    def edge_adds_noise(self, m: int) -> bool:
        return self.trusts[m] == "trusted"

    def noise_factor(self, m: int, num_clients: int) -> float:
        """Return the ratio of real to planned noise: sqrt(n) if each of n devices adds all of it, else 1."""
        return math.sqrt(num_clients) if self.trusts[m] == "untrusted" else 1.0

    def group_dict(self, m: int, group: GroupPlan) -> dict[str, Any]:
        return {**super().group_dict(m, group), "trust": self.trusts[m]}


@dataclass(frozen=True, kw_only=True)
class SubnetSums(TrustedSubnets, SampledSums):
    """The mechanism that releases one noised sum of clipped device updates for each edge server."""

    kind: ClassVar[str] = "subnet_sums"


@dataclass(frozen=True, kw_only=True)
class SubnetSteps(TrustedSubnets, RecordSums):
    """The mechanism for steps on devices' records: releases every step, or only the last of several steps."""

    kind: ClassVar[str] = "subnet_steps"

    unit: Unit = "record"


@dataclass(frozen=True, kw_only=True)
class WindowTerms(StepTerms):
    """Conditions of a run in which only the last model of several local steps is released and charged."""

    kind: ClassVar[str] = "local_windows"
    event_class: ClassVar[type[Event]] = LocalWindows

    def _check(self) -> None:
        super()._check()
        if len({each.window_steps for each in self.events if isinstance(each, LocalWindows)}) != 1:
            raise PrivacyError("the terms charge a record for windows of several lengths")

    @property
    def window_steps(self) -> int:
        """The length of a window: the number of local steps from one release to the next."""
        first = self.events[0]
        return first.window_steps if isinstance(first, LocalWindows) else 1

    def whole_windows(self, num_steps: int) -> int:
        return num_steps + -num_steps % self.window_steps

    def broken_window(self, steps: RecordSteps) -> str:
        if steps.num_steps != self.window_steps:
            return f"the server asks for {steps.num_steps} local steps, and the terms say {self.window_steps}"
        return ""


@dataclass(frozen=True, kw_only=True)
class WindowPlan(RecordPlan):
    """The privacy plan for records if only the last model of several local steps (a window) is released.

    `bound` says how far a record moves an end, C is the unit of that, and `steps_allowed` are the steps that
    are planned.
    """

    terms_class: ClassVar[type[StepTerms]] = WindowTerms

    bound: WindowBound
    window_steps: int

    def event(self, record_group: int, num_steps: int) -> RecordEvent:
        return LocalWindows(
            bound=self.bound,
            batch_rate=self.groups[record_group].batch_rate,
            noise_multiplier=self.noise_multiplier,
            num_steps=num_steps,
            window_steps=self.window_steps,
        )

    def broken_steps(self, client: int, num_steps: int, most: int) -> str:
        if broken := super().broken_steps(client, num_steps, most):
            return broken
        if num_steps != self.window_steps:
            return (
                f"client {client} is asked for a window of {num_steps} steps, and the plan charges those of "
                f"{self.window_steps}"
            )
        return ""


def trusts_of(plan: PrivacyPlan) -> tuple[Trust, ...]:
    """Return who adds the noise for each edge server; raise TypeError if the plan has no edge servers."""
    return plan.made_by(TrustedSubnets).trusts  # type: ignore[type-abstract]
