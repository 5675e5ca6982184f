"""Plans of clients that spend what each has chosen, under noise of their own."""

import math

from gdpfed.errors import PrivacyError
from gdpfed.privacy.client_budgets import ClientBudgets
from gdpfed.privacy.events import Adjacency, Unit
from gdpfed.privacy.group_plan import GroupPlan, RoundRange
from gdpfed.privacy.mechanisms.own_spending import OwnSpending
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.validation import require_delta, require_positive
from gdpfed.record_steps import Work


def spending_plan(
    spending: ClientBudgets,
    *,
    unit: Unit,
    adjacency: Adjacency,
    work: Work,
    clipping_norm: float,
    delta: float,
    accountant: str,
    sums_hidden: bool,
) -> PrivacyPlan:
    """Return the plan: all clients are one group, and what it promises is for the one that may spend most.

    A client's whole cost is one Gaussian, exactly, or that of steps of DP-SGD, so the figures of privacy loss
    distributions are meant.

    Raises PrivacyError for another accountant and for input that is out of range.
    """
    if accountant != "pld":
        raise PrivacyError(
            f"accountant {accountant} is not used where a client's whole cost is one Gaussian, whose "
            "epsilon is exact, or steps at a noise that was found with pld: set privacy.accountant=pld"
        )
    num_rounds, num_clients = spending.budgets.shape
    require_positive("clipping_norm", clipping_norm)
    promised = float(spending.most_epsilons(require_delta(delta)).max())
    accounted = min(promised, spending.most_epsilon(num_rounds, delta))
    rates = (spending.cohort_sizes / num_clients).tolist()
    steps = spending.local_steps if unit == "record" else 0
    group = GroupPlan(
        epsilon=promised,
        epsilon_accounted=accounted,
        epsilon_against_server=accounted,
        participations_p99=spending.most_rounds,
        clients=range(num_clients),
        ranges=tuple(_without_shared_noise(rate, steps) for rate in rates),
    )
    return PrivacyPlan(
        groups=(group,),
        num_rounds=num_rounds,
        delta=delta,
        mechanism=OwnSpending(
            sampling="poisson" if spending.draws == "poisson" else "fixed_size",
            adjacency=adjacency,
            unit=unit,
            works=(work,),
            one_sum=True,
            spending=spending,
            clipping_norm=clipping_norm,
        ),
        accountant="pld",
        clipping_norm=clipping_norm,
        sampling_rate=math.fsum(rates) / num_rounds,
        sums_hidden=sums_hidden,
    )


def _without_shared_noise(sampling_rate: float, record_steps: int) -> RoundRange:
    """A round whose sum gets neither a bound nor noise besides the clients' own."""
    return RoundRange(
        num_rounds=1,
        sampling_rate=sampling_rate,
        clipping_norm=math.inf,
        noise_multiplier=0.0,
        record_steps=record_steps,
    )
