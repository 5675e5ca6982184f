"""Errors of a secure sum, split by the side that is at fault; programs can read the cause.

The split follows h11: a `LocalProtocolError` is a mistake of the code that calls this package,
a `RemoteProtocolError` a mistake (or an attack) of the other side, and `ThresholdNotMet` is
nobody's: too few clients stayed.
"""

from enum import StrEnum


class Cause(StrEnum):
    """Why a call failed, as a value that programs can compare; the error's text says it for people."""

    MALFORMED = "malformed"
    """Bytes that are not a message of this form."""
    OUT_OF_ORDER = "out of order"
    """A stage that is not due, was answered before, or has no session."""
    OTHER_SUM = "other sum"
    """It belongs to another sum, or to other parameters of it."""
    OTHER_WORK = "other work"
    """A vector that was made from another model, training or clipping norm."""
    POLICY = "policy"
    """Against a limit of the client's own."""
    KEYS = "keys"
    """Public keys that are unsound, repeat, or are not those that were sent."""
    SIGNATURE = "signature"
    """A signature or identity that is missing or does not fit."""
    SHARES = "shares"
    """Shares that are missing, do not fit their commitments, or recover nothing."""
    MEMBERS = "members"
    """Lists of members, contributors or survivors that contradict each other."""
    TOO_FEW = "too few"
    """Too few members are left to finish the sum."""
    NUMBERS = "numbers"
    """Numbers that the integer grid cannot carry."""
    CALLER = "caller"
    """The calling code used a session wrongly."""


class SecAggError(Exception):
    """Base class of every error that a session of a secure sum raises.

    Attributes:
        cause: what went wrong, for a program.
    """

    cause = Cause.CALLER


class LocalProtocolError(SecAggError):
    """Raised if the calling code misused a session: calls out of order or after an error, or wrong arrays."""


class RemoteProtocolError(SecAggError):
    """Raised if the other side of the protocol sent something that is not allowed.

    `stage`: "advertise", "share", "mask", "check" or "unmask". `sender`: the member at fault, by its number
    in this sum on a client and by its client id on the server; None for the server. `reason`: one line with
    the value that was wrong. `cause`: the same for a program.
    """

    def __init__(self, stage: str, sender: int | None, reason: str, cause: Cause = Cause.MALFORMED) -> None:
        super().__init__(str(stage), sender, reason, cause)
        self.stage = str(stage)
        self.sender = sender
        self.reason = reason
        self.cause = cause

    def __str__(self) -> str:
        who = "the server" if self.sender is None else f"member {self.sender}"
        return f"stage {self.stage}, from {who}: {self.reason}"


class ThresholdNotMet(SecAggError):  # noqa: N818 - the protocol's own name for this outcome
    """Raised if too few clients are left to finish the sum; nothing was unmasked.

    `stage`: the stage that ended with too few. `have`: how many are left. `need`: how many it takes.
    """

    cause = Cause.TOO_FEW

    def __init__(self, stage: str, have: int, need: int) -> None:
        super().__init__(str(stage), have, need)
        self.stage = str(stage)
        self.have = have
        self.need = need

    def __str__(self) -> str:
        return (
            f"stage {self.stage}: {self.have} clients are left, {self.need} are needed; "
            "ask more clients or tolerate more dropouts"
        )


class DecodeError(SecAggError):
    """Raised if received bytes are not the canonical form of the expected message."""

    cause = Cause.MALFORMED


class ImplausibleSum(SecAggError):  # noqa: N818 - what it says of the sum
    """Raised if a sum is larger than clipped updates and their noise can be.

    `bound`: "norm" or "coordinate". `value`: of the sum, in the update's unit. `limit`: what an honest sum
    stays below.
    """

    cause = Cause.NUMBERS

    def __init__(self, bound: str, value: float, limit: float) -> None:
        super().__init__(bound, value, limit)
        self.bound = bound
        self.value = value
        self.limit = limit

    def __str__(self) -> str:
        return (
            f"the sum's {self.bound} {self.value:.4g} is above {self.limit:.4g}, which no honest sum reaches"
        )


class EncodingError(SecAggError, ValueError):
    """Raised if numbers cannot be represented on the sum's integer grid."""

    cause = Cause.NUMBERS


class RosterError(SecAggError, ValueError):
    """Raised if the list of clients' public keys cannot be used."""

    cause = Cause.SIGNATURE
