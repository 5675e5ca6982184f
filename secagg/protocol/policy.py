"""A client's own limits on the secure sums that it takes part in, and the choice of Shamir's threshold."""

import math
from dataclasses import dataclass

from secagg.protocol.graph import PRIVACY_BITS, is_private
from secagg.protocol.parameters import ACTIVE, CURIOUS, MODES, OFF, SumParameters
from secagg.protocol.wire import MAX_CLIENTS
from secagg.sum_errors import Cause, RemoteProtocolError


@dataclass(frozen=True, kw_only=True)
class ClientPolicy:
    """A client's own limits on a secure sum, checked against the sum's parameters in the first stage.

    That more than half of the neighbours must help to unmask is not an option here: `SumParameters` enforces
    it. So on the complete graph, at least num_clients / 2 members take part in every sum.

    Attributes:
        minimum_cohort: the fewest members asked for an update.
        minimum_survivors: the fewest updates in a sum that is unmasked.
        minimum_bare_survivors: the same for a sum without noise. In a sum of three updates, a lying server
            with one of the members learns the sum of the other two.
        maximum_dropout_fraction: the largest dropout_tolerance / num_updates.
        minimum_noise_multiplier: the smallest sigma of the sum's noise.
        minimum_own_noise: the smallest sigma / sqrt(num_updates - D - max(1, c)): this client's own noise, in
            clipping norms. If the server invented all other members, only this noise protects the update; if
            a later sum also takes a part of it back, nothing does.
        mode: the weakest accepted mode, in the order off < curious < active. With "active", keys and
            survivors must be signed. With "off", parameters of sums in clear are accepted; such sums have no
            sessions.
        corrupt_fraction: the fraction of corrupt members that this client assumes. Its own c is the largest
            of ceil(fraction n) and the sum's corrupt_tolerance and graph_corrupt. On the complete graph
            t > own c must hold, and 2 t > n + own c against a server that may lie. On a sparse graph k and t
            must withstand own c, except with probability 2**-40. The sum's noise must also suffice without
            that of ceil(fraction n) members.
        sparse_corrupt_fraction: the same fraction, but not for the noise, on a sparse graph if it is larger:
            there, few colluding neighbours can separate a client from all others.
        maximum_clients, maximum_neighbours, maximum_dimension: the largest n, k and d.
        maximum_clipping_norm: the largest C.

    Raises ValueError for a limit out of its range.
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
            if not value <= limit:
                return f"{name} {value:g} is above {limit:g}"
        for name, (value, limit) in least.items():
            if not value >= limit:
                return f"{name} {value} is below {limit}"
        return ""

    def _noise_broken(self, parameters: SumParameters) -> str:
        sigma = parameters.noise_multiplier
        if not sigma and parameters.fewest_in_sum < self.minimum_bare_survivors:
            least = f"{self.minimum_bare_survivors} (minimum_bare_survivors)"
            return f"fewest_in_sum {parameters.fewest_in_sum} without noise is below {least}"
        if not sigma >= self.minimum_noise_multiplier:
            return f"noise_multiplier {sigma:g} is below {self.minimum_noise_multiplier:g}"
        own = parameters.client_noise_multiplier(parameters.num_updates)
        if not own >= self.minimum_own_noise:
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

    t = min(k, max(floor(k / 2), floor(fraction * k), c) + 1); in mode active t is also at least
    min(k, floor((n + c) / 2) + 1). t is above k / 2, so that two disjoint groups of neighbours cannot reveal
    both secrets of a client (Bonawitz et al., CCS 2017, section 6; Bell et al., CCS 2020, section 3). Unless
    k limits it, t is above c, so that corrupt members alone recover no secret. `num_clients`: n. `fraction`:
    the part of the neighbours that must help. `corrupt`: c, how many members may collude with the server.
    `mode`: "curious" or "active". Raises ValueError for fewer than 2 clients or a fraction outside [0, 1].
    """
    if num_clients < 2 or not 0 <= fraction <= 1:
        raise ValueError(f"{num_clients} clients, fraction {fraction}: use at least 2 clients and 0..1")
    neighbours = num_clients - 1
    least = max(neighbours // 2, math.floor(fraction * neighbours), corrupt) + 1
    if mode == ACTIVE:
        least = max(least, (num_clients + corrupt) // 2 + 1)
    return min(neighbours, least)
