"""The public parameters of one secure sum, on which server and clients must agree."""

import math
from dataclasses import dataclass
from functools import lru_cache

from secagg.arithmetic.encoding import Encoding, check_numbers
from secagg.arithmetic.noise_levels import MAX_LEVELS, Contributors, Corrections, NoiseLevels
from secagg.arithmetic.packing import FULL_BITS, packed_bytes
from secagg.crypto.keys import SECRET_BYTES
from secagg.crypto.prg import KEY_BYTES, unknown_suite
from secagg.crypto.shamir import share_bytes
from secagg.protocol.graph import fewest_private
from secagg.protocol.wire import MAX_CLIENTS, Reader, Writer
from secagg.sum_errors import DecodeError

_MESSAGE_TYPE = 16
_COUNTS = (
    "num_clients",
    "threshold",
    "dropout_tolerance",
    "corrupt_tolerance",
    "dimension",
    "num_neighbours",
    "graph_corrupt",
    "noise_levels",
    "modulus_bits",
    "num_correctors",
)
OFF, CURIOUS, ACTIVE = "off", "curious", "active"
MODES = (OFF, CURIOUS, ACTIVE)
"""From most to least trust in the server: it may see every update; it follows the protocol; it may lie."""


@dataclass(frozen=True, kw_only=True)
class SumParameters:
    """All public values of one secure sum; a hash of them goes into each key that the sum derives.

    Attributes:
        label: names the run, round and sum; never used twice. At most 255 bytes of UTF-8.
        num_clients: n, the number of members asked.
        num_correctors: how many of them send no update and no new noise, and only take back, under masks,
            noise of an earlier sum.
        threshold: t, how many of a client's k neighbours are needed to recover its secrets; k/2 < t <= k.
        dropout_tolerance: D, how many members with an update may drop out after sharing their secrets; on a
            sparse graph, how many of those asked for an update may drop out at any time.
        corrupt_tolerance: c, how many members may collude, with an update or without; below t on the complete
            graph. The noise of c members does not count; see `known_shares`.
        dimension: d, the length of the vector.
        clipping_norm: C, the L2 bound of one update; inf for none (then noise_multiplier is 0).
        noise_multiplier: sigma; the noise of the sum has standard deviation at least C sigma.
        suite: the cipher of masks and encrypted shares: aes128ctr, aes256ctr or chacha20.
        num_neighbours: k, even, of a sparse graph; 0 for the complete graph. See `sparse_degree`.
        graph_corrupt: how many corrupt members k and t of a sparse graph withstand, at least c; 0 for
            the complete graph.
        noise_levels: L, in how many levels surplus noise is removed again; 0 for none. With L > 0 a client's
            noise must be what `ClientSession.mask` draws.
        correction_multiplier: the largest standard deviation of the earlier noise that one member takes back,
            in clipping norms; 0 if no member takes noise back.
        modulus_bits: b, how many bits of a residue are sent; see `Contributors.modulus_bits`.
        mode: "curious"; or "active" against a server that may lie, with signed keys and signed survivors; or
            "off" for a sum in clear, which needs parameters for its encoding.

    Raises ValueError for an impossible value, which the message names.
    """

    label: str
    num_clients: int
    threshold: int
    dropout_tolerance: int
    dimension: int
    clipping_norm: float
    noise_multiplier: float
    corrupt_tolerance: int = 0
    suite: str = "aes128ctr"
    num_neighbours: int = 0
    graph_corrupt: int = 0
    noise_levels: int = 0
    modulus_bits: int = FULL_BITS
    mode: str = CURIOUS
    num_correctors: int = 0
    correction_multiplier: float = 0.0

    def __post_init__(self) -> None:
        for name in _COUNTS:
            value = getattr(self, name)
            if not isinstance(value, int) or not 0 <= value < 2**31:
                raise ValueError(f"{name} is {value!r}: use an int from 0 to 2**31 - 1")
        self._check_names()
        # A single update that is read in clear has no neighbours.
        if not (self.num_clients == 1 and self.mode == OFF):
            self._check_members()
            self._check_graph()
        check_numbers(self.dimension, self.clipping_norm, self.noise_multiplier, self.modulus_bits)
        self._check_levels()
        self._check_corrections()

    def _check_names(self) -> None:
        if len(self.label.encode()) > 255:
            raise ValueError(f"label has {len(self.label.encode())} bytes: use at most 255")
        if self.suite not in KEY_BYTES:
            raise ValueError(unknown_suite(self.suite))
        if self.mode not in MODES:
            raise ValueError(f"mode={self.mode} is not known: use {', '.join(MODES[:-1])} or {MODES[-1]}")

    def _check_members(self) -> None:
        n, neighbours = self.num_clients, self.degree
        if not 2 <= n <= MAX_CLIENTS:
            raise ValueError(f"num_clients is {n}: use 2 to {MAX_CLIENTS}")
        if not neighbours < 2 * self.threshold <= 2 * neighbours:
            raise ValueError(
                f"threshold {self.threshold} of {neighbours} neighbours: use more than half, at most all"
            )
        if not self.is_sparse and neighbours - self.dropout_tolerance < self.threshold:
            raise ValueError(
                f"after {self.dropout_tolerance} dropouts {neighbours - self.dropout_tolerance} "
                f"neighbours are left, fewer than the threshold {self.threshold}: lower one of them"
            )
        if self.num_correctors > n - 2:
            raise ValueError(f"num_correctors is {self.num_correctors} of {n}: leave 2 with an update")
        if self.num_updates - self.dropout_tolerance - self.known_shares < 1:
            raise ValueError(
                f"{self.num_updates} clients with an update less {self.dropout_tolerance} dropouts less "
                f"{self.known_shares} whose noise is known leave none to add noise: tolerate fewer"
            )

    def _check_graph(self) -> None:
        n, k = self.num_clients, self.num_neighbours
        if k % 2 or not 0 <= k < n - 1:
            raise ValueError(
                f"num_neighbours is {k}: use an even number below {n - 1}, or 0 for the complete graph"
            )
        corrupt = self.corrupt_tolerance
        least, most = (corrupt, n) if self.is_sparse else (0, 0)
        if not least <= self.graph_corrupt <= most:
            raise ValueError(
                f"graph_corrupt is {self.graph_corrupt}: use {least} (corrupt_tolerance) to {most} on a "
                "sparse graph, and 0 on the complete one"
            )
        if not self.is_sparse and corrupt >= self.threshold:
            raise ValueError(
                f"threshold {self.threshold} with {corrupt} corrupt members: use a larger "
                "threshold, or the corrupt alone recover every secret"
            )
        if self.signs and self.is_sparse:
            raise ValueError(f"num_neighbours is {k}: a server that may lie needs the complete graph, 0")
        if self.has_two_quorums(corrupt):
            raise ValueError(
                f"threshold {self.threshold} of {n} clients, {corrupt} corrupt: use more "
                f"than {(n + corrupt) / 2:g}, or a lying server finds two quorums"
            )

    def _check_levels(self) -> None:
        most = min(self.dropout_tolerance, MAX_LEVELS)
        if self.noise_levels and (self.noise_multiplier == 0 or self.noise_levels > most):
            raise ValueError(
                f"noise_levels is {self.noise_levels}: use 0 to {most} (dropout_tolerance, at most "
                f"{MAX_LEVELS}), and 0 without noise"
            )

    def _check_corrections(self) -> None:
        if not 0 <= self.correction_multiplier < math.inf:
            raise ValueError(f"correction_multiplier is {self.correction_multiplier}: use 0 or more")
        takes_back = self.num_correctors > 0 or self.correction_multiplier > 0
        if takes_back and (self.mode == OFF or self.noise_levels or not self.noise_multiplier):
            raise ValueError(
                "noise is taken back in masked sums with noise of their own, in no levels: elsewhere use "
                "num_correctors=0 and correction_multiplier=0"
            )

    @property
    def signs(self) -> bool:
        """Whether members sign their keys and the list of survivors, as protection from a lying server."""
        return self.mode == ACTIVE

    def has_two_quorums(self, corrupt: int) -> bool:
        """Whether a lying server could get t signatures on each of two lists if corrupt members sign both."""
        return self.signs and 2 * self.threshold <= self.num_clients + corrupt

    @property
    def is_sparse(self) -> bool:
        return self.num_neighbours > 0

    @property
    def degree(self) -> int:
        """k, the number of neighbours that each member has if all members are present."""
        return self.num_neighbours or self.num_clients - 1

    @property
    def num_updates(self) -> int:
        """How many members are asked to send an update."""
        return self.num_clients - self.num_correctors

    @property
    def known_shares(self) -> int:
        """The number of members whose noise an adversary may know: c, but with masks at least 1 (itself).

        An adversary that is a member knows its own noise, and up to c colluding members know their noise
        together; all of them may send an update. In a sum in clear no member adds noise.
        """
        return self.corrupt_tolerance if self.mode == OFF else max(1, self.corrupt_tolerance)

    @property
    def lost_members(self) -> int:
        """The tolerated dropouts D, scaled from members with updates to all n members of a sparse graph."""
        return -(-self.dropout_tolerance * self.num_clients // self.num_updates)

    @property
    def fewest_contributors(self) -> int:
        """The fewest members that must have shared secrets (contributors) so that a sum can be unmasked.

        On a sparse graph it is at least n - `lost_members`, since its bounds count dropouts at any time.
        """
        fewest = max(self.threshold, self.dropout_tolerance + self.known_shares) + 1
        return max(fewest, self.num_clients - self.lost_members) if self.is_sparse else fewest

    @property
    def fewest_updates(self) -> int:
        """The smallest number of members that must send an update, so that the sum carries enough noise.

        It is also more than half of those asked for an update or, on a sparse graph, at least all but D.
        """
        most_lost = self.dropout_tolerance if self.is_sparse else (self.num_updates - 1) // 2
        noisy = self.dropout_tolerance + self.known_shares + 1
        return max(noisy, self.num_updates - most_lost)

    @property
    def fewest_members(self) -> int:
        """The smallest number of members that must send keys, so that a sparse graph stays private."""
        return self.fewest_members_against(self.graph_corrupt)

    def fewest_members_against(self, corrupt: int) -> int:
        """Return the smallest number of members that must send keys if `corrupt` of them may be corrupt."""
        if not self.is_sparse:
            return self.fewest_contributors
        private = fewest_private(
            self.num_clients, self.num_neighbours, self.threshold, corrupt, self.lost_members
        )
        return max(private, self.fewest_contributors)

    def fewest_survivors(self, num_contributors: int) -> int:
        """Return the fewest survivors with which a sum of this many contributors can be unmasked."""
        fewest = max(num_contributors - self.dropout_tolerance - self.num_correctors, self.threshold + 1)
        return max(fewest, self.fewest_contributors) if self.is_sparse else fewest

    def fewest_summed_updates(self, num_contributors: int) -> int:
        """Return the fewest updates with which a sum is unmasked; fewer would carry too little noise."""
        least = self.fewest_updates if self.is_sparse else self.num_updates // 2 + 1
        return max(num_contributors - self.dropout_tolerance, least)

    @property
    def fewest_in_sum(self) -> int:
        """The smallest number of updates in any sum that these parameters allow to be unmasked."""
        survivors = self.fewest_survivors(self.fewest_contributors)
        return max(survivors - self.num_correctors, self.fewest_summed_updates(self.fewest_updates))

    def contributors(self, number: int) -> Contributors:
        """Return what a sum of `number` updates assumes of its members; raise EncodingError if too few."""
        takes_back = self.num_clients if self.correction_multiplier else 0
        return Contributors(
            number,
            self.dropout_tolerance,
            self.known_shares,
            self.noise_levels,
            Corrections(takes_back, self.correction_multiplier),
        )

    @property
    def noise_stddev(self) -> float:
        """C sigma, the standard deviation of the noise in a whole sum; 0 without noise, even if C is inf."""
        return self.clipping_norm * self.noise_multiplier if self.noise_multiplier else 0.0

    def client_noise_multiplier(self, num_contributors: int) -> float:
        """Return a client's noise, a standard deviation in clipping norms: sigma / sqrt(n2 - D - max(1, c)).

        At least n2 - D survivors add noise, and max(1, c) of them may know their own noise and subtract it.
        The rest has standard deviation at least C sigma. Raises EncodingError if no member would be left
        whose noise counts.
        """
        return self.noise_multiplier / math.sqrt(self.contributors(num_contributors).noisy)

    def client_noise_stddev(self, num_contributors: int) -> float:
        """Return each client's noise as a standard deviation in the update's unit."""
        multiplier = self.client_noise_multiplier(num_contributors)
        return self.clipping_norm * multiplier if multiplier else 0.0

    def encoding(self, num_contributors: int) -> Encoding:
        """Return how updates are encoded as integers for a secure sum of `num_contributors` updates."""
        return _encoding(self, num_contributors)

    def noise_level(self, num_contributors: int, num_dropped: int) -> tuple[NoiseLevels | None, int]:
        """Return noise levels and the lowest that suffices after these dropouts; (None, 0) without levels."""
        levels = self.encoding(num_contributors).levels if self.noise_levels else None
        return levels, levels.level_of(num_dropped) if levels else 0

    def noise_share_at(self, num_contributors: int, num_dropped: int) -> int:
        """Return from which byte of its shares on a holder reveals noise seeds; 0 if it reveals none."""
        levels, level = self.noise_level(num_contributors, num_dropped)
        if levels is None or not any(levels.parts_above(level)):
            return 0
        return (2 + level) * share_bytes(SECRET_BYTES)

    @property
    def upload_bytes_per_coordinate(self) -> float:
        """Bytes that one coordinate of a client's masked vector takes in a message: about b / 8."""
        return packed_bytes(self.dimension, self.modulus_bits) / self.dimension

    def to_bytes(self) -> bytes:
        """Return a secure sum's parameters as bytes; equal parameters give equal bytes."""
        writer = Writer(_MESSAGE_TYPE).short(self.label.encode())
        for name in _COUNTS:
            writer.count(getattr(self, name))
        # The sum -0.0 + 0.0 is 0.0, so that equal numbers have equal bytes.
        for number in (self.clipping_norm, self.noise_multiplier, self.correction_multiplier):
            writer.number("d", number + 0.0)
        writer.short(self.suite.encode())
        return writer.short(self.mode.encode()).frame()

    @classmethod
    def from_bytes(cls, data: bytes) -> "SumParameters":
        """Read a secure sum's parameters that `to_bytes` wrote.

        Raises DecodeError if the bytes are not the canonical form of valid parameters.
        """
        reader = Reader(data, _MESSAGE_TYPE)
        try:
            label = reader.short().decode()
            counts = {name: reader.integer("I") for name in _COUNTS}
            parameters = cls(
                label=label,
                **counts,
                clipping_norm=reader.real(),
                noise_multiplier=reader.real(),
                correction_multiplier=reader.real(),
                suite=reader.short().decode(),
                mode=reader.short().decode(),
            )
        except ValueError as error:
            raise DecodeError(f"impossible parameters: {error}") from error
        if parameters.to_bytes() != data:
            raise DecodeError("the parameters are not in canonical form")
        return reader.finish(parameters)


@lru_cache(maxsize=64)
def _encoding(parameters: SumParameters, num_contributors: int) -> Encoding:
    """Return the integer grid of a sum, cached for simulations of many members in one process."""
    return Encoding.for_sum(
        parameters.contributors(num_contributors),
        dimension=parameters.dimension,
        clipping_norm=parameters.clipping_norm,
        noise_multiplier=parameters.noise_multiplier,
        modulus_bits=parameters.modulus_bits,
    )
