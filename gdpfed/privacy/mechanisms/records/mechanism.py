"""DP-SGD on records: clients take steps on secretly drawn batches of their own records.

The batches are drawn on the client, in secret, so a step costs the same against everybody. What clients are
sampled adds nothing. The proof is that of `gdpfed.privacy.accountants` for `DPSGDSteps`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from gdpfed.privacy.accountants.accountant import Accountant
from gdpfed.privacy.charges import Charge
from gdpfed.privacy.events import DPSGDSteps, RecordEvent, Unit
from gdpfed.privacy.group_plan import GroupPlan, check_accounted
from gdpfed.privacy.mechanism import History, Mechanism, PromisedRun
from gdpfed.privacy.mechanism_options import ProtectsRecords, RecordGroup, broken_place, noise_factor
from gdpfed.privacy.mechanisms.records.terms import RecordTerms, StepTerms, by_bound, rates_within
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.release import ROUNDING, Release
from gdpfed.record_steps import RecordSteps, kind_of, record_move


@dataclass(frozen=True, kw_only=True)
class RecordPlan:
    """The plan for one client group's records: budgets, batch rates, clipping norm, noise and steps.

    A step clips every record's gradient to `clipping_norm` C and adds noise of standard deviation sigma C,
    `noise_multiplier` sigma, to the sum that is released: the batch's of one client, or that of all clients
    together. `groups` share out a client's records, the smallest budget first; `steps_allowed` is X, the most
    steps that all of their budgets admit, and a client takes part in at most `most_rounds` rounds. Where a
    person may be a record of S clients, `parties`, a sum of all clients has noise of sqrt(S) sigma C: so much
    that each of the S carries sigma C of it, which is what the steps of each are charged for.
    """

    terms_class: ClassVar[type[StepTerms]] = StepTerms

    groups: tuple[RecordGroup, ...]
    clipping_norm: float
    noise_multiplier: float
    steps_allowed: int
    most_rounds: int
    parties: int = 1

    def __post_init__(self) -> None:
        for group in self.groups:
            check_accounted(group.epsilon, group.epsilon_accounted)

    def event(self, record_group: int, num_steps: int) -> RecordEvent:
        """Return the privacy event of `num_steps` DP-SGD steps for any record of one group of records."""
        rate = self.groups[record_group].batch_rate
        sigma = self.noise_multiplier
        return DPSGDSteps(batch_rate=rate, noise_multiplier=sigma, num_steps=num_steps, parties=self.parties)

    @property
    def sum_noise(self) -> float:
        """The standard deviation of the noise in a sum over all clients, in units of the clipping norm."""
        return self.noise_multiplier * math.sqrt(self.parties)

    def broken_steps(self, client: int, num_steps: int, most: int) -> str:
        """Return an error text if a client is asked for more steps than a round has in the plan, else ""."""
        if num_steps > most:
            return f"client {client} is asked for {num_steps} steps, above the plan's {most}"
        return ""

    @property
    def batch_rates(self) -> tuple[float, ...]:
        """q: the probability that a record is in a batch, for every group of records."""
        return tuple(group.batch_rate for group in self.groups)

    @property
    def mean_rate(self) -> float:
        """The expected share of a client's records in one batch."""
        return math.fsum(group.share * group.batch_rate for group in self.groups)


@dataclass(frozen=True, kw_only=True)
class RecordSums(Mechanism, ProtectsRecords):
    """A mechanism of DP-SGD steps on records; each client adds noise, or the sum over clients gets it once.

    Attributes:
        records: what holds for the records of every group.
    """

    kind: ClassVar[str] = "record_sums"

    unit: Unit = "record"
    records: tuple[RecordPlan, ...]

    def most_rounds(self, m: int) -> int | None:
        return self.records[m].most_rounds

    def rests(self, group: GroupPlan, round_index: int) -> bool:
        return group.at(round_index).record_steps == 0

    def hides_by_sampling(self, group: GroupPlan) -> bool:
        return False

    def charges(
        self, m: int, group: GroupPlan, history: History, record_group: int = 0
    ) -> tuple[Charge, ...]:
        """Return a record's cost of ``history.rounds`` rounds, as if they were the most expensive of the run.

        It pays for no more rounds than a client may be asked in; rounds in which clients rest are left out.
        """
        records = self.records[m]
        left, charges = min(history.rounds, records.most_rounds), []
        for round_range in sorted(group.ranges, key=lambda each: -each.record_steps):
            count = min(left, round_range.num_rounds)
            left -= count
            if count and round_range.record_steps:
                event = records.event(record_group, round_range.record_steps)
                charges.append(Charge(event=event, count=count, unit="record"))
        return tuple(charges)

    def charges_of_turns(self, m: int, group: GroupPlan, turns: int) -> tuple[Charge, ...]:
        return self.charges(m, group, History(turns))

    def epsilon_of_turns(
        self, m: int, group: GroupPlan, turns: int, *, delta: float, accountant: Accountant
    ) -> float:
        return self.epsilon(m, group, History(turns), delta=delta, accountant=accountant)

    def broken_rule(
        self, groups: Sequence[GroupPlan], group_of: Mapping[int, int], round_index: int, request: Release
    ) -> str:
        if len(request.records) < len(request.clients):
            return "it does not say what steps its clients take, and the plan charges steps on records"
        if not kind_of(request.work).own_noise and (broken := broken_place(self, group_of, request)):
            return broken
        for client, asked, weight in zip(
            request.clients.tolist(), request.records, request.weights.tolist(), strict=True
        ):
            m = group_of[client]
            most = groups[m].at(round_index).record_steps // self.sums_per_round
            broken = self.records[m].broken_steps(client, asked.num_steps, most) or self._broken_asked(
                m, client, asked, weight, request
            )
            if broken:
                return broken
        return ""

    def _broken_asked(self, m: int, client: int, asked: RecordSteps, weight: float, request: Release) -> str:
        """Return how an instruction to a client (work, batch rates, noise) breaks the plan; "" if it fits."""
        planned = self.records[m]
        charged, bound = planned.event(0, asked.num_steps).bound, kind_of(request.work).window
        if charged != bound:
            return (
                f"client {client} is asked for {request.work}, which costs {by_bound(bound)}, and the plan "
                f"charges {by_bound(charged)}"
            )
        if not rates_within(asked.batch_rates, planned.batch_rates):
            return (
                f"client {client} is asked for batch rates {asked.batch_rates}, and the plan's are "
                f"{planned.batch_rates}"
            )
        moved = weight * record_move(request.work, asked) * noise_factor(self, m, len(request.clients))
        own = kind_of(request.work).own_noise
        carried = asked.noise_multiplier if own else request.noise_stddev / moved
        owed = planned.noise_multiplier if own else planned.sum_noise
        if not carried >= owed * (1 - ROUNDING):
            return (
                f"noise multiplier {carried:.6g} on the records of client {client} is below the plan's "
                f"{owed:.6g}"
            )
        return ""

    def terms(self, m: int, group: GroupPlan, promised: PromisedRun) -> StepTerms:
        planned = self.records[m]
        return planned.terms_class(
            **promised.common,
            epsilon=group.epsilon,
            charges=self.charges(m, group, History(promised.num_rounds)),
            records=RecordTerms(
                num_rounds=promised.num_rounds,
                work=self.works[0],
                clipping_norm=planned.clipping_norm,
                batch_rates=planned.batch_rates,
                shares=tuple(each.share for each in planned.groups),
                seed=promised.seed,
                sums_per_round=self.sums_per_round,
            ),
        )

    def record_groups(self, m: int) -> tuple[RecordGroup, ...]:
        return self.records[m].groups

    def group_dict(self, m: int, group: GroupPlan) -> dict[str, Any]:
        """Return a group's plan for records as JSON, with the privacy cost of a whole run."""
        planned, every = self.records[m], History(sum(each.num_rounds for each in group.ranges))
        groups = [
            {
                **asdict(each),
                "charges": [charge.to_dict() for charge in self.charges(m, group, every, number)],
            }
            for number, each in enumerate(planned.groups)
        ]
        said = asdict(planned)
        if planned.parties == 1:
            del said["parties"]
        return {"records": {**said, "groups": groups}}


def records_of(plan: PrivacyPlan) -> tuple[RecordPlan, ...]:
    """Return the records' plan of every client group; raise TypeError if records are not protected."""
    return plan.made_by(RecordSums).records
