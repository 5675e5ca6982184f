"""Makes plans with scheduled rounds for clients (turns); epsilon holds against all who see only sums."""

import math

from gdpfed.privacy.accountants.gaussian import gaussian_epsilon
from gdpfed.privacy.correlated_noise import densest_turns, sensitivity
from gdpfed.privacy.group_plan import GroupPlan, RoundRange
from gdpfed.privacy.mechanisms.scheduled.mechanism import ScheduledSums, TurnLimits
from gdpfed.privacy.mechanisms.scheduled.streams import StreamPlan, TurnBudget
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.planning.groups import check_disjoint


def make_scheduled_plan(asked: TurnBudget, stream: StreamPlan, *, sums_hidden: bool = True) -> PrivacyPlan:
    """Make the privacy plan with scheduled clients, and with the clipping norms and noise in `stream`.

    `plan_stream` or `plan_group_streams` has chosen `stream`.
    `sums_hidden` False says that the server sees single updates, against which no epsilon holds.

    Raises PrivacyError for groups that share clients.
    """
    check_disjoint(asked.groups)
    planned = []
    for group, own in zip(asked.groups, stream.groups, strict=True):
        densest = densest_turns(own.most_turns, own.separation, asked.num_rounds)
        sigma, distance = own.noise_stddev / own.clipping_norm, 1.0 if asked.adjacency == "zero_out" else 2.0
        mu = distance * sensitivity(own.taps, densest, asked.num_rounds) / sigma
        if asked.first is not None:
            mu = math.hypot(mu, asked.first.moves / asked.first.noise_stddev)
        epsilon = gaussian_epsilon(1 / mu, asked.delta)
        rounds = RoundRange(
            num_rounds=asked.num_rounds,
            sampling_rate=asked.share * own.most_turns / asked.num_rounds,
            clipping_norm=own.clipping_norm,
            noise_multiplier=sigma,
        )
        planned.append(
            GroupPlan(
                epsilon=group.epsilon,
                epsilon_accounted=epsilon,
                epsilon_against_server=epsilon if sums_hidden else math.inf,
                participations_p99=own.most_turns,
                clients=group.clients,
                ranges=(rounds,),
            )
        )
    sent = math.fsum(group.expected_cohort_size for group in planned)
    limits = (
        TurnLimits(most_turns=group.most_turns, separation=group.separation, taps=group.taps)
        for group in stream.groups
    )
    return PrivacyPlan(
        groups=tuple(planned),
        num_rounds=asked.num_rounds,
        delta=asked.delta,
        mechanism=ScheduledSums(adjacency=asked.adjacency, one_sum=stream.one_sum, limits=tuple(limits)),
        accountant="pld",
        clipping_norm=asked.clipping_norm,
        sampling_rate=sent / sum(group.size for group in asked.groups),
        sums_hidden=sums_hidden,
        first=asked.first,
    )
