"""Releases that are asked for, and the same once they are charged.

A fleet sums `ChargedSum`s and nothing else, and `Ledger.charge` is the only maker of them. So whatever a
method asks for is checked against the plan and the round's cohort before any message leaves.
"""

from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np

from gdpfed.errors import PrivacyError
from gdpfed.privacy.release import ROUNDING, CountsRequest, Release, Vector

R = TypeVar("R", bound=Release)


class ChargedCounts:
    """A request for class counts that a ledger has charged; every client answers it once."""

    def __init__(self, seal: object, request: CountsRequest) -> None:
        if seal is not SEAL:
            raise PrivacyError("only a ledger's charge makes what clients release of their class counts")
        self._request = request
        self._is_taken = False

    def take(self) -> CountsRequest:
        """Return the request to the fleet that has it answered.

        Raises PrivacyError the second time: it was charged once.
        """
        if self._is_taken:
            raise PrivacyError("the class counts have been released already; they were charged once")
        self._is_taken = True
        return self._request


class ChargedSum(Generic[R]):
    """A release that a ledger has charged; it is summed once.

    Attributes:
        request: what was charged.
        round_index: the round that it was charged in.
    """

    def __init__(self, seal: object, request: R, round_index: int) -> None:
        if seal is not SEAL:
            raise PrivacyError(f"{request.name}: only a ledger's charge makes what a fleet sums")
        self.request = request
        self.round_index = round_index
        self._is_taken = False
        self._charged = tuple(request.clients.tolist()), request.contribution_norms, request.noise_stddev

    def check(self, clients: Sequence[int], norms: Vector, noise_stddev: float) -> None:
        """Compare what a fleet is about to sum with what was charged.

        Args:
            clients: ids of those who are asked.
            norms: the bound on the contribution of each, in their order.
            noise_stddev: of the noise in the sum.

        Raises:
            PrivacyError: other clients, a larger bound or less noise.
        """
        charged, largest, least_noise = self._charged
        of_sum = f"round {self.round_index}: {self.request.name} is about to be summed"
        if tuple(clients) != charged:
            raise PrivacyError(f"{of_sum} over other clients than were charged")
        if np.any(~(norms <= largest * (1 + ROUNDING))):
            raise PrivacyError(f"{of_sum} with norms up to {norms.max():.6g}, above those that were charged")
        if not noise_stddev >= least_noise * (1 - ROUNDING):
            raise PrivacyError(
                f"{of_sum} with noise of standard deviation {noise_stddev:.6g}, below the {least_noise:.6g} "
                "that were charged"
            )

    def take(self) -> R:
        """Return the request to whoever sums it.

        Raises PrivacyError the second time: it was charged once.
        """
        if self._is_taken:
            raise PrivacyError(
                f"round {self.round_index}: {self.request.name} has been summed already; it was charged once"
            )
        self._is_taken = True
        return self.request


class ExpectedSum(Generic[R]):
    """A release that fits the plan of the next round and is not charged: keys may be agreed for it.

    Attributes:
        request: what is expected.
        round_index: the round that it is expected in.
    """

    def __init__(self, seal: object, request: R, round_index: int) -> None:
        if seal is not SEAL:
            raise PrivacyError(f"{request.name}: only a ledger says what is expected of a round")
        self.request = request
        self.round_index = round_index


SEAL = object()
"""What a ledger shows that it makes one of these."""
