"""The taps of a stream's noise: which parts of it the next rounds take back, for the least of a figure."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from gdpfed.errors import PrivacyError
from gdpfed.late_import import late_import
from gdpfed.privacy.correlated_noise import check_taps, noise_response

optimize = late_import("scipy.optimize")

Floats = npt.NDArray[np.float64]

TAP_DIGITS = 3
"""Digits of the taps: the optimum is flat, and another machine must find the same."""


def best_taps(
    figure: Callable[[Sequence[float]], float], num_taps: int, num_rounds: int
) -> tuple[float, ...]:
    """Return so many taps, none larger than the one before it, under which a positive figure is least."""
    if not num_taps or num_rounds == 1:
        return (0.0,) * num_taps

    def taps_of(point: Floats) -> Floats:
        return np.minimum.accumulate(np.clip(point, 0.0, 1.0))

    def loss(point: Floats) -> float:
        taps = taps_of(point)
        response = noise_response(taps.tolist(), num_rounds)
        rise = float(np.diff(response).max(initial=0.0))
        return 10.0 + rise if rise > 0 else math.log(figure(taps.tolist()))

    found = min(
        (
            optimize.minimize(
                loss,
                np.array([first / 2**later for later in range(num_taps)]),
                method="Nelder-Mead",
                options={"maxiter": 4000, "xatol": 1e-5, "fatol": 1e-9},
            )
            for first in (0.3, 0.5, 0.7)
        ),
        key=lambda each: float(each.fun),
    )
    return _rounded(taps_of(found.x), num_rounds)


def _rounded(taps: Floats, num_rounds: int) -> tuple[float, ...]:
    """Taps of few digits under which h does not rise: smaller last ones where rounding has made it rise."""
    digits = np.round(taps * 10**TAP_DIGITS).astype(int).tolist()
    while True:
        rounded = tuple(each / 10**TAP_DIGITS for each in digits)
        try:
            check_taps(rounded, num_rounds)
        except PrivacyError:
            later = max((j for j, each in enumerate(digits) if each), default=0)
            digits[later] -= 1
        else:
            return rounded
