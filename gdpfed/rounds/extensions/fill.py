"""Fills up cohorts with clients that send zeros, so that every round has a sum, whoever was sampled.

Under Poisson sampling epsilon counts on a secret draw, and a round without a sum would tell of it. So where a
cohort is too small for a sum that may lose a client, further reachable clients of its group are asked for
zeros. Each adds its share of the noise, and none of them trains. How many are needed follows from how many
were drawn and from who is there. What is released is the sum over those that were drawn, with its noise, and
they are drawn at the rates of the plan: docs/privacy.md has the proof. With `secagg.same_size` a sum has as
many members in every round, since its noise and its grid would tell how many were drawn.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import fsum
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from conf.schema import SecAggConfig
from gdpfed.clients.order import OrderError, TrainingOrder, stands_out_of_zeros
from gdpfed.learning.models import flatten
from gdpfed.methods.base import Cohorts, SumRequest, Theta
from gdpfed.methods.sum_parameters import filled_size
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.sampling.cohort_sizes import starts_of_ranges
from gdpfed.privacy.sampling.cohorts import draw_fillers, fills_cohorts, usual_size
from gdpfed.privacy.sampling.laws import ClientIds
from gdpfed.record_steps import kind_of
from gdpfed.rounds.enough import reachable_by_group
from gdpfed.rounds.extensions.base import SumExtension
from gdpfed.rounds.fleet import Fleet
from gdpfed.rounds.prepared import PreparedSum
from secagg import SumParameters

if TYPE_CHECKING:
    from gdpfed.rounds.run import OpenRun, PreparedRun


@dataclass(frozen=True)
class _Drawn:
    """The clients that were sampled for one sum of a round.

    Attributes:
        round_index, index: of the round, and of the sum in it; both from 0.
        groups: the clients of whom they were drawn, by group.
        cohort: who was drawn and can be reached.
        reachable: how many of `clients` can be reached.
        expected: how many of them are drawn on average.
    """

    round_index: int
    index: int
    groups: Sequence[Sequence[int]]
    cohort: ClientIds
    reachable: int
    expected: float

    @classmethod
    def together(cls, groups: Sequence[Self]) -> Self:
        """Combine the sampled clients of all groups, if all groups are summed together."""
        return cls(
            groups[0].round_index,
            0,
            [group for each in groups for group in each.groups],
            np.concatenate([each.cohort for each in groups]),
            sum(each.reachable for each in groups),
            fsum(each.expected for each in groups),
        )


class Fill(SumExtension):
    """Fills up cohorts with clients that send zeros, to one size for all rounds if `secagg.same_size` is set.

    `plan`: one whose epsilon counts on a secret draw by Poisson sampling.
    """

    key = "fill"

    def __init__(self, plan: PrivacyPlan) -> None:
        self._plan = plan
        self._sampling_key = b""
        self._fillers: dict[int, list[ClientIds]] = {}
        """By round, of every group; of the present round and the next."""
        self._round_index = 0

    @classmethod
    def of(cls, run: "PreparedRun") -> Self | None:
        """Return this extension for a run; None if the run's cohorts need not be filled up."""
        method = run.method
        return cls(method.plan) if fills_cohorts(method.plan) and not method.reads_alone else None

    def largest(self, run: "PreparedRun") -> list[SumRequest]:
        """Return the method's requests for sums over cohorts of the fixed size; [] if sizes may vary."""
        if not run.config.secagg.same_size:
            return []
        plan, theta = self._plan, flatten(run.task.build_model())

        def filled(index: int) -> list[ClientIds]:
            rates = ((group.clients, group.at(index).sampling_rate) for group in plan.groups)
            return [
                np.asarray(clients[: usual_size(plan, rate * len(clients), len(clients))], dtype=np.int64)
                for clients, rate in rates
            ]

        starts = starts_of_ranges(plan)
        return [each for index in starts for each in run.method.requests(theta, index, filled(index))]

    def opened_run(self, run: "OpenRun") -> None:
        """Remember the run's sampling key, which also selects the clients that send zeros."""
        self._sampling_key = run.loop.state.sampling_key

    def start(self, order: TrainingOrder, theta: Theta) -> Theta:
        """Remember which round begins."""
        self._round_index = order.round_index
        return theta

    def drawn(
        self, fleet: Fleet, round_index: int, cohorts: Cohorts, present: Collection[int] | None
    ) -> Cohorts:
        """Add clients that send zeros to a round's cohorts; a repeated call adds the same clients."""
        plan, there = self._plan, reachable_by_group(self._plan, present)
        groups = [group.clients for group in plan.groups]
        rates = [group.at(round_index).sampling_rate for group in plan.groups]
        sums = [
            _Drawn(round_index, m, [group], cohort, number, rate * number)
            for m, (group, cohort, number, rate) in enumerate(zip(groups, cohorts, there, rates, strict=True))
        ]
        who = None if present is None else frozenset(present)
        if plan.one_sum:
            chosen = self._chosen(fleet.secagg, _Drawn.together(sums), who)
            fillers = [chosen[[client in group for client in chosen.tolist()]] for group in groups]
        else:
            fillers = [self._chosen(fleet.secagg, each, who) for each in sums]
        self._fillers = {index: each for index, each in self._fillers.items() if index >= round_index - 1}
        self._fillers[round_index] = fillers
        return tuple(np.union1d(cohort, each) for cohort, each in zip(cohorts, fillers, strict=True))

    def _chosen(self, secagg: SecAggConfig, drawn: _Drawn, present: frozenset[int] | None) -> ClientIds:
        """Draw the clients that send zeros to fill up one sum, from ``present`` (None: from all clients)."""
        size = filled_size(self._plan, secagg, drawn.expected, drawn.reachable)
        missing = max(0, size - len(drawn.cohort))
        if not missing:
            return drawn.cohort[:0]
        groups = drawn.groups
        if present is not None:
            groups = [sorted(present.intersection(group)) for group in groups]
        place = (drawn.round_index, drawn.index)
        return draw_fillers(groups, drawn.cohort, missing, *place, self._sampling_key)

    def sum_checked(
        self, fleet: Fleet, request: SumRequest, round_index: int, parameters: SumParameters
    ) -> SumParameters:
        """Return ``parameters``; raise OrderError if noise is too small to hide which clients send zeros."""
        filled = fleet.secagg.hides_updates and not kind_of(request.work).once
        if filled and (little := stands_out_of_zeros(parameters.noise_multiplier)):
            raise OrderError(f"{little}. Use smaller budgets, a higher rate, or privacy.against=everyone")
        return parameters

    def sum_prepared(
        self, fleet: Fleet, request: SumRequest, prepared: PreparedSum, *, ahead: bool
    ) -> PreparedSum:
        """Mark a sum's clients that send only zeros; tell all its clients that some may do so."""
        if kind_of(prepared.order.work).once:
            return prepared
        prepared = replace(prepared, order=replace(prepared.order, may_fill=True))
        of_round = self._fillers.get(prepared.order.round_index, ())
        fillers = {client for each in of_round for client in each.tolist()}
        parts = {
            client: replace(prepared.part(client), fills=True)
            for client in prepared.clients
            if client in fillers
        }
        return replace(prepared, parts={**prepared.parts, **parts}) if parts else prepared

    def record(self) -> dict[str, Any]:
        """Return, for the log, how many clients of each group sent zeros to fill sums."""
        filled = [len(each) for each in self._fillers.get(self._round_index, ())]
        return {"filled": filled} if any(filled) else {}
