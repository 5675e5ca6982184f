"""Pairwise-mask secure aggregation: the server learns a sum and nothing else about any client.

Double masking with Shamir recovery (Bonawitz et al., CCS 2017) as two sessions that exchange
bytes. The package does no input or output: a `ServerSession` says what to send to whom, a
`ClientSession` answers.

    server.requests() -> client.advertise -> server.receive, server.close_stage
    server.requests() -> client.share -> ...
    server.requests() -> client.accept_shares, train, encode, client.mask -> ...
    server.requests() -> client.unmask -> ... -> server.result()
"""

from secagg.client import ClientSession
from secagg.encoding import Encoding
from secagg.errors import (
    DecodeError,
    EncodingError,
    LocalProtocolError,
    RemoteProtocolError,
    SecAggError,
    ThresholdNotMet,
)
from secagg.parameters import RoundParameters, threshold_for
from secagg.policy import ClientPolicy
from secagg.prg import add_masks, keystream
from secagg.server import MaskedSum, ServerSession
from secagg.stages import ClientStage, Stage

__all__ = [
    "ClientPolicy",
    "ClientSession",
    "ClientStage",
    "DecodeError",
    "Encoding",
    "EncodingError",
    "LocalProtocolError",
    "MaskedSum",
    "RemoteProtocolError",
    "RoundParameters",
    "SecAggError",
    "ServerSession",
    "Stage",
    "ThresholdNotMet",
    "add_masks",
    "keystream",
    "threshold_for",
]
