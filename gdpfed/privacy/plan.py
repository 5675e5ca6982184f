"""The privacy plan: all privacy parameters of a training, fixed before it begins.

A plan has groups and one mechanism. Sampling, noise, requests and ledgers all follow from it, so that they
cannot disagree. The weights of the released sums in the model update are not part of it.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeVar

import numpy as np

from gdpfed.privacy.accountants.accountant import Accountant, AccountantName, RenyiOrders, accountant_for
from gdpfed.privacy.accountants.composition import compose, compose_against_server, inference_bound
from gdpfed.privacy.accountants.inference_bound import NO_BOUND, InferenceBound
from gdpfed.privacy.accountants.longest_draw import require_drawable
from gdpfed.privacy.charges import Charge
from gdpfed.privacy.events import Adjacency, NoiseLaw, Sampling, Unit
from gdpfed.privacy.group_plan import GroupPlan
from gdpfed.privacy.mechanism import History, Mechanism
from gdpfed.privacy.mechanism_options import HasTurns, OwnTotals, record_groups
from gdpfed.privacy.sampling.laws import SamplingLaw
from gdpfed.privacy.sums_once import HeldOutCounts, SumOnce, Vote
from gdpfed.privacy.validation import require_count
from gdpfed.record_steps import RecordIs, Work, kind_of

M = TypeVar("M", bound=Mechanism)


@dataclass(frozen=True, kw_only=True)
class AdaptiveClipping:
    """Adaptive clipping: one factor F(t) scales all clipping norms towards a quantile of the updates' norms.

    C_m(t) = C_m F(t), F(0) = 1. Sums are in units of F(t); in this unit, norms and noise are the plan's in
    every round. A contribution of norm B_m has the last coordinate rho B_m if the update's norm was at most
    C_m(t), and -rho B_m if it was clipped (`indicator_share` rho). Let b be the released fraction of updates
    that were not clipped. With `learning_rate` eta and `quantile` gamma, F(t + 1) = F(t) exp(- eta (b -
    gamma)).
    """

    quantile: float
    learning_rate: float
    indicator_share: float

    @property
    def update_share(self) -> float:
        """The part of a contribution's norm that is left for the update: sqrt(1 - indicator_share^2)."""
        return math.sqrt(1 - self.indicator_share**2)


@dataclass(frozen=True, kw_only=True)
class PrivacyPlan:
    """All privacy parameters of a training, fixed before it begins: groups, mechanism and delta.

    `delta` belongs to every epsilon. `sampling_rate` is the overall q, and `clipping_norm` is C, the mean of
    C_m over all clients. `private` is False for training without clipping and noise: then every epsilon and
    `clipping_norm` are inf, and `accountant` is "none". `sums_hidden` is False if the server sees single
    updates, which have at most a share of the noise. With `adaptive_clipping`, a group's norm is B_m, that of
    a whole contribution in units of F(t), and C is for the updates of the first round. `held_out` is the sum
    of counts on held-out records, if records are protected; only these records pay for it. `first` is one sum
    before the first round, of votes or norms: every epsilon of the plan covers it and the rounds together.
    `record_is` says what a record is: one row, or a person with all its rows.
    """

    groups: tuple[GroupPlan, ...]
    mechanism: Mechanism
    num_rounds: int
    delta: float
    accountant: AccountantName | Literal["none"]
    clipping_norm: float
    sampling_rate: float
    renyi_orders: RenyiOrders = "fine"
    private: bool = True
    sums_hidden: bool = True
    adaptive_clipping: AdaptiveClipping | None = None
    held_out: HeldOutCounts | None = None
    first: SumOnce | None = None
    record_is: RecordIs = "record"

    def __post_init__(self) -> None:
        if not self.private:
            return
        for index, group in enumerate(self.groups):
            budgets = [each.epsilon for each in record_groups(self.mechanism, index)] or [group.epsilon]
            for number, epsilon in enumerate(budgets):
                paid = (*self.paid_first, *self.charges(index, record_group=number))
                require_drawable(paid, self.delta, epsilon)
                for each in self.once:
                    require_drawable([each.charge], self.delta, epsilon)

    def made_by(self, kind: type[M]) -> M:
        """Return the plan's mechanism if it is of class `kind`; raise TypeError if it is not."""
        if not isinstance(self.mechanism, kind):
            raise TypeError(f"the plan's mechanism is {self.mechanism.kind}, no {kind.__name__}")
        return self.mechanism

    @property
    def num_clients(self) -> int:
        """The number of clients n of all groups."""
        return sum(len(group.clients) for group in self.groups)

    @property
    def clients(self) -> list[int]:
        """The ids of all clients, group by group."""
        return [client for group in self.groups for client in group.clients]

    @property
    def messages_a_round(self) -> float:
        """The mean number of messages for sums in a round, including those that only subtract old noise."""
        mechanism, masked = self.mechanism, self.sums_hidden
        if isinstance(mechanism, HasTurns):
            return math.fsum(mechanism.messages(m, each, masked=masked) for m, each in enumerate(self.groups))
        return math.fsum(group.expected_cohort_size for group in self.groups)

    @property
    def budgets(self) -> list[float | None]:
        """The epsilon of every group; None for a group without privacy."""
        return [None if math.isinf(group.epsilon) else group.epsilon for group in self.groups]

    @property
    def unit(self) -> Unit:
        """What is protected: a client or a record."""
        return self.mechanism.unit

    @property
    def about_records(self) -> bool:
        """Whether single records are protected, rather than whole clients."""
        return self.mechanism.unit == "record"

    @property
    def protected(self) -> str:
        """What is protected: a client, a record, or a person with all its records."""
        return self.record_is if self.about_records else self.unit

    @property
    def works(self) -> tuple[Work, ...]:
        """What clients may be asked to compute for a sum, such as an update."""
        return self.mechanism.works

    @property
    def sampling(self) -> Sampling:
        """The name of the law by which cohorts are drawn."""
        return self.mechanism.sampling

    @property
    def law(self) -> SamplingLaw:
        """The law by which cohorts are drawn."""
        return self.mechanism.law

    @property
    def absent_clients_count(self) -> bool:
        """Whether unreachable clients count as drawn, since the accounting assumes full cohorts.

        If records are protected, no epsilon depends on the size of a cohort.
        """
        return self.law.absent_clients_count and not self.about_records

    @property
    def adjacency(self) -> Adjacency:
        """How neighbouring runs differ: a contribution becomes zero, or is replaced by another one."""
        return self.mechanism.adjacency

    @property
    def noise(self) -> NoiseLaw:
        """The kind of the noise: continuous or discrete Gaussian."""
        return self.mechanism.noise

    @property
    def sums_per_round(self) -> int:
        """The largest number of sums in one round that a client may be part of."""
        return self.mechanism.sums_per_round

    @property
    def one_sum(self) -> bool:
        """Whether a round releases one sum over all groups, rather than one sum a group."""
        return self.mechanism.one_sum

    @property
    def once(self) -> tuple[SumOnce, ...]:
        """The sums that are released only once, outside the rounds."""
        return tuple(each for each in (self.held_out, self.first) if each is not None)

    @property
    def last_round_counts(self) -> bool:
        """Whether clients send counts of right answers in the last round, rather than updates."""
        return "held_out_rates" in self.works

    @property
    def sample_is_secret(self) -> bool:
        """Whether epsilon holds only against those who do not know who was sampled, nor how many."""
        return self.private and any(map(self.mechanism.hides_by_sampling, self.groups))

    @property
    def against(self) -> str:
        """Against whom epsilon holds: everyone, outsiders or all but the server; "" if none of these fits."""
        if self.mechanism.against_everyone:
            return "everyone" if self.sums_hidden else "all but the server"
        return "outsiders" if self.sample_is_secret else ""

    def charges(
        self, group_index: int, rounds: int | None = None, record_group: int = 0
    ) -> tuple[Charge, ...]:
        """Return a client's privacy cost of the first `rounds` rounds, or of all rounds if None.

        The cost of a sum before the rounds is in `first`. If records are protected, it is the cost for a
        record of one group of records. It is empty if each client has its own total, which is in the
        mechanism.
        """
        history = History(self.num_rounds if rounds is None else rounds)
        return self.mechanism.charges(group_index, self.groups[group_index], history, record_group)

    def epsilon_after(self, group_index: int, rounds: int, record_group: int = 0) -> float:
        """Return a group's epsilon after this many rounds.

        It includes the sum `first`. A plan is fixed before training, so its own accountant composes the
        rounds.
        """
        history = History(require_count("rounds", rounds, at_least=0))
        if not self.private:
            return math.inf if rounds else 0.0
        if self.first is not None:
            return self._with_first(self.charges(group_index, rounds, record_group))
        return self.mechanism.epsilon(
            group_index,
            self.groups[group_index],
            history,
            delta=self.delta,
            accountant=self._accountant,
            record_group=record_group,
        )

    def epsilon_against_server(self, group_index: int, participations: int) -> float:
        """Return epsilon against the server, for a client that took part K times; inf if there is no bound.

        A contribution with the client's own noise is private before it leaves, so it has a bound even if the
        server sees it.
        """
        if (
            participations
            and not self.sums_hidden
            and not all(kind_of(work).own_noise for work in self.works)
        ):
            return math.inf
        return self.epsilon_against_members(group_index, participations)

    def epsilon_against_members(self, group_index: int, participations: int) -> float:
        """Return a client's epsilon against the other clients in the same sums, if it took part K times.

        They know who is in a sum, or how many are, so sampling does not reduce the cost. If rounds differ,
        all K count as the most expensive ones. The batches of DP-SGD are secret from all others, so their
        cost is the same against everyone.
        """
        if not self.private:
            return math.inf if participations else 0.0
        if self.first is not None:
            turns = self._charges_of_turns(group_index, participations)
            if self.about_records:
                return self._with_first(turns)
            return compose_against_server([*self.paid_first, *turns], self.delta)
        return self.mechanism.epsilon_of_turns(
            group_index,
            self.groups[group_index],
            participations,
            delta=self.delta,
            accountant=self._accountant,
        )

    def inference_bound(
        self, group_index: int, rounds: int | None = None, record_group: int = 0
    ) -> InferenceBound:
        """Bound the success of membership inference about a client or record after some rounds.

        The adversary sees the models, and does not know the cohorts.
        """
        if not self.private:
            return NO_BOUND
        paid = self.charges(group_index, rounds, record_group)
        if not paid and isinstance(self.mechanism, OwnTotals):
            paid = self.mechanism.totals_as_charges(rounds)
        return inference_bound([*self.paid_first, *paid])

    def inference_bound_of_members(self, group_index: int, participations: int) -> InferenceBound:
        """Bound membership inference by clients in the same sums, about a client in `participations` rounds.

        It also holds against the server if `sums_hidden`.
        """
        if not self.private:
            return NO_BOUND
        return inference_bound([*self.paid_first, *self._charges_of_turns(group_index, participations)])

    @property
    def vote(self) -> Vote | None:
        """The vote on settings before the first round; None without a vote."""
        return self.first if isinstance(self.first, Vote) else None

    @property
    def paid_first(self) -> tuple[Charge, ...]:
        """The privacy cost of the one-time sum before the first round; empty without such a sum."""
        return () if self.first is None else (self.first.charge,)

    def _charges_of_turns(self, group_index: int, turns: int) -> tuple[Charge, ...]:
        return self.mechanism.charges_of_turns(group_index, self.groups[group_index], turns)

    def _with_first(self, charges: Sequence[Charge]) -> float:
        """Return the joint epsilon of `charges` and the one-time sum before the rounds, if there is one."""
        both = [*self.paid_first, *charges]
        return compose(both, self.delta, schedule="fixed", accountant=self._accountant).epsilon

    @property
    def _accountant(self) -> Accountant:
        return accountant_for(self.noise, self.accountant, self.renyi_orders)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as JSON; infinite values become null."""
        mechanism = self.mechanism
        values: dict[str, Any] = {
            "groups": [self._group_dict(index) for index in range(len(self.groups))],
            "num_rounds": self.num_rounds,
            "delta": self.delta,
            "accountant": self.accountant,
            "mechanism": mechanism.kind,
            "sampling": mechanism.sampling,
            "adjacency": mechanism.adjacency,
            "clipping_norm": self.clipping_norm,
            "sampling_rate": self.sampling_rate,
            "renyi_orders": self.renyi_orders,
            "noise": mechanism.noise,
            "unit": mechanism.unit,
            "works": list(mechanism.works),
            "sums_per_round": mechanism.sums_per_round,
            "private": self.private,
            "sums_hidden": self.sums_hidden,
            "one_sum": mechanism.one_sum,
        }
        if self.adaptive_clipping is not None:
            values["adaptive_clipping"] = asdict(self.adaptive_clipping)
        values |= {each.entry: each.to_dict() for each in self.once}
        if self.record_is != "record":
            values["record_is"] = self.record_is
        return _finite(values)

    def _group_dict(self, index: int) -> dict[str, Any]:
        """Return a group's plan as JSON, with the number of its clients in place of their ids."""
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
        return _finite(values | self.mechanism.group_dict(index, group))

    def fingerprint(self) -> str:
        """Return a hash of the plan; plans whose numbers agree to six digits have equal hashes."""
        digest = hashlib.sha256(json.dumps(_rounded(self.to_dict()), sort_keys=True).encode())
        for group in self.groups:
            if isinstance(group.clients, range):
                ids = repr(group.clients).encode()
            else:
                ids = np.asarray(group.clients, dtype="<i8").tobytes()
            digest.update(len(ids).to_bytes(8, "little") + ids)
        return digest.hexdigest()


def _finite(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: None if isinstance(value, float) and math.isinf(value) else value
        for key, value in values.items()
    }


def _rounded(value: Any) -> Any:
    """Format floats as texts with six digits: the last digits of calibrated noise may differ by machine."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return value
