"""Membership inference bounds: how well any attacker can tell whether a client took part.

An attack is a test of "it took part" against "it did not". With a the chance of a false alarm, the chance of
a true one is at most what the trade-off between the two laws leaves (Dong, Roth, Su, arXiv:1905.02383):

* of a Gaussian of parameter mu, exactly Phi(Phi^-1(a) + mu) (their Section 2.2);
* of a profile delta(epsilon), the least e^epsilon a + delta(epsilon) and
  1 - e^-epsilon (1 - delta(epsilon) - a) over epsilon >= 0 (their Proposition 2.13). Every epsilon gives a
  valid bound, so a grid is on the safe side;
* of Renyi divergences D of order o, the largest p with p^o a^(1-o) + (1-p)^o (1-a)^(1-o) <= e^((o-1) D), as
  telling "alarm" from "no alarm" is a function of what is seen; the least over the orders.

At even odds a guess is right with the chance (1 + v) / 2, v the total variation, which is the most that true
alarms exceed false ones by: delta(0), 2 Phi(mu / 2) - 1, or the largest p - a.

`riskcal` computes the same of distributions; it is no dependency, as it is compiled where it is installed.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from gdpfed.late_import import late_import

special = late_import("scipy.special")

FALSE_ALARMS = 0.01
STEPS = 500
BISECTIONS = 40

GuessProof = Literal["nothing", "no noise", "gaussian", "pld", "rdp"]


@dataclass(frozen=True)
class BestGuess:
    """What no attack exceeds, and the proof behind it.

    Attributes:
        true_alarms: chance of an alarm if the client (or record) took part, at 1 % false alarms.
        right_at_even_odds: chance of a right guess where both are as likely; 0.5 is a coin.
    """

    true_alarms: float
    right_at_even_odds: float
    proof: GuessProof

    def to_dict(self) -> dict[str, float | str]:
        """The JSON form."""
        return {
            "true_alarms_at_1_percent_false": self.true_alarms,
            "right_at_even_odds": self.right_at_even_odds,
            "proof": self.proof,
        }


NOTHING_TOLD = BestGuess(FALSE_ALARMS, 0.5, "nothing")
NO_BOUND = BestGuess(1.0, 1.0, "no noise")


def gaussian_guess(mu: float, slack: float = 0.0) -> BestGuess:
    """The best guess of one Gaussian whose mean moves by mu standard deviations.

    `slack` is a probability by which both chances may be larger.
    """
    alarms = float(special.ndtr(special.ndtri(FALSE_ALARMS) + mu))
    return _guess(alarms + slack, 2 * float(special.ndtr(mu / 2)) - 1 + slack, "gaussian")


def profile_guess(delta: Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]) -> BestGuess:
    """The best guess under a profile delta(epsilon), which takes an array and bounds both directions."""
    # Beyond ln(1 / a) the first bound is above 1, and the second only rises.
    epsilons = np.linspace(0.0, -math.log(FALSE_ALARMS), 4 * STEPS)
    deltas = delta(epsilons)
    alarms = np.minimum(
        np.exp(epsilons) * FALSE_ALARMS + deltas, 1 - np.exp(-epsilons) * (1 - deltas - FALSE_ALARMS)
    )
    return _guess(float(alarms.min()), float(deltas[0]), "pld")


def renyi_guess(curve: Mapping[float, float], slack: float = 0.0) -> BestGuess:
    """The best guess under Renyi divergences by order; `slack` as in `gaussian_guess`."""
    alarms = _renyi_alarms(curve, np.array([FALSE_ALARMS]))
    falses = np.arange(STEPS + 1) / STEPS
    # Alarms rise with false ones, so between two points the difference is at most that of the corners.
    variation = float((_renyi_alarms(curve, falses[1:]) - falses[:-1]).max())
    return _guess(float(alarms[0]) + slack, variation + slack, "rdp")


def _renyi_alarms(curve: Mapping[float, float], falses: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The largest p for every a, by bisection from above; 1 where a is 1."""
    known = {order: value for order, value in curve.items() if order > 1 and math.isfinite(value)}
    orders, divergences = (np.array(list(each))[:, None] for each in (known, known.values()))
    with np.errstate(divide="ignore"):
        alarm, none = np.log(falses), np.log1p(-falses)
    low, high = falses + np.zeros_like(orders), np.ones((len(orders), len(falses)))
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        with np.errstate(divide="ignore", invalid="ignore"):
            found = np.logaddexp(
                orders * np.log(middle) + (1 - orders) * alarm,
                orders * np.log1p(-middle) + (1 - orders) * none,
            )
        allowed = found <= (orders - 1) * divergences
        low, high = np.where(allowed, middle, low), np.where(allowed, high, middle)
    return np.asarray(high.min(axis=0))


def _guess(alarms: float, variation: float, proof: GuessProof) -> BestGuess:
    return BestGuess(min(1.0, max(FALSE_ALARMS, alarms)), min(1.0, (1 + max(0.0, variation)) / 2), proof)
