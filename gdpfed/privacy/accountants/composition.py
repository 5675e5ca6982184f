"""Composition: the joint epsilon of a list of releases, whether fixed beforehand or chosen adaptively.

* **fixed**: all events of the list were fixed before the first release. Then privacy loss distributions and
  Renyi divergences compose, and for releases without sampling also zero-concentrated DP. The result is the
  least epsilon of these proofs, or the epsilon of the named accountant.
* **adaptive**: later events may depend on what earlier ones released, so a *privacy filter* must keep the
  budget. Renyi divergences, added order by order, are a filter, with weights of orders that are fixed by the
  budget before the first release (`filter_epsilon`). Privacy loss distributions give a smaller epsilon, but
  are proved only for fixed events.

Charges of different privacy units cannot be added, so such a list is refused.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from gdpfed.errors import PrivacyError
from gdpfed.privacy.accountants.accountant import Accountant, AccountantName, RenyiOrders, accountant_for
from gdpfed.privacy.accountants.discrete import DELTA_RESERVE, GAUSSIAN_SHARE, MOST_EPSILON, effective_delta
from gdpfed.privacy.accountants.filter_curves import filter_curve
from gdpfed.privacy.accountants.gaussian import gaussian_epsilon, gaussian_sigma, zcdp_epsilon
from gdpfed.privacy.accountants.inference_bound import (
    NO_BOUND,
    NOTHING_TOLD,
    InferenceBound,
    gaussian_inference_bound,
    profile_inference_bound,
    renyi_inference_bound,
)
from gdpfed.privacy.accountants.pld import composed_pld_epsilon, gaussian_parameter, has_losses, pld_deltas
from gdpfed.privacy.accountants.rdp import epsilon_of_renyi, filter_epsilon, renyi_curve
from gdpfed.privacy.charges import Charge
from gdpfed.privacy.events import Event, Gaussian
from gdpfed.privacy.validation import require_delta

Schedule = Literal["fixed", "adaptive"]
Proof = Literal["nothing", "no noise", "theorem1", "rdp", "pld", "zcdp", "renyi filter"]


@dataclass(frozen=True)
class Bound:
    """An epsilon of several releases together, and the proof behind it."""

    epsilon: float
    proof: Proof


def compose(
    charges: Sequence[Charge],
    delta: float,
    *,
    schedule: Schedule,
    accountant: Accountant | None = None,
    limit: float | None = None,
    reserve: float = DELTA_RESERVE,
) -> Bound:
    """Return the joint epsilon at delta of all releases; 0 without releases, inf if one has no noise.

    The sampling of an event reduces its cost. So epsilon holds against those who know neither who is in a
    sample nor how many are; for others use `compose_against_server`. With `accountant` None, a fixed schedule
    has the least epsilon of all proofs that cover it; an adaptive schedule always uses the Renyi filter, for
    the epsilon `limit` up to which releases are allowed, with `reserve` of delta for later discrete noise.
    A bound under replace_one also holds under zero_out, so events of both may be in one list. Raises
    PrivacyError if charges have different units, or no proof covers an event.
    """
    require_delta(delta)
    _refuse_mixed_units(charges)
    if not charges:
        return Bound(0.0, "nothing")
    if not all(charge.event.is_noisy for charge in charges):
        return Bound(math.inf, "no noise")
    merged = _merged(charges)
    if schedule == "adaptive":
        discrete = _discrete_releases(merged)
        if discrete:
            effective_delta(delta, num_rounds=discrete)
        left = delta - reserve if delta > reserve else delta
        filtered = filter_epsilon(_renyi_total(merged, "fine", filter_curve), left, limit)
        return Bound(_bounded(filtered, discrete), "renyi filter")
    if accountant is not None:
        return Bound(_fixed_epsilon(merged, delta, accountant), accountant.name)
    proofs: dict[Proof, Callable[[], float]] = {
        "pld": lambda: _fixed_epsilon(merged, delta, _accountant(merged, "pld")),
        "rdp": lambda: _fixed_epsilon(merged, delta, _accountant(merged, "rdp")),
        "zcdp": lambda: zcdp_epsilon(merged, delta),
    }
    bounds, refused = [], None
    for proof, epsilon in proofs.items():
        try:
            bounds.append(Bound(epsilon(), proof))
        except PrivacyError as error:
            refused = refused or error
    if not bounds and refused is not None:
        raise refused
    return min(bounds, key=lambda bound: bound.epsilon)


def compose_runs(runs: Sequence[Sequence[Charge]], delta: float, limit: float | None = None) -> Bound:
    """Return epsilon at delta of several runs together; later runs may depend on results of earlier ones.

    The terms of a run may depend on what earlier runs released. A single run is a fixed schedule, whether or
    not others follow: docs/privacy.md, "Several runs". `limit`: the epsilon up to which runs are allowed.
    """
    if len(runs) == 1:
        return compose(runs[0], delta, schedule="fixed")
    return compose([charge for run in runs for charge in run], delta, schedule="adaptive", limit=limit)


def compose_against_server(charges: Sequence[Charge], delta: float, limit: float | None = None) -> float:
    """Return epsilon at delta against those who know in which releases a client took part.

    They are the server and the members of the same sums; against them, sampling of clients does not reduce
    the cost. K_i sums of noise multiplier sigma_i compose to one Gaussian of (sum_i K_i / sigma_i^2)^(-1/2),
    with sigma_i / 2 in place of sigma_i under replace_one. A Gaussian mechanism is its own worst case, so
    this epsilon also holds under adaptive composition (Smith and Thakurta, "Fully Adaptive Composition for
    Gaussian Differential Privacy", arXiv:2210.17520). The batches of DP-SGD are drawn on the client, so their
    cost against the server is that against everyone; the Renyi filter composes charges with such steps, for
    the epsilon `limit` up to which they are allowed.
    """
    require_delta(delta)
    _refuse_mixed_units(charges)
    if not charges:
        return 0.0
    if not all(charge.event.is_noisy for charge in charges):
        return math.inf
    seen = [(charge.event.for_members(), charge.count) for charge in charges]
    if not all(isinstance(event, Gaussian) for event, _ in seen):
        return compose(charges, delta, schedule="adaptive", limit=limit).epsilon
    discrete = _discrete_releases(charges)
    if discrete:
        delta = effective_delta(delta, num_rounds=discrete)
    return _bounded(
        composed_pld_epsilon([(_charged(event), count) for event, count in seen], delta), discrete
    )


def inference_bound(charges: Sequence[Charge]) -> InferenceBound:
    """Bound membership inference by an attacker who sees all releases but not who was sampled.

    It uses privacy loss distributions, whichever accountant the plan has. Under fixed_size sampling, it uses
    Renyi divergences. The charges must be fixed beforehand, as in a plan. Raises PrivacyError if charges have
    different units, or neither proof covers an event.
    """
    _refuse_mixed_units(charges)
    if not charges:
        return NOTHING_TOLD
    if not all(charge.event.is_noisy for charge in charges):
        return NO_BOUND
    merged = _merged(charges)
    # In delta, a distance t of the noise from its law costs (1 + e^epsilon) t; this reserve covers t as well.
    slack = DELTA_RESERVE if _discrete_releases(merged) else 0.0
    if not all(has_losses(each.event) for each in merged):
        return renyi_inference_bound(_renyi_total(merged, "fine"), slack)
    releases = [(_charged(charge.event), charge.count) for charge in merged]
    mu = gaussian_parameter(releases)
    if mu is not None:
        return gaussian_inference_bound(mu, slack)
    return profile_inference_bound(lambda epsilons: pld_deltas(releases, epsilons) + slack)


def _refuse_mixed_units(charges: Sequence[Charge]) -> None:
    units = sorted({charge.unit for charge in charges})
    if len(units) > 1:
        raise PrivacyError(
            f"charges per {' and per '.join(units)} cannot be added up; account each unit by itself"
        )


def _merged(charges: Sequence[Charge]) -> list[Charge]:
    """Merge charges (repeated releases) of equal events, in order of first appearance."""
    counts: dict[Event, int] = {}
    for charge in charges:
        counts[charge.event] = counts.get(charge.event, 0) + charge.count
    return [Charge(event=event, count=count, unit=charges[0].unit) for event, count in counts.items()]


def _accountant(charges: Sequence[Charge], name: str) -> Accountant:
    return accountant_for(charges[0].event.law, name, "fine")


def _fixed_epsilon(charges: Sequence[Charge], delta: float, accountant: Accountant) -> float:
    if len(charges) == 1:
        event = charges[0].event
        own = accountant_for(event.law, accountant.name, accountant.renyi_orders)
        return own.epsilon(event, charges[0].count, delta)
    if accountant.name == "rdp":
        return _renyi_sum(charges, delta, accountant.renyi_orders)
    if accountant.name == "theorem1":
        raise PrivacyError(
            f"theorem1 accounts one event for all rounds, not {len(charges)}; use the rdp or pld accountant"
        )
    discrete = _discrete_releases(charges)
    if discrete:
        delta = effective_delta(delta, num_rounds=discrete)
    releases = [(_charged(charge.event), charge.count) for charge in charges]
    return _bounded(composed_pld_epsilon(releases, delta), discrete)


def _renyi_sum(charges: Sequence[Charge], delta: float, orders: RenyiOrders) -> float:
    discrete = _discrete_releases(charges)
    if discrete:
        delta = effective_delta(delta, num_rounds=discrete)
    return _bounded(epsilon_of_renyi(_renyi_total(charges, orders), delta), discrete)


def _renyi_total(
    charges: Sequence[Charge],
    orders: RenyiOrders,
    curve_of: Callable[[Event], dict[float, float]] = renyi_curve,
) -> dict[float, float]:
    """Add up the Renyi divergences of all releases, at the orders for which every release has one."""
    curves = []
    for charge in charges:
        event = charge.event
        # At whole orders, the Renyi bound of discrete noise is that of continuous noise.
        curves.append(curve_of(event.continuous(1.0) if event.law == "discrete_gaussian" else event))
    common = set.intersection(*(set(curve) for curve in curves))
    if _discrete_releases(charges) or orders == "whole":
        common = {order for order in common if order == int(order)}
    return {
        order: math.fsum(charge.count * curve[order] for charge, curve in zip(charges, curves, strict=True))
        for order in sorted(common)
    }


def _discrete_releases(charges: Sequence[Charge]) -> int:
    """Return the number of sums with discrete noise among these releases."""
    return sum(
        charge.count * charge.event.num_releases
        for charge in charges
        if charge.event.law == "discrete_gaussian"
    )


def _charged(event: Event) -> Event:
    """Return the event as accounted: slightly smaller continuous noise takes the place of discrete noise."""
    return event.continuous(GAUSSIAN_SHARE) if event.law == "discrete_gaussian" else event


def _bounded(epsilon: float, discrete: int) -> float:
    """Return epsilon; inf if it is above the range that the proof for discrete noise covers."""
    return math.inf if discrete and epsilon > MOST_EPSILON else epsilon


@dataclass(frozen=True)
class AfterRelease:
    """An accountant that includes the cost of one earlier Gaussian release, `paid`, in every epsilon.

    So noise, rates or numbers of steps that are calibrated with it keep the total within the budget.
    """

    accountant: Accountant
    paid: Charge

    @property
    def name(self) -> AccountantName:
        """The name of this accountant in settings."""
        return self.accountant.name

    @property
    def renyi_orders(self) -> RenyiOrders:
        """The orders of Renyi divergence that the rdp accountant minimises over."""
        return self.accountant.renyi_orders

    def epsilon(self, event: Event, count: int, delta: float) -> float:
        """Return epsilon at delta of the earlier release and `count` releases of an event, composed."""
        charges = [self.paid]
        if count:
            charges.append(Charge(event=event, count=count, unit=self.paid.unit))
        return compose(charges, delta, schedule="fixed", accountant=self.accountant).epsilon


def with_release(paid: Gaussian, epsilon: float, delta: float) -> float:
    """Estimate the joint epsilon of a Gaussian release and another cost `epsilon`; only for searches."""
    if epsilon <= 0:
        return gaussian_epsilon(paid.noise_multiplier, delta)
    mu = math.hypot(1 / gaussian_sigma(epsilon, delta), 1 / paid.noise_multiplier)
    return gaussian_epsilon(1 / mu, delta)
