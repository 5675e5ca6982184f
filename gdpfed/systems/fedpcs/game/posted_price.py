"""A posted price: one reward for a unit of budget, to which every client answers once.

A client of aversion c is paid R rho for its budget rho of a whole run and loses c rho^2. R / (2 c) is best
for it, whatever the others answer: the price is truthful and maximises welfare.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

import numpy as np

from gdpfed.systems.fedpcs.game.payoffs import Floats, GameError
from gdpfed.systems.fedpcs.game.welfare import price_answers


@dataclass(frozen=True, kw_only=True)
class PostedPrice:
    """The posted terms.

    Attributes:
        price: R, of a unit of zCDP.
        least, highest: between these lie all budgets of a whole run, in zCDP.

    Raises:
        GameError: a number that is out of range.
    """

    price: float
    least: float
    highest: float

    def __post_init__(self) -> None:
        numbers: tuple[Any, ...] = (self.price, self.least, self.highest)
        if any(type(each) is not float or not 0 < each < np.inf for each in numbers):
            raise GameError(
                f"a price of {self.price!r} is posted; price and bounds must be above 0 and finite"
            )
        if not self.least < self.highest:
            raise GameError(
                f"budgets from {self.least:g} to {self.highest:g} are asked for; the least must be below the "
                "highest"
            )

    def budgets(self, aversions: Floats) -> Floats:
        """The answers of clients with these privacy cost weights, of the same shape."""
        return price_answers(aversions, self.price, self.least, self.highest)

    def to_scalars(self) -> dict[str, float]:
        """Flat values for a message."""
        return asdict(self)

    @classmethod
    def from_scalars(cls, scalars: Mapping[str, Any]) -> Self:
        """Inverse of :meth:`to_scalars`.

        Raises:
            GameError: entries that are missing, unknown or out of range.
        """
        names = {field.name for field in fields(cls)}
        if set(scalars) != names:
            odd = ", ".join(sorted(names ^ set(scalars)))
            raise GameError(f"what is posted of a price lacks or has unknown entries: {odd}")
        return cls(**scalars)
