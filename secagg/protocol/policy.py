"""A client's own limits on the secure sums that it takes part in, and the threshold that fits them."""

import math
from dataclasses import dataclass

from secagg.protocol.graph import PRIVACY_BITS, is_private
from secagg.protocol.parameters import ACTIVE, CURIOUS, MODES, OFF, SumParameters
from secagg.protocol.wire import MAX_CLIENTS
from secagg.sum_errors import Cause, RemoteProtocolError


@dataclass(frozen=True, kw_only=True)
class ClientPolicy:
    """A client's own limits on a secure sum, checked against the sum's parameters in the first stage.

    That more than half of the neighbours must help to unmask is not an option: `SumParameters`
    cannot be made otherwise, so at least num_clients / 2 members share every sum.

    Attributes:
        minimum_cohort: fewest members asked for an update, this client among them.
        minimum_survivors: fewest updates in a sum that is unmasked, this client among its members.
        minimum_bare_survivors: the same of a sum without noise. Of three, a lying server and one member
            know what the other two add up to.
        maximum_dropout_fraction: largest dropout_tolerance / num_clients.
        minimum_noise_multiplier: least sigma, of the sum's noise.
        minimum_own_noise: least sigma / sqrt(n - D - max(1, c)): this client's own noise, in clipping norms.
            Where the server has made up all other members, that is all that is left, as long as no later sum
            takes any of it back; then nothing is.
        mode: the least that is accepted, in the order off < curious < active. "active" refuses a sum
            in which keys and survivors are not signed; "off" accepts parameters of updates in clear, for
            which there are no sessions.
        corrupt_fraction: the share of corrupt members that this client fears. With own c = the larger of
            ceil(this n) and the sum's corrupt_tolerance: t > own c on the complete graph, 2 t > n + own c
            against a server that may lie, and on a sparse graph k and t must withstand own c but for 2**-40.
            The noise of ceil(this n) members, with an update or without, must count for nothing.
        sparse_corrupt_fraction: the same on a sparse graph, where it is larger: few neighbours who collude
            part a client from all others there.
        maximum_clients, maximum_neighbours, maximum_dimension: largest n, k and d.
        maximum_clipping_norm: largest C.

    Raises ValueError: a limit that no sum, or every sum, would meet by mistake.
    """

    minimum_cohort: int
    maximum_dropout_fraction: float
    minimum_survivors: int = 2
    minimum_bare_survivors: int = 2
    minimum_noise_multiplier: float = 0.0
    minimum_own_noise: float = 0.0
    mode: str = CURIOUS
    corrupt_fraction: float = 0.0
    sparse_corrupt_fraction: float = 0.0
    maximum_clients: int = MAX_CLIENTS
    maximum_neighbours: int = 4096
    maximum_dimension: int = 2**29
    maximum_clipping_norm: float = math.inf

    def __post_init__(self) -> None:
        for name in (
            *("minimum_cohort", "minimum_survivors", "minimum_bare_survivors"),
            *("maximum_clients", "maximum_neighbours"),
        ):
            if getattr(self, name) < 2:
                raise ValueError(f"{name} is {getattr(self, name)}: use at least 2")
        if self.maximum_dimension < 1 or not self.maximum_clipping_norm > 0:
            raise ValueError(
                f"maximum_dimension {self.maximum_dimension}, maximum_clipping_norm "
                f"{self.maximum_clipping_norm}: use positive numbers"
            )
        for name in ("maximum_dropout_fraction", "corrupt_fraction", "sparse_corrupt_fraction"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: use 0 to below 1")
        for name in ("minimum_noise_multiplier", "minimum_own_noise"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)}: use 0 or more")
        if self.mode not in MODES:
            raise ValueError(f"mode={self.mode} is not known: use {', '.join(MODES[:-1])} or {MODES[-1]}")

    def own_corrupt(self, parameters: SumParameters) -> int:
        """Return how many members this client assumes to be corrupt, at least as many as the sum assumes."""
        fraction = self.corrupt_fraction
        if parameters.is_sparse:
            fraction = max(fraction, self.sparse_corrupt_fraction)
        feared = math.ceil(fraction * parameters.num_clients)
        return max(parameters.corrupt_tolerance, parameters.graph_corrupt, feared)

    def check(self, parameters: SumParameters) -> None:
        """Raise RemoteProtocolError for a sum that breaks one of this client's limits."""
        broken = (
            self._size_broken(parameters)
            or self._noise_broken(parameters)
            or self._mode_broken(parameters)
            or self._graph_broken(parameters)
            or self._shares_broken(parameters)
        )
        if broken:
            raise RemoteProtocolError("advertise", None, f"{broken}, this client's own limit", Cause.POLICY)

    def _size_broken(self, parameters: SumParameters) -> str:
        least = {
            "num_clients": (parameters.num_clients, self.minimum_cohort),
            "num_updates": (parameters.num_updates, self.minimum_cohort),
            "fewest_in_sum": (parameters.fewest_in_sum, self.minimum_survivors),
        }
        most = {
            "num_clients": (parameters.num_clients, self.maximum_clients),
            "degree": (parameters.degree, self.maximum_neighbours),
            "dimension": (parameters.dimension, self.maximum_dimension),
            "clipping_norm": (parameters.clipping_norm, self.maximum_clipping_norm),
            "dropout_tolerance": (
                parameters.dropout_tolerance,
                self.maximum_dropout_fraction * parameters.num_updates,
            ),
        }
        for name, (value, limit) in most.items():
            if value > limit:
                return f"{name} {value:g} is above {limit:g}"
        for name, (value, limit) in least.items():
            if value < limit:
                return f"{name} {value} is below {limit}"
        return ""

    def _noise_broken(self, parameters: SumParameters) -> str:
        sigma = parameters.noise_multiplier
        if not sigma and parameters.fewest_in_sum < self.minimum_bare_survivors:
            fewest = parameters.fewest_in_sum
            return f"fewest_in_sum {fewest} without noise is below {self.minimum_bare_survivors}"
        if sigma < self.minimum_noise_multiplier:
            return f"noise_multiplier {sigma:g} is below {self.minimum_noise_multiplier:g}"
        own = parameters.client_noise_multiplier(parameters.num_updates)
        if own < self.minimum_own_noise:
            return f"one client's noise, {own:g} clipping norms, is below {self.minimum_own_noise:g}"
        return ""

    def _shares_broken(self, parameters: SumParameters) -> str:
        known, feared = parameters.known_shares, math.ceil(self.corrupt_fraction * parameters.num_clients)
        if parameters.noise_multiplier and parameters.mode != OFF and known < feared:
            return f"the noise is sized against {known} corrupt members, and this client assumes {feared}"
        return ""

    def _mode_broken(self, parameters: SumParameters) -> str:
        if MODES.index(parameters.mode) < MODES.index(self.mode):
            return f"mode {parameters.mode} is less than {self.mode}"
        return ""

    def _graph_broken(self, parameters: SumParameters) -> str:
        corrupt, n, threshold = self.own_corrupt(parameters), parameters.num_clients, parameters.threshold
        if parameters.is_sparse:
            degree, dropped = parameters.num_neighbours, parameters.lost_members
            if not is_private(n, degree, threshold, min(corrupt, n - 1), dropped):
                return (
                    f"num_neighbours {degree} with threshold {threshold} fails against {corrupt} corrupt "
                    f"members with probability above 2**-{PRIVACY_BITS}"
                )
        elif threshold <= corrupt:
            return f"threshold {threshold} is not above {corrupt} corrupt members"
        elif parameters.has_two_quorums(corrupt):
            return (
                f"threshold {threshold} of {n} clients is not above {(n + corrupt) / 2:g}, so that a lying "
                f"server and {corrupt} corrupt members find two quorums"
            )
        return ""


def threshold_for(num_clients: int, fraction: float, *, corrupt: int = 0, mode: str = CURIOUS) -> int:
    """Return Shamir's threshold t on the complete graph, where each member has num_clients - 1 neighbours.

    t = min(k, max(floor(k / 2), floor(fraction * k), c) + 1); for a server that may lie, at least floor((n +
    c) / 2) + 1. Above k / 2 always, so that no two disjoint groups of neighbours can reveal both of a
    client's secrets (Bonawitz et al., CCS 2017, section 6; Bell et al., CCS 2020, section 3), and above c, so
    that the corrupt alone recover none. `num_clients`: n. `fraction`: of the neighbours, who must help.
    `corrupt`: c, how many members may share all they know with the server. `mode`: "curious" or "active".
    Raises ValueError: fewer than 2 clients or a fraction outside [0, 1].
    """
    if num_clients < 2 or not 0 <= fraction <= 1:
        raise ValueError(f"{num_clients} clients, fraction {fraction}: use at least 2 clients and 0..1")
    neighbours = num_clients - 1
    least = max(neighbours // 2, math.floor(fraction * neighbours), corrupt) + 1
    if mode == ACTIVE:
        least = max(least, (num_clients + corrupt) // 2 + 1)
    return min(neighbours, least)
