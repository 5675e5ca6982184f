"""The names of the protocol's stages, and where a client's session can stand."""

from enum import StrEnum


class Stage(StrEnum):
    """The exchanges (Bonawitz et al., CCS 2017, figure 4), and the two ends of a sum.

    `CHECK` takes place only where the server may lie.
    """

    ADVERTISE = "advertise"
    SHARE = "share"
    MASK = "mask"
    CHECK = "check"
    UNMASK = "unmask"
    DONE = "done"
    ERROR = "error"


class ClientStage(StrEnum):
    """The last step that a client's session has made."""

    NEW = "new"
    ADVERTISED = "advertised"
    SHARED = "shared"
    READY = "ready"
    MASKED = "masked"
    CHECKED = "checked"
    CLOSED = "closed"
    ERROR = "error"
