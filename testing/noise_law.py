"""The exact distribution of draws from the noise tables, compared with the discrete Gaussian."""

import math
from fractions import Fraction
from functools import lru_cache

import numpy as np

from secagg.arithmetic.discrete_gaussian import (
    _DIRECT_BITS,
    _FRACTION_BITS,
    _SHAPES,
    _THRESHOLD_BITS,
    UNSETTLED,
    Tables,
    _probabilities,
    _span,
    shape_of,
    tables,
)


def exact_moments(integer_stddev: float) -> tuple[Fraction, Fraction]:
    """Return E[z**2] and E[z**4] of draws of `sample`, computed from the tables; odd moments are 0.

    With v and w those of D(sigma): (1 + k**2) v and (1 + k**4) w + 6 k**2 v**2.
    """
    sigma, factor, cells = shape_of(integer_stddev)
    law = law_of(tables(sigma, cells))
    second = sum((value**2 * weight for value, weight in law.items()), Fraction(0))
    fourth = sum((value**4 * weight for value, weight in law.items()), Fraction(0))
    variance = Fraction(1 + factor**2) * second
    return variance, Fraction(1 + factor**4) * fourth + 6 * factor**2 * second * second


def total_variation_bound(integer_stddev: float, num_draws: int = 1) -> float:
    """Return a bound on the total variation distance of noise draws from exact discrete Gaussian draws.

    TV <= num_draws * (2 TV(table, D(sigma)) + 4.2 exp(-2 pi**2 eta**2)): two draws of the table, and
    z1 + k z2 against D(S), whose ratio lies within (1 +- t) / (1 -+ t), t < 2.1 exp(-2 pi**2 eta**2).

    `num_draws`: clients * dimension * rounds of a training (and 1 + levels, with noise in levels).
    """
    if num_draws < 1:
        raise ValueError(f"num_draws is {num_draws}: bound at least 1 draw")
    sigma, factor, cells = shape_of(integer_stddev)
    smoothing = math.exp(-2 * math.pi**2 * sigma**2 / (1 + factor**2))
    return num_draws * (2 * _table_distance(sigma, cells) + 4.2 * smoothing)


@lru_cache(maxsize=len(_SHAPES))
def _table_distance(sigma: int, cells: int) -> float:
    """Bound the total variation distance of a draw from the tables to an exact discrete Gaussian draw.

    D(sigma) has at most 2 exp(-(cells / 2)**2 / (2 sigma**2)) beyond (Canonne, Kamath, Steinke,
    section 4). 2**-300 covers the rounding of the probabilities that the tables are made from.
    """
    law = law_of(tables(sigma, cells))
    true = _probabilities(sigma, cells // 2)
    within = sum(abs(law.get(x, Fraction(0)) - _as_probability(true[abs(x)])) for x in _span(cells))
    beyond = 2 * math.exp(-((cells // 2) ** 2) / (2 * sigma**2))
    return math.nextafter(float(within) / 2, 1.0) + beyond + 2.0**-300


def law_of(drawn_from: Tables) -> dict[int, Fraction]:
    """Return the exact probability of each value that the noise sampler can draw from these tables."""
    values, counts = np.unique(drawn_from.direct, return_counts=True)
    law = {int(v): Fraction(int(c), 1 << _DIRECT_BITS) for v, c in zip(values, counts, strict=True)}
    cells, weights = len(drawn_from.alias), dict.fromkeys(_span(len(drawn_from.alias)), 0)
    weights[-cells // 2] = 0
    for cell, alias in enumerate(drawn_from.alias.tolist()):
        threshold = (int(drawn_from.high[cell]) << 64) + int(drawn_from.low[cell])
        weights[cell - cells // 2] += threshold
        weights[alias] += (1 << _THRESHOLD_BITS) - threshold
    unsettled = law.pop(UNSETTLED) / (cells << _THRESHOLD_BITS)
    for value, weight in weights.items():
        law[value] = law.get(value, Fraction(0)) + unsettled * weight
    return {value: probability for value, probability in law.items() if probability}


def _as_probability(units: int) -> Fraction:
    return Fraction(units, 1 << _FRACTION_BITS)
