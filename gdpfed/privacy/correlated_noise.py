"""Correlated noise, where later rounds subtract a part of earlier noise, and its privacy cost for clients.

The sum of round t carries y_t = z_t - sum_j g_j z_{t-j}; z_t ~ N(0, s^2 I) is new in every round and
g_1, ..., g_p are the taps. With N the strictly lower triangular Toeplitz matrix of the taps, the noise is
(I - N) z, and C = (I - N)^-1 has the entries h_0 = 1, h_t = sum_j g_j h_{t-j} on its diagonals. A client of
norm C_m that takes part in the rounds pi has mu = C_m sens(pi) / s under zero_out against all who know pi,
with sens(pi)^2 = sum_{a,b in pi} (C^T C)_{ab} and rows up to T. Where h never rises, of all patterns of at
most k turns that are at least b rounds apart the earliest and densest, 0, b, ..., (k-1) b, costs most.

Sources: Denisov et al., arXiv:2202.08312; Choquette-Choo et al., arXiv:2211.06530.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from gdpfed.errors import PrivacyError
from gdpfed.late_import import late_import
from gdpfed.privacy.events import Gaussian, Unit
from gdpfed.privacy.validation import require_count, require_number

Floats = npt.NDArray[np.float64]

MOST_TAPS = 16
MOST_ROUNDS_AND_TAPS = 500_000
"""Of the product of both. A node computes the cost of all its runs for every message, in a second or less."""
ROUNDING = 1e-12


@lru_cache(maxsize=256)
def check_taps(taps: tuple[float, ...], num_rounds: int) -> None:
    """Raise PrivacyError for taps (parts of noise that later rounds subtract) without a privacy proof.

    Raises PrivacyError for more than `MOST_TAPS`, for taps that are negative or rise, and where h rises.
    """
    if len(taps) > MOST_TAPS:
        raise PrivacyError(f"the noise has {len(taps)} taps; use at most {MOST_TAPS}")
    if num_rounds * len(taps) > MOST_ROUNDS_AND_TAPS:
        raise PrivacyError(
            f"{num_rounds} rounds with {len(taps)} taps take too long to account for: use at most "
            f"{MOST_ROUNDS_AND_TAPS // len(taps)} rounds, or fewer taps"
        )
    for tap in taps:
        if not 0.0 <= require_number("a tap of the noise", tap) < math.inf:
            raise PrivacyError(f"a tap of the noise is {tap}; it must be finite and not negative")
    if any(later > tap + ROUNDING for tap, later in pairwise(taps)):
        raise PrivacyError(
            f"the taps of the noise, {_shown(taps)}, increase; no tap may be larger than the one before it"
        )
    response = noise_response(taps, num_rounds)
    rises = np.flatnonzero(response[1:] > response[:-1] + ROUNDING)
    if rises.size:
        raise PrivacyError(
            f"under the taps {_shown(taps)} the weight h of old noise rises after {rises[0]} rounds, so no "
            "bound on turns is known; use smaller taps"
        )


def noise_response(taps: Sequence[float], num_rounds: int) -> Floats:
    """Return the first column of C, shape (T,): the inverse of C correlates the noise of T rounds."""
    return _filtered((0,), taps, num_rounds)


@lru_cache(maxsize=65_536)
def sensitivity(taps: tuple[float, ...], turns: tuple[int, ...], num_rounds: int) -> float:
    """Return the joint L2 sensitivity of all sums to a client that sends norm-1 vectors in rounds `turns`."""
    return float(np.linalg.norm(_filtered(turns, taps, num_rounds)))


def densest_turns(most_turns: int, separation: int, num_rounds: int) -> tuple[int, ...]:
    """Return the rounds 0, b, 2 b, ..., at distance b = `separation`: at most `most_turns` of them."""
    return tuple(range(0, min(num_rounds, most_turns * separation), separation))


def sensitivities(taps: Sequence[float], num_rounds: int) -> Floats:
    """Return all sums' joint sensitivity to a client in k evenly spaced rounds, k = 1, ..., T: shape (T,)."""
    present = np.zeros((num_rounds, num_rounds))
    for turns in range(1, num_rounds + 1):
        present[list(densest_turns(turns, num_rounds // turns, num_rounds)), turns - 1] = 1.0
    # In place of each column x comes c, where c_t = x_t + sum_j g_j c_{t-j}, g_j being the taps.
    for t in range(1, num_rounds):
        for lag, tap in enumerate(taps[:t], start=1):
            present[t] += tap * present[t - lag]
    return np.asarray(np.linalg.norm(present, axis=0))


def check_turns(most_turns: int, separation: int, num_rounds: int) -> None:
    """Raise PrivacyError if `most_turns` rounds, `separation` apart, do not fit into `num_rounds` rounds."""
    require_count("num_rounds", num_rounds)
    require_count("most_turns", most_turns)
    require_count("separation", separation)
    if most_turns * separation > num_rounds + separation - 1:
        raise PrivacyError(
            f"{most_turns} turns at least {separation} rounds apart do not fit in {num_rounds} rounds; use "
            "fewer turns, or closer ones"
        )


def broken_turn(most_turns: int, separation: int, taken: Sequence[int], round_index: int) -> str:
    """Return why a client that was in rounds `taken` may not take part in this round; "" if it may."""
    if len(taken) >= most_turns:
        return f"it has had {len(taken)} turns, and may have {most_turns}"
    nearest = min((abs(round_index - each) for each in taken), default=separation)
    if nearest < separation:
        return f"it has had a turn {nearest} rounds away, and they must be {separation} apart"
    return ""


def prefix_noise(taps: Sequence[float], num_rounds: int) -> float:
    """Return the noise that stays in the sum over all rounds, divided by the noise drawn in one round.

    It is the norm of the last row of A C^-1, A being the prefix sums: of z_{t-r} 1 - g_1 - ... - g_r is left.
    """
    weights = np.ones(num_rounds)
    weights[1:] -= np.cumsum(np.pad(np.asarray(taps, dtype=np.float64), (0, num_rounds)))[: num_rounds - 1]
    return float(np.linalg.norm(weights))


@dataclass(frozen=True, kw_only=True)
class CorrelatedGaussian(Gaussian):
    """The joint release of all rounds of one client, where later rounds subtract a part of earlier noise.

    Each contribution has L2 norm at most `clipping_norm` C; `noise_stddev` s is that of the noise which is
    new in every round, and `taps` say how much of it the next rounds take back. `num_rounds` are the rounds
    whose sums are out. Whoever sees them and knows the turns has one Gaussian mechanism before him, of
    mu = distance C sens / s. So runs add up mu^2.
    """

    kind: ClassVar[str] = "correlated_gaussian"
    unit: ClassVar[Unit | None] = "client"

    num_rounds: int
    turns: tuple[int, ...]
    taps: tuple[float, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.noise != "gaussian":
            raise PrivacyError(f"{self.noise} noise cannot be subtracted in parts; use gaussian noise")
        require_count("num_rounds", self.num_rounds)
        for name in ("turns", "taps"):
            if not isinstance(getattr(self, name), list | tuple):
                raise PrivacyError(f"the {name} of a stream of sums are {getattr(self, name)!r}; give a list")
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for turn in self.turns:
            if require_count("a turn", turn, at_least=0) >= self.num_rounds:
                raise PrivacyError(
                    f"a turn is in round {turn}, and there are {self.num_rounds} rounds; its turns must be "
                    f"from 0 to {self.num_rounds - 1}"
                )
        if not self.turns or list(self.turns) != sorted(set(self.turns)):
            raise PrivacyError(f"turns are {self.turns}; give one or more, each once, in order")
        check_taps(self.taps, self.num_rounds)

    def to_dict(self) -> dict[str, Any]:
        return super().to_dict() | {"turns": list(self.turns), "taps": list(self.taps)}

    @property
    def sensitivity(self) -> float:
        """The joint L2 sensitivity of all sums to a client whose contributions have norm 1."""
        return sensitivity(self.taps, self.turns, self.num_rounds)

    @property
    def noise_multiplier(self) -> float:
        """The noise multiplier of all rounds as one release: that of a round divided by the sensitivity."""
        return super().noise_multiplier / self.sensitivity


def _filtered(turns: Sequence[int], taps: Sequence[float], num_rounds: int) -> Floats:
    """Return c, where c_t = x_t + sum_j g_j c_{t-j}, of a column x that is 1 in rows `turns`, 0 elsewhere."""
    rows = [0.0] * num_rounds
    for turn in turns:
        rows[turn] = 1.0
    for t in range(1, num_rounds):
        for lag, tap in enumerate(taps[:t], start=1):
            rows[t] += tap * rows[t - lag]
    return np.array(rows)


def _shown(taps: Sequence[float]) -> str:
    return ", ".join(f"{tap:g}" for tap in taps)


optimize = late_import("scipy.optimize")


POWERS = np.linspace(0.05, 1.0, 39).tolist()
LEAST_GAIN = 1e-6
"""Of the logarithm of the objective, for which other taps are taken."""
TAP_DIGITS = 3
"""Digits of the taps: the optimum is flat, and another machine must find the same."""


def power_taps(power: float, num_taps: int) -> tuple[float, ...]:
    """Return taps (parts of noise to subtract later) by formula: coefficients of 1 - (1 - x)^gamma.

    g_1 = gamma and g_{j+1} = g_j (j - gamma) / (j + 1). The family is that of gamma-BIFR (Kalinin et al.,
    arXiv:2605.18379), derived here from the two that it unites: with one tap it is DP-lambda-CGD, and with
    gamma = 1/2 the banded inverse square root. Without a last tap h would be that of (1 - x)^-gamma. `power`
    is gamma, from 0 to 1.
    """
    taps = [power] if num_taps else []
    while len(taps) < num_taps:
        j = len(taps)
        taps.append(taps[-1] * (j - power) / (j + 1))
    return tuple(taps)


def best_taps(
    figure: Callable[[Sequence[float]], float], num_taps: int, num_rounds: int
) -> tuple[float, ...]:
    """Search decreasing taps (parts of noise to subtract later) that minimise the function `figure`.

    The search begins at taps that halve and, if there are several, at the best ones in closed form too: among
    many taps it does not find these by itself.
    """
    if not num_taps or num_rounds == 1:
        return (0.0,) * num_taps

    def taps_of(point: Floats) -> Floats:
        return np.minimum.accumulate(np.clip(point, 0.0, 1.0))

    def loss(point: Floats) -> float:
        taps = taps_of(point)
        response = noise_response(taps.tolist(), num_rounds)
        rise = float(np.diff(response).max(initial=0.0))
        return 10.0 + rise if rise > 0 else math.log(figure(taps.tolist()))

    def searched(start: Sequence[float]) -> tuple[float, Floats]:
        options = {"maxiter": 4000, "xatol": 1e-5, "fatol": 1e-9}
        found = optimize.minimize(loss, np.array(start), method="Nelder-Mead", options=options)
        return float(found.fun), found.x

    least, point = min(
        (searched([first / 2**later for later in range(num_taps)]) for first in (0.3, 0.5, 0.7)),
        key=lambda each: each[0],
    )
    if num_taps > 1:
        known = min((power_taps(power, num_taps) for power in POWERS), key=lambda each: loss(np.array(each)))
        closer, other = searched(known)
        if closer < least - LEAST_GAIN:
            point = other
    # The taps are rounded, and the last ones lowered if rounding breaks a condition of the proof.
    digits = np.round(taps_of(point) * 10**TAP_DIGITS).astype(int).tolist()
    while True:
        rounded = tuple(digit / 10**TAP_DIGITS for digit in digits)
        try:
            check_taps(rounded, num_rounds)
        except PrivacyError:
            later = max((j for j, each in enumerate(digits) if each), default=0)
            digits[later] -= 1
        else:
            return rounded
