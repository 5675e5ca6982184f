"""Energy and delay of a round of devices, edges and cloud, by the radio model of H2FDP's source.

Lin and Brinton give power, bandwidth, noise and path loss, and neither the reference distance nor how devices
share the band: 1 m and turns are choices of this project. Figures are modelled, and follow from nothing that
is measured.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

BITS = 32
"""Of a parameter on the air, Q."""
DEVICE_DBM, BANDWIDTH_HERTZ, NOISE_DBM_HERTZ = 24.0, 1e6, -173.0
PATH_LOSS_DB, PATH_LOSS_DB_A_DECADE, REFERENCE_METRES = -30.0, 37.5, 1.0
BACKHAUL_DBM, BACKHAUL_BITS_A_SECOND = 38.0, 100e6


@dataclass(frozen=True)
class Link:
    """A sender: its power in watts, and how many bits it gets across in a second."""

    watts: float
    bits_a_second: float

    def seconds(self, bits: float) -> float:
        """How long so many bits take."""
        return bits / self.bits_a_second

    def joules(self, bits: float) -> float:
        """The cost of sending them."""
        return self.watts * self.seconds(bits)


@dataclass(frozen=True)
class Cost:
    """Energy and time."""

    joules: float
    seconds: float

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.joules + other.joules, self.seconds + other.seconds)

    def times(self, factor: float) -> "Cost":
        """The cost of so many of it."""
        return Cost(factor * self.joules, factor * self.seconds)


def watts(dbm: float) -> float:
    """Power in watts of one in decibels over a milliwatt."""
    return float(10 ** (dbm / 10 - 3))


def device_link(metres: float) -> Link:
    """A device at a distance from its edge: W log2(1 + p |h|^2 / (N0 W)), with |h|^2 = 10^(beta / 10).

    beta = -30 - 37.5 log10(metres / 1 m) is in dB, and is converted; the source computes with it as it is.
    """
    loss = PATH_LOSS_DB - PATH_LOSS_DB_A_DECADE * math.log10(metres / REFERENCE_METRES)
    power = watts(DEVICE_DBM)
    ratio = power * 10 ** (loss / 10) / (watts(NOISE_DBM_HERTZ) * BANDWIDTH_HERTZ)
    return Link(power, BANDWIDTH_HERTZ * math.log2(1 + ratio))


BACKHAUL = Link(watts(BACKHAUL_DBM), BACKHAUL_BITS_A_SECOND)


def sum_cost(dimension: int, sizes: Sequence[int], metres: float, *, together: bool = False) -> Cost:
    """One sum of every subnet: sum_c s_c d Q / R devices' uploads.

    In each subnet devices take turns, or send at the same time on bands of their own (`together`). The time
    is added up over the subnets, as in the source.
    """
    link, bits = device_link(metres), dimension * BITS
    slots = len(sizes) if together else sum(sizes)
    return Cost(sum(sizes) * link.joules(bits), slots * link.seconds(bits))


def global_cost(dimension: int, num_subnets: int) -> Cost:
    """Edges to the cloud and back: E = S p d Q / R, D = 2 S d Q / R."""
    bits = dimension * BITS
    return Cost(num_subnets * BACKHAUL.joules(bits), 2 * num_subnets * BACKHAUL.seconds(bits))


def round_cost(
    dimension: int, sizes: Sequence[int], windows: int, metres: float, *, together: bool = False
) -> Cost:
    """A round with J sums of every subnet, of s_c devices each, and the global average at its end."""
    sums = sum_cost(dimension, sizes, metres, together=together).times(windows)
    return sums + global_cost(dimension, len(sizes))
