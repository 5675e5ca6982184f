"""Requests as a fleet takes them, without a ledger that charges them: for tests and races of fleets alone."""

from collections.abc import Sequence

from gdpfed.methods.base import SumRequest
from gdpfed.privacy.ledgers.charged import SEAL, ChargedSum, ExpectedSum


def as_charged(requests: Sequence[SumRequest], round_index: int = 0) -> list[ChargedSum[SumRequest]]:
    """The requests, as if a ledger had charged them."""
    return [ChargedSum(SEAL, request, round_index) for request in requests]


def as_expected(requests: Sequence[SumRequest], round_index: int = 1) -> list[ExpectedSum[SumRequest]]:
    """The requests, as if a ledger expected them of a round."""
    return [ExpectedSum(SEAL, request, round_index) for request in requests]
