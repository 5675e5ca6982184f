"""An accountant of what follows a release that is paid already: its figures are those of both together.

So whoever calibrates by it, be it noise, rates or numbers of steps, keeps the whole within the budget.
"""

import math
from dataclasses import dataclass

from gdpfed.privacy.accountants.accountant import Accountant, AccountantName, RenyiOrders
from gdpfed.privacy.accountants.composition import compose
from gdpfed.privacy.accountants.gaussian import gaussian_epsilon, gaussian_sigma
from gdpfed.privacy.charges import Charge
from gdpfed.privacy.events import Event, Gaussian


@dataclass(frozen=True)
class AfterRelease:
    """Accounts by `accountant`, and adds to every figure what `paid` charges, a Gaussian release."""

    accountant: Accountant
    paid: Charge

    @property
    def name(self) -> AccountantName:
        """The name it is configured by."""
        return self.accountant.name

    @property
    def renyi_orders(self) -> RenyiOrders:
        """Which orders the rdp accountant minimises over."""
        return self.accountant.renyi_orders

    def epsilon(self, event: Event, count: int, delta: float) -> float:
        """Return epsilon at delta of the release and `count` releases of an event, as `compose` has it."""
        charges = [self.paid]
        if count:
            charges.append(Charge(event=event, count=count, unit=self.paid.unit))
        return compose(charges, delta, schedule="fixed", accountant=self.accountant).epsilon


def with_release(paid: Gaussian, epsilon: float, delta: float) -> float:
    """Return about what a cost of `epsilon` is together with a Gaussian release, for searches only."""
    if epsilon <= 0:
        return gaussian_epsilon(paid.noise_multiplier, delta)
    mu = math.hypot(1 / gaussian_sigma(epsilon, delta), 1 / paid.noise_multiplier)
    return gaussian_epsilon(1 / mu, delta)
