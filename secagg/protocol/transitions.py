"""The order of a secure sum: which calls server and client may make in each stage, and what stage follows.

One table has the calls of both roles in all modes, after the example of h11's `_state.py`. A session refuses
every call that is not in the table. No call is allowed in ERROR. Mode "off" has no entry, since it has no
sessions.
"""

from collections.abc import Mapping
from enum import StrEnum
from itertools import pairwise
from typing import TypedDict, TypeVar

from secagg.protocol.parameters import ACTIVE, CURIOUS


class Stage(StrEnum):
    """The stages of a secure sum at the server (Bonawitz et al., CCS 2017, figure 4), and two final states.

    `CHECK` takes place only if the server may lie.
    """

    ADVERTISE = "advertise"
    SHARE = "share"
    MASK = "mask"
    CHECK = "check"
    UNMASK = "unmask"
    DONE = "done"
    ERROR = "error"


class ClientStage(StrEnum):
    """The last step that a client's session has completed."""

    NEW = "new"
    ADVERTISED = "advertised"
    SHARED = "shared"
    READY = "ready"
    MASKED = "masked"
    CHECKED = "checked"
    CLOSED = "closed"
    ERROR = "error"


AnyStage = TypeVar("AnyStage", Stage, ClientStage)
Calls = Mapping[str, Mapping[AnyStage, AnyStage]]
"""Call -> stage in which the call is allowed -> stage that follows."""


class Transitions(TypedDict):
    """Which calls server and client may make in each stage, by mode of the protocol."""

    client: Mapping[str, Calls[ClientStage]]
    server: Mapping[str, Calls[Stage]]


_C, _S = ClientStage, Stage
_ASKED = (_S.ADVERTISE, _S.SHARE, _S.MASK, _S.UNMASK)
_ASKED_ACTIVE = (_S.ADVERTISE, _S.SHARE, _S.MASK, _S.CHECK, _S.UNMASK)

TRANSITIONS: Transitions = {
    "client": {
        CURIOUS: {
            "advertise": {_C.NEW: _C.ADVERTISED},
            "share": {_C.ADVERTISED: _C.SHARED},
            "accept_shares": {_C.SHARED: _C.READY},
            "mask": {_C.READY: _C.MASKED},
            "unmask": {_C.MASKED: _C.CLOSED},
        },
        ACTIVE: {
            "advertise": {_C.NEW: _C.ADVERTISED},
            "share": {_C.ADVERTISED: _C.SHARED},
            "accept_shares": {_C.SHARED: _C.READY},
            "mask": {_C.READY: _C.MASKED},
            "check": {_C.MASKED: _C.CHECKED},
            "unmask": {_C.CHECKED: _C.CLOSED},
        },
    },
    "server": {
        CURIOUS: {
            "bind": {_S.ADVERTISE: _S.ADVERTISE, _S.SHARE: _S.SHARE, _S.MASK: _S.MASK},
            "requests": {stage: stage for stage in _ASKED},
            "receive": {stage: stage for stage in _ASKED},
            "close_stage": dict(pairwise((*_ASKED, _S.DONE))),
            "result": {_S.DONE: _S.DONE},
        },
        ACTIVE: {
            "bind": {_S.ADVERTISE: _S.ADVERTISE, _S.SHARE: _S.SHARE, _S.MASK: _S.MASK},
            "requests": {stage: stage for stage in _ASKED_ACTIVE},
            "receive": {stage: stage for stage in _ASKED_ACTIVE},
            "close_stage": dict(pairwise((*_ASKED_ACTIVE, _S.DONE))),
            "result": {_S.DONE: _S.DONE},
        },
    },
}


def following(calls: Mapping[str, Calls[AnyStage]], mode: str, call: str, stage: AnyStage) -> AnyStage | None:
    """Return the stage that follows a call, or None if the call is not allowed in this stage."""
    return calls.get(mode, {}).get(call, {}).get(stage)
