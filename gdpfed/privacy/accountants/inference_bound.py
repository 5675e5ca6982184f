"""Membership inference bounds: how well any attacker can tell whether a client took part.

An attack is a test of "it took part" against "it did not". At a false positive rate (FPR) a, the true
positive rate (TPR) is at most what the trade-off between the two laws leaves (Dong, Roth, Su,
arXiv:1905.02383):

* of a Gaussian of parameter mu, exactly Phi(Phi^-1(a) + mu) (their Section 2.2);
* of a profile delta(epsilon), the least e^epsilon a + delta(epsilon) and
  1 - e^-epsilon (1 - delta(epsilon) - a) over epsilon >= 0 (their Proposition 2.13). Every epsilon gives a
  valid bound, so a grid is on the safe side;
* of Renyi divergences D of order o, the largest p with p^o a^(1-o) + (1-p)^o (1-a)^(1-o) <= e^((o-1) D), as
  the answer of a test is a function of what is seen; the least over the orders.

Where both cases are equally likely, the accuracy is at most (1 + v) / 2, v the total variation, which is the
largest TPR - FPR: delta(0), 2 Phi(mu / 2) - 1, or the largest p - a.

`riskcal` computes the same of distributions; it is not a dependency, as it is compiled where it is installed.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from gdpfed.late_import import late_import

special = late_import("scipy.special")

FPR = 0.01
STEPS = 500
BISECTIONS = 40

InferenceProof = Literal["nothing", "no noise", "gaussian", "pld", "rdp"]


@dataclass(frozen=True)
class InferenceBound:
    """An upper bound on the success of all membership inference attacks, and the name of its proof.

    Attributes:
        tpr_at_1_percent_fpr: the true positive rate at a false positive rate of 1 %.
        accuracy_at_even_odds: the accuracy where both cases are equally likely; 0.5 is random guessing.
    """

    tpr_at_1_percent_fpr: float
    accuracy_at_even_odds: float
    proof: InferenceProof

    def to_dict(self) -> dict[str, float | str]:
        """Return the bound on membership inference as a JSON object."""
        return {
            "tpr_at_1_percent_fpr": self.tpr_at_1_percent_fpr,
            "accuracy_at_even_odds": self.accuracy_at_even_odds,
            "proof": self.proof,
        }


NOTHING_TOLD = InferenceBound(FPR, 0.5, "nothing")
NO_BOUND = InferenceBound(1.0, 1.0, "no noise")


def gaussian_inference_bound(mu: float, slack: float = 0.0) -> InferenceBound:
    """Bound membership inference if a client shifts a Gaussian output by mu standard deviations.

    `slack` is a probability by which both the TPR and the total variation may be larger.
    """
    tpr = float(special.ndtr(special.ndtri(FPR) + mu))
    return _inference_bound(tpr + slack, 2 * float(special.ndtr(mu / 2)) - 1 + slack, "gaussian")


def profile_inference_bound(
    delta: Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]],
) -> InferenceBound:
    """Bound membership inference, given the function delta(epsilon) of all releases together."""
    # Beyond ln(1 / a) the first bound is above 1, and the second only rises.
    epsilons = np.linspace(0.0, -math.log(FPR), 4 * STEPS)
    deltas = delta(epsilons)
    tpr = np.minimum(np.exp(epsilons) * FPR + deltas, 1 - np.exp(-epsilons) * (1 - deltas - FPR))
    return _inference_bound(float(tpr.min()), float(deltas[0]), "pld")


def renyi_inference_bound(curve: Mapping[float, float], slack: float = 0.0) -> InferenceBound:
    """Bound membership inference from Renyi divergences by order; `slack` is added to the bounds."""
    tpr = _renyi_tpr(curve, np.array([FPR]))
    fpr = np.arange(STEPS + 1) / STEPS
    # The TPR rises with the FPR, so between two points the difference is at most that of the corners.
    variation = float((_renyi_tpr(curve, fpr[1:]) - fpr[:-1]).max())
    return _inference_bound(float(tpr[0]) + slack, variation + slack, "rdp")


def _renyi_tpr(curve: Mapping[float, float], fpr: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the largest true positive rate that the divergences allow at each false positive rate."""
    known = {order: value for order, value in curve.items() if order > 1 and math.isfinite(value)}
    orders, divergences = (np.array(list(each))[:, None] for each in (known, known.values()))
    with np.errstate(divide="ignore"):
        log_fpr, log_tnr = np.log(fpr), np.log1p(-fpr)
    low, high = fpr + np.zeros_like(orders), np.ones((len(orders), len(fpr)))
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        with np.errstate(divide="ignore", invalid="ignore"):
            found = np.logaddexp(
                orders * np.log(middle) + (1 - orders) * log_fpr,
                orders * np.log1p(-middle) + (1 - orders) * log_tnr,
            )
        allowed = found <= (orders - 1) * divergences
        low, high = np.where(allowed, middle, low), np.where(allowed, high, middle)
    return np.asarray(high.min(axis=0))


def _inference_bound(tpr: float, variation: float, proof: InferenceProof) -> InferenceBound:
    return InferenceBound(min(1.0, max(FPR, tpr)), min(1.0, (1 + max(0.0, variation)) / 2), proof)
