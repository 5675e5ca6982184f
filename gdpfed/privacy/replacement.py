"""Epsilon under replace-one adjacency: a client's data set, or a record, is replaced by another.

Under zero-out a neighbouring run has nothing in the place of a client's updates. Who asks which of two data
sets a client has compares two runs with updates, which lie up to 2 C apart and not C:

* A Gaussian mechanism of parameter mu has 2 mu then, and its trade-off function is exactly that of 2 mu
  (Dong, Roth, Su, arXiv:1905.02383, Theorem 2.7).
* A sum that a client is drawn into with probability q has it with one update or with the other, drawn alike.
  This is the replace-one adjacency of the accountants.
* Whatever else is (epsilon', delta') under zero-out is (2 epsilon', (1 + e^epsilon') delta') between the two,
  as each of them is a neighbour of the run with nothing: group privacy of size two (Dwork and Roth, "The
  Algorithmic Foundations of Differential Privacy", Theorem 2.2, with delta).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import Literal

from gdpfed.errors import PrivacyError
from gdpfed.privacy.accountants.composition import compose
from gdpfed.privacy.charges import Charge
from gdpfed.privacy.events import DPSGDSteps, Event, Gaussian, SampledGaussian
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.validation import SMALLEST_DELTA

ReplacementProof = Literal["planned", "gaussian", "accountant", "group privacy"]
BISECTIONS = 40


@dataclass(frozen=True)
class ReplacementBound:
    """An epsilon under replace-one adjacency, at the plan's delta, and the kind of its proof.

    `proof`: "planned" where the plan is of replace-one, "gaussian" for exactly twice mu, "accountant" for the
    replace-one of the accountants, "group privacy" for size two.
    """

    epsilon: float
    proof: ReplacementProof


def replacement_bound(plan: PrivacyPlan, group_index: int, record_group: int = 0) -> ReplacementBound:
    """Return the epsilon of a whole run under replace-one adjacency, for a client or for a record.

    It is inf without privacy, and never below the planned epsilon of the group.
    """
    planned = plan.epsilon_after(group_index, plan.num_rounds, record_group)
    if plan.adjacency == "replace_one" or math.isinf(planned):
        return ReplacementBound(planned, "planned")
    charges = [*plan.paid_first, *plan.charges(group_index, None, record_group)]
    exact = all(isinstance(charge.event, Gaussian) for charge in charges)
    try:
        found = compose(replaced(charges), plan.delta, schedule="fixed").epsilon if charges else math.inf
    except PrivacyError:
        found = math.inf
    if math.isfinite(found):
        return ReplacementBound(max(planned, found), "gaussian" if exact else "accountant")

    def at(delta: float) -> float:
        return replace(plan, delta=delta).epsilon_after(group_index, plan.num_rounds, record_group)

    return ReplacementBound(of_two(at, plan.delta), "group privacy")


def replaced(charges: Sequence[Charge]) -> list[Charge]:
    """Return privacy costs under replace-one adjacency; raise PrivacyError if an event has no proven cost."""
    return [replace_unit(charge.event, charge) for charge in charges]


@singledispatch
def replace_unit(event: Event, charge: Charge) -> Charge:
    """Return an event's privacy cost under replace-one adjacency; each kind of event registers its rule.

    Raises PrivacyError for an event that has none.
    """
    raise PrivacyError(f"{event.kind} has no bound for a unit that is replaced; use group privacy")


@replace_unit.register(Gaussian)
@replace_unit.register(SampledGaussian)
def _(event: Gaussian | SampledGaussian, charge: Charge) -> Charge:
    return replace(charge, event=replace(event, adjacency="replace_one"))


@replace_unit.register
def _(event: DPSGDSteps, charge: Charge) -> Charge:
    """Return the replace-one cost of DP-SGD steps, each of which counts as one sum over sampled records."""
    if event.parties > 1:
        raise PrivacyError("a person at several parties has no bound for being replaced; use group privacy")
    step = SampledGaussian(
        sampling="poisson",
        sampling_rate=event.batch_rate,
        group_size=1,
        noise_stddev=event.noise_multiplier,
        clipping_norm=1.0,
        adjacency="replace_one",
    )
    return replace(charge, event=step, count=charge.count * event.num_steps)


def of_two(epsilon_at: Callable[[float], float], delta: float) -> float:
    """Return the replace-one epsilon by group privacy of size two: 2 epsilon', at a smaller delta'.

    delta' is the largest with (1 + e^epsilon') delta' <= delta; inf if it is too small to account for.
    `epsilon_at` returns epsilon at a delta. It falls, so the largest delta' has the least epsilon'.
    """
    longest = math.log(delta / SMALLEST_DELTA)

    def fits(exponent: float) -> bool:
        epsilon = epsilon_at(delta * math.exp(-exponent))
        return epsilon < longest and math.log1p(math.exp(epsilon)) <= exponent

    below, above = math.log(2), 1.0
    while above < longest and not fits(above):
        below, above = above, 1.3 * above
    if above >= longest:
        return math.inf
    for _ in range(BISECTIONS):
        middle = (below + above) / 2
        below, above = (below, middle) if fits(middle) else (middle, above)
    return 2 * epsilon_at(delta * math.exp(-above))
