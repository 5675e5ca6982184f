"""Pairwise-mask secure aggregation: the server learns a sum and nothing else about any client.

Double masking with Shamir recovery (Bonawitz et al., CCS 2017) as two sessions that exchange bytes. The
package does no input or output: a `ServerSession` says what to send to whom, a `ClientSession` answers.

    server.requests() -> client.advertise -> server.receive, server.close_stage
    server.requests() -> client.share -> ...
    server.requests() -> client.accept_shares, train, client.encoding().encode, client.mask -> ...
    server.requests() -> client.check -> ...        (mode "active" only)
    server.requests() -> client.unmask -> ... -> server.result()
"""

from secagg.arithmetic.encoding import Encoding
from secagg.arithmetic.noise_levels import NO_CORRECTIONS, Contributors, Corrections, NoiseLevels
from secagg.arithmetic.sum_bounds import check_sum, largest_undetected_push
from secagg.crypto.prg import add_masks, keystream
from secagg.crypto.roster import Roster
from secagg.crypto.signatures import Identity
from secagg.in_memory import sum_in_memory
from secagg.protocol.client_session import ClientSession
from secagg.protocol.graph import COMPLETE_BELOW, sparse_degree
from secagg.protocol.parameters import ACTIVE, CURIOUS, OFF, SumParameters
from secagg.protocol.policy import ClientPolicy, threshold_for
from secagg.protocol.server_session import MaskedSum, ServerSession
from secagg.protocol.transitions import ClientStage, Stage
from secagg.sum_errors import (
    Cause,
    DecodeError,
    EncodingError,
    ImplausibleSum,
    LocalProtocolError,
    RemoteProtocolError,
    RosterError,
    SecAggError,
    ThresholdNotMet,
)

__all__ = [
    "ACTIVE",
    "COMPLETE_BELOW",
    "CURIOUS",
    "NO_CORRECTIONS",
    "OFF",
    "Cause",
    "ClientPolicy",
    "ClientSession",
    "ClientStage",
    "Contributors",
    "Corrections",
    "DecodeError",
    "Encoding",
    "EncodingError",
    "Identity",
    "ImplausibleSum",
    "LocalProtocolError",
    "MaskedSum",
    "NoiseLevels",
    "RemoteProtocolError",
    "Roster",
    "RosterError",
    "SecAggError",
    "ServerSession",
    "Stage",
    "SumParameters",
    "ThresholdNotMet",
    "add_masks",
    "check_sum",
    "keystream",
    "largest_undetected_push",
    "sparse_degree",
    "sum_in_memory",
    "threshold_for",
]
