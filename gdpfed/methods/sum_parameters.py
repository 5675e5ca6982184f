"""Computes the public parameters of secure sums, and which numbers of clients allow a secure sum."""

from bisect import bisect_left
from dataclasses import replace
from math import ceil, floor, hypot

from conf.schema import SecAggConfig
from gdpfed.errors import RunError
from gdpfed.methods.base import SumRequest
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.release import NoiseAt
from gdpfed.privacy.sampling.cohorts import usual_size
from secagg import NO_CORRECTIONS, Corrections, EncodingError, SumParameters, sparse_degree, threshold_for

FULL_BITS = 32
NO_EDGE = (
    "method.trust has subnets that are trusted, and a flat federation has no edge to trust: use "
    "method.trust=secagg without method.trusted_share, gdpfed simulate, or the run of an edge (run.mailbox "
    "with secagg=off)"
)


def parameters_of(
    secagg: SecAggConfig, label: str, request: SumRequest, corrections: Corrections = NO_CORRECTIONS
) -> SumParameters:
    """Return the public parameters of a requested secure sum.

    `corrections`: the members that send no update and only subtract a part of earlier noise. A trusted edge
    adds the noise itself, so no member counts as corrupt. Raises RunError: the request has noise and does not
    say who adds it. Raises ValueError: no sum is possible with these parameters.
    """
    if request.noise_at is NoiseAt.NOWHERE and request.noise_multiplier != 0:
        raise RunError(
            f"{request.name} asks for noise with multiplier {request.noise_multiplier}, and names "
            "nobody to add it"
        )
    at_edge = request.noise_at is NoiseAt.EDGE
    in_clear = at_edge or not secagg.hides_updates
    return sum_parameters(
        replace(secagg, mode="off", corrupt_tolerance=0.0) if at_edge else secagg,
        label=label,
        num_clients=len(request.clients),
        dimension=request.dimension,
        clipping_norm=request.clipping_norm,
        noise_multiplier=request.noise_multiplier * (hypot(1.0, *request.taps) if in_clear else 1.0),
        corrections=NO_CORRECTIONS if in_clear else corrections,
        most_members=request.scheduled_members if secagg.signs else 0,
    )


def sum_parameters(
    secagg: SecAggConfig,
    *,
    label: str,
    num_clients: int,
    dimension: int,
    clipping_norm: float,
    noise_multiplier: float,
    corrections: Corrections = NO_CORRECTIONS,
    most_members: int = 0,
) -> SumParameters:
    """Return the public parameters of a secure sum over ``num_clients`` updates.

    `corrections`: the members that send no update and only subtract earlier noise. `most_members`: the number
    of members that a schedule has; 0 without a schedule. Fractions become counts. ceil(corrupt_tolerance
    n) members may be corrupt, with n the larger of the sum's members and ``most_members``; all of them may be
    among the clients with an update. Of the u clients with an update, floor(dropout_tolerance u) may drop
    out, but fewer if too few would be left to unmask; on a sparse graph ceil(dropout_tolerance u).
    """
    updates, n = num_clients, num_clients + corrections.members
    corrupt = ceil(secagg.corrupt_tolerance * max(n, most_members))
    neighbours, threshold, graph_corrupt = _graph(secagg, updates, n, corrupt)
    if neighbours:
        dropouts = ceil(secagg.dropout_tolerance * updates)
    else:
        most = min(n - 1 - threshold, (updates - 1) // 2)
        dropouts = max(0, min(floor(secagg.dropout_tolerance * updates), most))
    levels = min(secagg.noise_levels, dropouts) if noise_multiplier > 0 else 0
    parameters = SumParameters(
        label=label,
        num_clients=n,
        threshold=threshold,
        dropout_tolerance=dropouts,
        corrupt_tolerance=corrupt,
        dimension=dimension,
        clipping_norm=clipping_norm,
        noise_multiplier=noise_multiplier,
        suite=secagg.suite,
        num_neighbours=neighbours,
        graph_corrupt=graph_corrupt,
        noise_levels=0 if not secagg.hides_updates else levels,
        mode=secagg.mode,
        num_correctors=corrections.members,
        correction_multiplier=corrections.multiplier,
    )
    # The fewest bits at which no sum overflows, unless they are configured.
    if not secagg.hides_updates or parameters.noise_multiplier == 0:
        bits = FULL_BITS
    elif secagg.modulus_bits is not None:
        bits = secagg.modulus_bits
    else:
        try:
            bits = parameters.contributors(parameters.num_updates).modulus_bits(parameters.noise_multiplier)
        except EncodingError:
            bits = FULL_BITS
    return replace(parameters, modulus_bits=bits)


def can_sum(secagg: SecAggConfig, num_clients: int) -> bool:
    """Return whether the settings allow a secure sum over this many clients."""
    return tolerated_dropouts(secagg, num_clients) is not None


def tolerated_dropouts(secagg: SecAggConfig, num_clients: int) -> int | None:
    """Return how many of these clients may drop out of a secure sum; None if no sum is possible."""
    if num_clients < secagg.minimum_cohort:
        return None
    try:
        parameters = sum_parameters(
            secagg, label="", num_clients=num_clients, dimension=1, clipping_norm=1.0, noise_multiplier=1.0
        )
    except ValueError:
        return None
    return parameters.dropout_tolerance


def size_to_lose_one(secagg: SecAggConfig, num_clients: int) -> int:
    """Return the smallest number of members, up to `num_clients`, with which a sum survives one dropout.

    If `secagg.dropout_tolerance` is 0, it is the smallest number with which a sum is possible. If no sum
    survives a dropout, it is `num_clients`, or 0 if a sum of all these is not possible.
    """

    def stands(size: int) -> bool:
        lost = tolerated_dropouts(secagg, size)
        return lost is not None and (lost > 0 or secagg.dropout_tolerance == 0)

    size = bisect_left(range(num_clients + 1), True, key=stands)
    if size <= num_clients:
        return size
    return num_clients if can_sum(secagg, num_clients) else 0


def filled_size(plan: PrivacyPlan, secagg: SecAggConfig, expected: float, reachable: int) -> int:
    """Return how many members a sum should have; clients that were not drawn fill it up with zeros.

    `expected`: the mean number of drawn clients. `reachable`: the number of clients that can be asked.
    """
    size = size_to_lose_one(secagg, reachable)
    if secagg.same_size and can_sum(secagg, reachable):
        size = max(size, usual_size(plan, expected, reachable))
    return size


def _graph(secagg: SecAggConfig, num_updates: int, num_clients: int, corrupt: int) -> tuple[int, int, int]:
    """Return a secure sum's graph degree (0: complete graph), threshold, and tolerated corrupt members.

    The fraction of all members that may drop out is that of the clients with an update, rounded up to whole
    clients. If no sparse graph is private for a large cohort, the complete graph is used, which costs more.
    """
    if num_clients == 1:
        # The server reads this client's update separately, without masks and shares.
        return 0, 1, 0
    dropped, fraction = secagg.dropout_tolerance, corrupt / num_clients
    if num_clients > num_updates:
        # Rounded up to whole clients among the updates, so the fraction may become a little larger.
        dropped = ceil(dropped * num_updates) / num_updates
    if secagg.mode == "curious" and num_clients >= secagg.complete_below:
        fraction = max(fraction, secagg.sparse_corrupt_fraction)
        try:
            degree, threshold = sparse_degree(num_clients, fraction, dropped)
        except ValueError:
            pass
        else:
            return degree, threshold, ceil(fraction * num_clients)
    return 0, threshold_for(num_clients, secagg.threshold, corrupt=corrupt, mode=secagg.mode), 0
