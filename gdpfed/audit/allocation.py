"""Compute the privacy cost of random allocation: each client is in one secret round of each block of rounds.

In a block of b rounds with noise of sigma clipping norms, R is the mean of b independent lognormal ratios
exp(z / sigma - 1 / (2 sigma^2)). Of two neighbouring runs

    delta(epsilon) = E (R - e^epsilon)_+,    and with the runs exchanged    e^epsilon E (e^-epsilon - R)_+,

prices of a call and a put on R. Those of one ratio are Black and Scholes's. Those of a mean of two parts
follow by adding over the values of one part, whose law is made so that its prices are linear between points:
prices are convex, so each is too high and never too low. docs/privacy.md has the proof.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from dp_accounting.pld import pld_pmf, privacy_loss_distribution
from scipy import special

Floats = npt.NDArray[np.float64]

POINTS_A_DEVIATION = 24
LEAST_PRICE = 1e-18
"""The grid of likelihood ratios ends where an option price falls below this value."""
HALVINGS = 50
WIDEST_LOG = 700.0
ORDERS = 63


@dataclass(frozen=True)
class _Prices:
    """The functions E max(R - k, 0) (call) and E max(k - R, 0) (put) of k; R: a mean of likelihood ratios."""

    call: Callable[[Floats], Floats]
    put: Callable[[Floats], Floats]
    ends: tuple[float, float]


@dataclass(frozen=True)
class _Points:
    """A distribution on points x_0 = 0 < x_1 < ..., with E(R - x_i)+ as calls, E(x_i - R)+ as puts: (n,).

    `beyond`: what a call at the last point costs, which is counted at infinity.
    """

    x: Floats
    calls: Floats
    puts: Floats
    chances: Floats

    @property
    def beyond(self) -> float:
        return float(self.calls[-1])

    def call(self, at: Floats) -> Floats:
        return np.where(at < 0, 1 - at, np.interp(at, self.x, self.calls))

    def put(self, at: Floats) -> Floats:
        return np.where(at > self.x[-1], at - 1 + self.beyond, np.interp(at, self.x, self.puts, left=0.0))


def _prices_of_one_round(sigma: float) -> _Prices:
    """Return E(R - k)+ and E(k - R)+ of one round's likelihood ratio R, by the Black-Scholes formula."""

    def halves(at: Floats) -> tuple[Floats, Floats]:
        logs = np.log(at) * sigma
        return 0.5 / sigma - logs, -0.5 / sigma - logs

    def call(at: Floats) -> Floats:
        upper, lower = halves(at)
        return np.asarray(np.maximum(special.ndtr(upper) - at * special.ndtr(lower), 0.0))

    def put(at: Floats) -> Floats:
        upper, lower = halves(at)
        return np.asarray(np.maximum(at * special.ndtr(-lower) - special.ndtr(-upper), 0.0))

    return _Prices(call, put, (-WIDEST_LOG, WIDEST_LOG))


def _prices_of_mean(first: _Points, share: float, second: _Points) -> _Prices:
    """Return E[max(Z - k, 0)] and E[max(k - Z, 0)] for Z, a weighted mean of two mean likelihood ratios."""

    def places(at: Floats) -> Floats:
        return np.asarray((at[:, None] - (1 - share) * second.x) / share)

    def call(at: Floats) -> Floats:
        finite = share * (first.call(places(at)) @ second.chances)
        return np.asarray(finite + (1 - share) * second.beyond)

    def put(at: Floats) -> Floats:
        return np.asarray(share * (first.put(places(at)) @ second.chances))

    ends = [math.log(share * float(first.x[1]) / 4), math.log(max(first.x[-1], second.x[-1]))]
    return _Prices(call, put, (ends[0], ends[1]))


def _needed(prices: _Prices) -> tuple[float, float]:
    """Find the range of log k where E(R - k)+ and E(k - R)+ / k are not negligible; R: likelihood ratio."""

    def last(price: Callable[[Floats], Floats], start: float, end: float) -> float:
        inside, outside = start, end
        for _ in range(HALVINGS):
            middle = (inside + outside) / 2
            dear = float(price(np.exp([middle]))[0]) > LEAST_PRICE
            inside, outside = (middle, outside) if dear else (inside, middle)
        return outside

    low, high = prices.ends
    return last(lambda at: prices.put(at) / at, 0.0, low), last(prices.call, 0.0, high)


@lru_cache(maxsize=256)
def _points(sigma: float, rounds: int) -> _Points:
    """Discretise R, a mean of likelihood ratios known by E(R - k)+ and E(k - R)+, on an even log grid."""
    deviation = math.sqrt(math.expm1(min(sigma**-2, 50.0)) / rounds)
    prices = _prices(sigma, rounds)
    step = min(1 / sigma, deviation) / POINTS_A_DEVIATION
    low, high = _needed(prices)
    x = np.exp(step * np.arange(math.floor(low / step), math.ceil(high / step) + 1))
    calls, puts = np.append(1.0, prices.call(x)), np.append(0.0, prices.put(x))
    x = np.append(0.0, x)
    widths = np.diff(x)
    below = np.clip(np.diff(puts) / widths, 0.0, 1.0)
    above = np.clip(-np.diff(calls) / widths, 0.0, 1.0)
    # Each tail by the price that is small there, so that no digits are lost.
    small = x[1:] <= 1
    above = np.append(np.where(small, 1 - below, above), 0.0)
    below = np.append(0.0, np.where(small, below, 1 - above[:-1]))
    upper = np.append(False, small)
    chances = np.where(upper, np.diff(np.append(below, 1.0)), 0.0)
    chances[0] = below[1]
    rest = ~upper
    rest[0] = False
    chances[rest] = -np.diff(np.append(above, 0.0))[np.flatnonzero(rest) - 1]
    inner = np.flatnonzero(upper)
    if len(inner):
        # The last point below one: what is neither below nor above it.
        chances[inner[-1]] = 1 - below[inner[-1]] - above[inner[-1]]
    return _Points(x, calls, puts, np.maximum(chances, 0.0))


def _prices(sigma: float, rounds: int) -> _Prices:
    if rounds == 1:
        return _prices_of_one_round(sigma)
    more = (rounds + 1) // 2
    return _prices_of_mean(_points(sigma, more), more / rounds, _points(sigma, rounds - more))


@lru_cache(maxsize=16)
def losses_of_block(sigma: float, rounds: int, grid: float) -> Any:
    """Return dp-accounting's privacy loss distribution of a block of rounds under random allocation."""
    prices = _prices(sigma, rounds)
    low, high = _needed(prices)
    steps = np.arange(math.floor(low / grid) - 1, math.ceil(high / grid) + 2)
    removed = _chunked(prices.call, np.exp(steps * grid))
    added_at = -steps[::-1]
    added = np.exp(added_at * grid) * _chunked(prices.put, np.exp(-added_at * grid))
    return privacy_loss_distribution.PrivacyLossDistribution(
        _losses(grid, steps, removed), _losses(grid, added_at, added)
    )


def _losses(grid: float, steps: npt.NDArray[np.int64], deltas: Floats) -> Any:
    falling = np.maximum.accumulate(np.clip(deltas, 0.0, 1.0)[::-1])[::-1]
    return pld_pmf.create_pmf_pessimistic_connect_dots(grid, steps, falling)


def _chunked(price: Callable[[Floats], Floats], places: Floats, size: int = 500) -> Floats:
    return np.concatenate([price(places[start : start + size]) for start in range(0, len(places), size)])


@lru_cache(maxsize=64)
def block_divergences(sigma: float, rounds: int) -> dict[int, float]:
    """Return the Renyi divergence of a block of rounds at orders 2, 3, ..., for adding or removing a client.

    Removed: the moments of a sum of one ratio more are those of the sum and of the ratio, by the binomial
    theorem. Added: R is at least its geometric mean.
    """
    orders = np.arange(ORDERS + 1)
    one = orders * (orders - 1) / (2 * sigma**2)
    total = one
    logs = special.gammaln(orders + 1)
    binomials = [logs[a] - logs[: a + 1] - logs[a::-1] for a in orders]
    for _ in range(rounds - 1):
        total = np.array([special.logsumexp(binomials[a] + total[: a + 1] + one[a::-1]) for a in orders])
    removed = {a: float(total[a] - a * math.log(rounds)) / (a - 1) for a in orders[2:].tolist()}
    return {a: max(value, (1 + (a - 1) / rounds) / (2 * sigma**2)) for a, value in removed.items()}
