"""Errors, split by the side that is at fault.

The split follows h11: a `LocalProtocolError` is a mistake of the code that calls this package,
a `RemoteProtocolError` a mistake (or an attack) of the other side, and `ThresholdNotMet` is
nobody's: too few clients stayed.
"""


class SecAggError(Exception):
    """The root of every error that a session raises."""


class LocalProtocolError(SecAggError):
    """The caller used a session wrongly: out of order, after an error, with a wrong array."""


class RemoteProtocolError(SecAggError):
    """The other side sent what the protocol does not allow.

    Attributes:
        stage: "advertise", "share", "mask", "check" or "unmask".
        sender: the client at fault; None for the server.
        reason: one line with the value that was wrong.
    """

    def __init__(self, stage: str, sender: int | None, reason: str) -> None:
        super().__init__(str(stage), sender, reason)
        self.stage = str(stage)
        self.sender = sender
        self.reason = reason

    def __str__(self) -> str:
        who = "the server" if self.sender is None else f"client {self.sender}"
        return f"stage {self.stage}, from {who}: {self.reason}"


class ThresholdNotMet(SecAggError):  # noqa: N818 - the protocol's own name for this outcome
    """Too few clients are left to finish the sum; nothing was unmasked.

    Attributes:
        stage: the stage that ended with too few.
        have: how many are left.
        need: how many it takes.
    """

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
    """Bytes that are not the canonical form of the expected message."""


class EncodingError(SecAggError, ValueError):
    """Numbers that the integer grid cannot carry."""
