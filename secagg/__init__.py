"""Pairwise-mask secure aggregation: the server learns a sum and nothing else about any client.

Double masking with Shamir recovery (Bonawitz et al., CCS 2017) as two sessions that exchange
bytes. The package does no input or output: a `ServerSession` says what to send to whom, a
`ClientSession` answers.

    server.requests() -> client.advertise -> server.receive, server.close_stage
    server.requests() -> client.share -> ...
    server.requests() -> client.accept_shares, train, client.encoding().encode, client.mask -> ...
    server.requests() -> client.check -> ...        (mode "active" only)
    server.requests() -> client.unmask -> ... -> server.result()
"""

from secagg.client import ClientSession
from secagg.encoding import Encoding
from secagg.errors import (
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
from secagg.graph import COMPLETE_BELOW, sparse_degree
from secagg.identity import Identity
from secagg.modulus import modulus_bits_for
from secagg.noise_levels import NoiseLevels
from secagg.parameters import ACTIVE, CURIOUS, SumParameters, threshold_for
from secagg.policy import ClientPolicy
from secagg.prg import add_masks, keystream
from secagg.roster import Roster
from secagg.server import MaskedSum, ServerSession
from secagg.stages import ClientStage, Stage
from secagg.sum_bounds import check_sum, largest_undetected_push

__all__ = [
    "ACTIVE",
    "COMPLETE_BELOW",
    "CURIOUS",
    "Cause",
    "ClientPolicy",
    "ClientSession",
    "ClientStage",
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
    "modulus_bits_for",
    "sparse_degree",
    "threshold_for",
]
