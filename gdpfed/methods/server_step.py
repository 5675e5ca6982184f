"""The server's step size as a function of the plan's noise, the same for all methods."""

import math

RELATIVE_NOISE = 0.12
"""Of all rounds together, in a parameter and in units of C: the most that the rule's step brings."""


def step_of_noise(noise_per_step: float, num_rounds: int) -> float:
    """Return min(1, 0.12 / (sqrt(T) v)): T rounds then bring a parameter noise of at most 0.12 C.

    v is the noise of a round in a parameter, in units of C, at a step of one (`Weighting.noise_per_step`);
    it holds what the rule needs of budgets, cohorts and rates. Independent rounds add up to sqrt(T) v.
    """
    noise = math.sqrt(num_rounds) * noise_per_step
    return 1.0 if noise <= RELATIVE_NOISE else RELATIVE_NOISE / noise
