"""Sparsification of a released sum."""

import numpy as np
import numpy.typing as npt


def keep_largest(vector: npt.NDArray[np.float64], keep_fraction: float) -> npt.NDArray[np.float64]:
    """Top_k(vector, k): exactly k = max(1, round(keep_fraction * d)) entries of largest magnitude.

    Of entries with equal magnitude those of lower index are kept. Works on what is already released, so it
    costs no privacy (post-processing).

    Args:
        vector: float64[d].
        keep_fraction: k / d in (0, 1].

    Returns:
        float64[d], a new vector, zero where nothing was kept.
    """
    k = max(1, round(keep_fraction * len(vector)))
    if k >= len(vector):
        return vector.copy()
    magnitude = np.abs(vector)
    threshold = np.partition(magnitude, len(vector) - k)[len(vector) - k]
    kept = magnitude > threshold
    ties = np.flatnonzero(magnitude == threshold)
    kept[ties[: k - int(kept.sum())]] = True
    return np.where(kept, vector, 0.0)
