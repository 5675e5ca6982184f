"""Build the plan of scheduled sums: one epsilon a group, which holds against everyone who sees sums alone."""

import math
from collections.abc import Sequence

from gdpfed.errors import PrivacyError
from gdpfed.privacy.accountants.gaussian import gaussian_epsilon
from gdpfed.privacy.correlated_noise import densest_turns, sensitivity
from gdpfed.privacy.events import Adjacency
from gdpfed.privacy.group_plan import GroupPlan, RoundRange
from gdpfed.privacy.mechanisms.scheduled_sums import ScheduledSums, TurnLimits
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.planning.groups import Group, check_disjoint, default_delta
from gdpfed.privacy.planning.scheduled_plan import Heard, StreamPlan, plan_stream
from gdpfed.privacy.validation import require_delta


def make_scheduled_plan(
    *,
    groups: Sequence[Group],
    num_rounds: int,
    sampling_rate: float,
    clipping_norm: float,
    delta: float | None = None,
    adjacency: Adjacency = "zero_out",
    sums_hidden: bool = True,
    num_taps: int = 1,
    heard: Heard = "last",
    turns: Sequence[int] | None = None,
    equal_norms: bool = False,
) -> PrivacyPlan:
    """Return the plan of one sum a round with turns, norms and taps of the least noise for the step.

    The arguments are those of `plan_stream`; `delta` None means `default_delta`, and `sums_hidden` False says
    that the server sees single updates, against which no epsilon holds.

    Raises PrivacyError for input that is out of range, and where not every client can have a turn.
    """
    if not groups:
        raise PrivacyError("groups is empty; give at least one group")
    check_disjoint(groups)
    delta = require_delta(default_delta(sum(group.size for group in groups)) if delta is None else delta)
    stream = plan_stream(
        groups,
        num_rounds=num_rounds,
        sampling_rate=sampling_rate,
        delta=delta,
        clipping_norm=clipping_norm,
        num_taps=num_taps,
        adjacency=adjacency,
        heard=heard,
        turns=turns,
        equal_norms=equal_norms,
    )
    distance = 1.0 if adjacency == "zero_out" else 2.0
    planned = tuple(
        _group_plan(group, stream, m, num_rounds, delta, distance, sums_hidden)
        for m, group in enumerate(groups)
    )
    sent = math.fsum(group.expected_cohort_size for group in planned)
    return PrivacyPlan(
        groups=planned,
        num_rounds=num_rounds,
        delta=delta,
        mechanism=ScheduledSums(
            adjacency=adjacency,
            limits=tuple(
                TurnLimits(most_turns=each.most_turns, separation=each.separation) for each in stream.groups
            ),
            taps=stream.taps,
        ),
        accountant="pld",
        clipping_norm=clipping_norm,
        sampling_rate=sent / sum(group.size for group in groups),
        sums_hidden=sums_hidden,
    )


def _group_plan(
    group: Group,
    stream: StreamPlan,
    m: int,
    num_rounds: int,
    delta: float,
    distance: float,
    sums_hidden: bool,
) -> GroupPlan:
    own = stream.groups[m]
    densest = densest_turns(own.most_turns, own.separation, num_rounds)
    sigma = stream.noise_stddev / own.clipping_norm
    epsilon = gaussian_epsilon(sigma / distance / sensitivity(stream.taps, densest, num_rounds), delta)
    return GroupPlan(
        epsilon=group.epsilon,
        epsilon_accounted=epsilon,
        epsilon_against_server=epsilon if sums_hidden else math.inf,
        participations_p99=own.most_turns,
        clients=group.clients,
        ranges=(
            RoundRange(
                num_rounds=num_rounds,
                sampling_rate=own.most_turns / num_rounds,
                clipping_norm=own.clipping_norm,
                noise_multiplier=sigma,
            ),
        ),
    )
