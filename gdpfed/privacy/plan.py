"""The privacy plan: everything about privacy, fixed before training.

Sampler, noise, requests and ledgers are all derived from one frozen plan, so that what is drawn, what is
added and what is accounted for cannot disagree. How a method weighs what is released is not part of it.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

import numpy as np

from gdpfed.errors import PrivacyError
from gdpfed.privacy.accountants.accountant import AccountantName, RenyiOrders, accountant_for
from gdpfed.privacy.accountants.composition import best_guess, best_guess_against_server, compose
from gdpfed.privacy.accountants.guesses import NO_BOUND, BestGuess
from gdpfed.privacy.accountants.server_view import server_epsilon
from gdpfed.privacy.charges import Charge, first_charges
from gdpfed.privacy.events import (
    Adjacency,
    DPSGDSteps,
    LocalWindows,
    NoiseLaw,
    RecordEvent,
    SampledGaussian,
    Sampling,
    Unit,
    WindowBound,
)
from gdpfed.privacy.sampling.laws import SamplingLaw, sampling_law
from gdpfed.privacy.spending import COUNTS_DISTANCE, Rule, Spending
from gdpfed.privacy.validation import require_count, require_rate
from gdpfed.record_steps import OWN_NOISE_WORKS

BUDGET_TOLERANCE = 1e-12

Work = Literal[
    "update", "noised_update", "dp_sgd", "gradient_sum", "convex_steps", "window_steps", "statistics"
]
"""What a client computes for a sum: its model's change, the same with noise of its own or by steps of DP-SGD,
a sum of records' clipped gradients, the end of a window of steps on records without noise, or statistics."""

Trust = Literal["trusted", "secagg", "untrusted"]
"""Who adds the noise of a subnet's sum: its edge, which sees single contributions; its devices together,
under secure aggregation; or every device all of it, as whoever sees one must learn nothing more from it."""


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """Rounds in a row that are alike for one group.

    `sampling_rate` is q_m as it is drawn, `clipping_norm` C_m the L2 bound on a contribution,
    `noise_multiplier` sigma_m: the noise of the sum that it is in has standard deviation sigma_m C_m.
    `record_steps` is tau, the steps of DP-SGD that every record pays for in each of these rounds; 0 in the
    plan of a client's privacy, and for clients that rest.
    """

    num_rounds: int
    sampling_rate: float
    clipping_norm: float
    noise_multiplier: float
    record_steps: int = 0

    def __post_init__(self) -> None:
        require_count("a stretch's num_rounds", self.num_rounds)
        require_rate("a stretch's sampling_rate", self.sampling_rate)
        require_count("a stretch's record_steps", self.record_steps, at_least=0)

    @property
    def noise_stddev(self) -> float:
        """sigma_m C_m: of the noise in the sum, per coordinate, in the unit of an update; 0 without noise."""
        return self.noise_multiplier * self.clipping_norm if self.noise_multiplier else 0.0


@dataclass(frozen=True, kw_only=True)
class RecordGroup:
    """Records with one budget: `share` of every client's, each in a batch with chance `batch_rate`."""

    epsilon: float
    epsilon_accounted: float
    share: float
    batch_rate: float

    def __post_init__(self) -> None:
        _check_accounted(self.epsilon, self.epsilon_accounted)


@dataclass(frozen=True, kw_only=True)
class RecordPlan:
    """What holds for the records of the clients of one group.

    A step clips every record's gradient to `clipping_norm` C and adds noise of standard deviation sigma C,
    `noise_multiplier` sigma, to the sum that is released: the batch's of one client, or that of all clients
    together. `groups` share out a client's records, the smallest budget first; `steps_allowed` is X, the most
    steps that all of their budgets admit, and a client takes part in at most `most_rounds` rounds.
    Where only the ends of windows of `window_steps` steps are released, `bound` says how far a record moves
    one, C is the unit of that, and `steps_allowed` are the steps that are planned.
    """

    groups: tuple[RecordGroup, ...]
    clipping_norm: float
    noise_multiplier: float
    steps_allowed: int
    most_rounds: int
    bound: WindowBound | None = None
    window_steps: int | None = None

    def event(self, record_group: int, num_steps: int) -> RecordEvent:
        """What so many steps cost a record of one group."""
        rate = self.groups[record_group].batch_rate
        if self.bound is None or self.window_steps is None:
            return DPSGDSteps(batch_rate=rate, noise_multiplier=self.noise_multiplier, num_steps=num_steps)
        return LocalWindows(
            bound=self.bound,
            batch_rate=rate,
            noise_multiplier=self.noise_multiplier,
            num_steps=num_steps,
            window_steps=self.window_steps,
        )

    @property
    def batch_rates(self) -> tuple[float, ...]:
        """q of every group of records."""
        return tuple(group.batch_rate for group in self.groups)

    @property
    def mean_rate(self) -> float:
        """The expected part of a client's records in a batch."""
        return math.fsum(group.share * group.batch_rate for group in self.groups)


@dataclass(frozen=True, kw_only=True)
class GroupPlan:
    """What holds for the clients of one group.

    `epsilon` is their budget, `epsilon_accounted` what the whole training costs against everybody
    who knows neither who nor how many were sampled, `epsilon_against_server` what it costs against the server
    a client that takes part in `participations_p99` rounds (inf: no bound). `stretches` are the rounds in
    order; the properties without a round are those of the first one, and of all where there is one stretch.
    Where the plan protects records, `records` says how; then `epsilon` and `epsilon_accounted` are those of
    its first group of records, and a client is asked in at most `participations_p99` rounds. Where clients
    spend what each has chosen, `spending` says how much; then the figures are those of the client that may
    spend most, asked as often as it may be. `trust` is that of a group that is a subnet of devices behind an
    edge.
    """

    epsilon: float
    epsilon_accounted: float
    epsilon_against_server: float
    participations_p99: int
    clients: Sequence[int]
    stretches: tuple[Stretch, ...]
    records: RecordPlan | None = None
    trust: Trust | None = None
    spending: Spending | None = None

    def __post_init__(self) -> None:
        _check_accounted(self.epsilon, self.epsilon_accounted)

    def noise_factor(self, num_clients: int) -> float:
        """How many times the planned noise a sum over so many clients carries: where each adds all of it."""
        return math.sqrt(num_clients) if self.trust == "untrusted" else 1.0

    @property
    def most_rounds(self) -> int | None:
        """In how many rounds a client is asked at most; None where nothing but chance limits it."""
        limited = self.records or self.spending
        return None if limited is None else limited.most_rounds

    def stretch(self, round_index: int) -> Stretch:
        """Return what holds in a round, from 0.

        Raises PrivacyError for a round beyond the plan.
        """
        position = 0
        for stretch in self.stretches:
            position += stretch.num_rounds
            if round_index < position:
                return stretch
        raise PrivacyError(f"round {round_index} lies beyond the plan's {position} rounds")

    @property
    def sampling_rate(self) -> float:
        """q_m as it is drawn."""
        return self.stretches[0].sampling_rate

    @property
    def expected_cohort_size(self) -> float:
        """r_m = q_m |G_m|."""
        return self.sampling_rate * len(self.clients)

    @property
    def clipping_norm(self) -> float:
        """C_m, the L2 bound on a contribution."""
        return self.stretches[0].clipping_norm

    @property
    def noise_multiplier(self) -> float:
        """sigma_m, in units of C_m."""
        return self.stretches[0].noise_multiplier

    @property
    def noise_variance_multiplier(self) -> float:
        """sigma_m^2: the sum's noise has variance sigma_m^2 C_m^2 per coordinate."""
        return self.noise_multiplier**2

    @property
    def noise_stddev(self) -> float:
        """sigma_m C_m: of the noise in the sum, per coordinate, in the unit of an update."""
        return self.stretches[0].noise_stddev


@dataclass(frozen=True, kw_only=True)
class AdaptiveClipping:
    """How the norms of all groups follow a quantile of the clients' updates: C_m(t) = C_m F(t), F(0) = 1.

    Sums are in units of F(t), in which norms and noise are the plan's in every round. A contribution of norm
    B_m has a last coordinate of +- rho B_m, `indicator_share` rho: + where the update was within C_m(t) and -
    where it was clipped. With b the released fraction of those within, `learning_rate` eta and `quantile`
    gamma, F(t + 1) = F(t) exp(- eta (b - gamma)).
    """

    quantile: float
    learning_rate: float
    indicator_share: float

    @property
    def update_share(self) -> float:
        """C_m / B_m = sqrt(1 - rho^2): what is left of a contribution's norm for the update."""
        return math.sqrt(1 - self.indicator_share**2)


@dataclass(frozen=True, kw_only=True)
class PrivacyPlan:
    """The plan of a training of `num_rounds` rounds; build it with `make_plan` or `plain_plan`.

    `delta` belongs to every epsilon, `unit` says whose presence they protect. `sampling_rate` is the
    overall q, `clipping_norm` C, the mean of C_m over all clients. `one_sum` says that a round releases one
    sum of all groups' cohorts with one noise, in place of one sum a group. Every client that is drawn may
    be in `sums_per_round` sums of a round, of the kinds in `works`.
    `private` is False for training without clipping and noise: then every epsilon and
    `clipping_norm` are inf and `accountant` is "none". `sums_hidden` is False where single
    updates, which carry only a share of the noise, reach the server. With `adaptive_clipping` a group's
    norm is that of a whole contribution, B_m, in units of F(t), and C that of the updates in the first round.
    """

    groups: tuple[GroupPlan, ...]
    num_rounds: int
    delta: float
    accountant: AccountantName | Literal["none"]
    sampling: Sampling
    adjacency: Adjacency
    clipping_norm: float
    sampling_rate: float
    renyi_orders: RenyiOrders = "fine"
    noise: NoiseLaw = "gaussian"
    unit: Unit = "client"
    works: tuple[Work, ...] = ("update",)
    sums_per_round: int = 1
    private: bool = True
    sums_hidden: bool = True
    one_sum: bool = False
    adaptive_clipping: AdaptiveClipping | None = None

    @property
    def num_clients(self) -> int:
        """The number of clients n of all groups."""
        return sum(len(group.clients) for group in self.groups)

    @property
    def budgets(self) -> list[float | None]:
        """epsilon of every group; None where nothing is promised."""
        return [None if math.isinf(group.epsilon) else group.epsilon for group in self.groups]

    @property
    def law(self) -> SamplingLaw:
        """How cohorts are drawn."""
        return sampling_law(self.sampling)

    @property
    def rule(self) -> Rule | None:
        """By which cohorts follow from what clients have released; None where a secret key draws them."""
        spending = self.groups[0].spending
        return None if spending is None else spending.rule

    @property
    def counts_rho(self) -> float:
        """The zCDP at which every client releases its class counts before the first round; 0 for none."""
        spending = self.groups[0].spending
        return 0.0 if spending is None else spending.counts_rho

    @property
    def counts_noise(self) -> float:
        """The standard deviation of the noise in each of them, Delta / sqrt(2 rho)."""
        return COUNTS_DISTANCE / math.sqrt(2 * self.counts_rho)

    @property
    def distance(self) -> float:
        """How far neighbouring contributions are apart, in bounds of one."""
        return 1.0 if self.adjacency == "zero_out" else 2.0

    def event(self, group_index: int, round_index: int) -> SampledGaussian:
        """Return what a round, from 0, costs a client of a group, as a sum over its cohort.

        Without privacy it is a sum without noise, in units of the unknown bound.
        """
        group = self.groups[group_index]
        return self._event(group, group.stretch(round_index))

    def charges(
        self, group_index: int, rounds: int | None = None, record_group: int = 0
    ) -> tuple[Charge, ...]:
        """Return what the first `rounds` rounds cost a client of a group; all of them for None.

        Where records are protected it is what they cost a record of one group of records, which pays for no
        more rounds than a client may be asked in; rounds in which clients rest are left out.

        Without privacy a round is a sum without noise, in units of the unknown bound. There are none where
        clients spend what each has chosen: their totals are in `GroupPlan.spending`.
        """
        group = self.groups[group_index]
        if group.spending is not None:
            return ()
        if group.records is not None:
            return _record_charges(group.stretches, group.records, record_group, rounds)
        charges = tuple(
            Charge(event=self._event(group, stretch), count=stretch.num_rounds, unit=self.unit)
            for stretch in group.stretches
        )
        return first_charges(charges, self.num_rounds if rounds is None else rounds)

    def _event(self, group: GroupPlan, stretch: Stretch) -> SampledGaussian:
        return self.law.event(
            rate=stretch.sampling_rate,
            group_size=len(group.clients),
            noise_stddev=stretch.noise_stddev,
            clipping_norm=stretch.clipping_norm if self.private else 1.0,
            adjacency=self.adjacency,
            noise=self.noise,
            num_sums=self.sums_per_round,
        )

    @property
    def sample_is_secret(self) -> bool:
        """Whether epsilon holds only for those who are told nothing of the cohorts, their sizes included.

        Not where records are protected, or clients add their own noise: there no sample of clients hides
        anything, and not where everybody takes part in every round.
        """
        return (
            self.private
            and self.unit == "client"
            and any(
                group.spending is None and any(stretch.sampling_rate < 1 for stretch in group.stretches)
                for group in self.groups
            )
        )

    def epsilon_after(self, group_index: int, rounds: int, record_group: int = 0) -> float:
        """Return the accounted epsilon of a group after so many rounds: 0 at first, or that of class counts.

        The schedule of a plan is fixed before training, so its own accountant composes it.
        """
        require_count("rounds", rounds, at_least=0)
        spending = self.groups[group_index].spending
        if rounds == 0:
            return 0.0 if spending is None else spending.first_epsilon(self.delta)
        if self.accountant == "none":
            return math.inf
        if spending is not None:
            return spending.most_epsilon(rounds, self.delta)
        accountant = accountant_for(self.noise, self.accountant, self.renyi_orders)
        charges = self.charges(group_index, rounds, record_group)
        return compose(charges, self.delta, schedule="fixed", accountant=accountant).epsilon

    def epsilon_against_server(self, group_index: int, participations: int) -> float:
        """Return the epsilon against the server of a client that took part K times; inf if none holds.

        What clients noise themselves is private before it leaves, whoever sees it.
        """
        if participations and not self.sums_hidden and set(self.works) - set(OWN_NOISE_WORKS):
            return math.inf
        return self.epsilon_against_members(group_index, participations)

    def epsilon_against_members(self, group_index: int, participations: int) -> float:
        """Return the epsilon against members of the same sums of a client that took part K times.

        They are told who is in a sum, or how many, so no sampling is accounted. Where the noise differs from
        round to round, all K are taken for those of the least noise. Batches of records are drawn on the
        client, unknown to everybody else, and so cost the same against everybody.
        """
        if participations == 0:
            return 0.0
        if not self.private:
            return math.inf
        spending = self.groups[group_index].spending
        if spending is not None:
            return spending.dearest_epsilon(participations, self.delta)
        if self.unit == "record":
            return self.epsilon_after(group_index, participations)
        sigma = min(stretch.noise_multiplier for stretch in self.groups[group_index].stretches)
        sums = participations * self.sums_per_round
        return server_epsilon(self.noise, sigma, sums, self.delta, self.adjacency)

    def best_guess(self, group_index: int, rounds: int | None = None, record_group: int = 0) -> BestGuess:
        """Return what no attack exceeds on a client or record of a group, after so many rounds or all.

        The attacker sees the models and is told nothing of the cohorts.
        """
        return best_guess(self.charges(group_index, rounds, record_group)) if self.private else NO_BOUND

    def best_guess_of_members(self, group_index: int, participations: int) -> BestGuess:
        """Return the same of members of the sums of a client that took part K times, as for epsilon.

        It holds against the server as well where `sums_hidden`.
        """
        if not self.private:
            return NO_BOUND
        if self.unit == "record":
            return self.best_guess(group_index, participations)
        stretches = self.groups[group_index].stretches
        least = min(range(len(stretches)), key=lambda each: stretches[each].noise_multiplier)
        event = self._event(self.groups[group_index], stretches[least])
        return best_guess_against_server(
            [Charge(event=event, count=participations, unit=self.unit)] if participations else []
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form; an infinite figure is null."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["works"] = list(self.works)
        values["groups"] = [self._group_dict(index) for index in range(len(self.groups))]
        if self.adaptive_clipping is None:
            del values["adaptive_clipping"]
        else:
            values["adaptive_clipping"] = asdict(self.adaptive_clipping)
        return _finite(values)

    def _group_dict(self, index: int) -> dict[str, Any]:
        """The JSON form of a group: `clients` is their number, `clipping_norm` is there if another than C."""
        group = self.groups[index]
        values = {
            "epsilon": group.epsilon,
            "epsilon_accounted": group.epsilon_accounted,
            "epsilon_against_server": group.epsilon_against_server,
            "epsilon_against_members": self.epsilon_against_members(index, group.participations_p99),
            "participations_p99": group.participations_p99,
            "clients": len(group.clients),
            "sampling_rate": group.sampling_rate,
            "expected_cohort_size": group.expected_cohort_size,
            "clipping_norm": group.clipping_norm,
            "noise_multiplier": group.noise_multiplier,
            "noise_variance_multiplier": group.noise_variance_multiplier,
            "charges": [charge.to_dict() for charge in self.charges(index)],
        }
        if group.clipping_norm == self.clipping_norm:
            del values["clipping_norm"]
        if group.records is not None:
            values["records"] = self._record_dict(index, group.records)
        if group.trust is not None:
            values["trust"] = group.trust
        if group.spending is not None:
            values["spending"] = group.spending.to_dict()
        return _finite(values)

    def _record_dict(self, index: int, records: RecordPlan) -> dict[str, Any]:
        """The JSON form of what holds for records; `charges` of its groups are those of a whole run."""
        groups = [
            {**asdict(group), "charges": [charge.to_dict() for charge in self.charges(index, None, number)]}
            for number, group in enumerate(records.groups)
        ]
        values = {**asdict(records), "groups": groups}
        return {key: value for key, value in values.items() if value is not None}

    def fingerprint(self) -> str:
        """Return a hash that two plans share if they say the same, to six digits a number."""
        digest = hashlib.sha256(json.dumps(_rounded(self.to_dict()), sort_keys=True).encode())
        for group in self.groups:
            if isinstance(group.clients, range):
                ids = repr(group.clients).encode()
            else:
                ids = np.asarray(group.clients, dtype="<i8").tobytes()
            digest.update(len(ids).to_bytes(8, "little") + ids)
        return digest.hexdigest()


def _record_charges(
    stretches: Sequence[Stretch], records: RecordPlan, record_group: int, rounds: int | None
) -> tuple[Charge, ...]:
    """What a record pays for so many rounds, the dearest first: nobody knows here which ones they are."""
    left = records.most_rounds if rounds is None else min(rounds, records.most_rounds)
    charges = []
    for stretch in sorted(stretches, key=lambda each: -each.record_steps):
        count = min(left, stretch.num_rounds)
        left -= count
        if count and stretch.record_steps:
            event = records.event(record_group, stretch.record_steps)
            charges.append(Charge(event=event, count=count, unit="record"))
    return tuple(charges)


def _check_accounted(epsilon: float, accounted: float) -> None:
    if accounted > epsilon * (1 + BUDGET_TOLERANCE):
        raise PrivacyError(
            f"a group's accounted epsilon {accounted:.6g} is above its budget {epsilon:.6g}; calibrate its "
            "noise for this plan"
        )


def _finite(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: None if isinstance(value, float) and math.isinf(value) else value
        for key, value in values.items()
    }


def _rounded(value: Any) -> Any:
    """Round floats: the last digits of a calibrated figure may differ between machines."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return value
