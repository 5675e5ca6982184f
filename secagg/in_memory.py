"""Runs a whole secure sum in one process: to try a setting, to teach, or to test."""

import os
from collections.abc import Collection, Mapping

import numpy as np
import numpy.typing as npt

from secagg.crypto.roster import Roster
from secagg.crypto.signatures import Identity
from secagg.protocol.client_session import ClientSession
from secagg.protocol.parameters import ACTIVE, SumParameters
from secagg.protocol.policy import ClientPolicy
from secagg.protocol.server_session import ServerSession
from secagg.protocol.transitions import Stage
from secagg.sum_errors import LocalProtocolError

KEY_BYTES = 32


def sum_in_memory(
    parameters: SumParameters,
    vectors: Mapping[int, npt.NDArray[np.floating]],
    policy: ClientPolicy | None = None,
    *,
    lost: Collection[int] = (),
) -> tuple[npt.NDArray[np.float64], tuple[int, ...]]:
    """Return the secure sum of vectors, float64[d], and the members that are in it.

    Every member is a real session with keys, shares and masks of its own, and adds no noise: what comes is
    sum_i clip(v_i, C) but for rounding to the grid of the encoding.

    `vectors`: one of float[d] a member. `policy`: what the members agree to; None for any sum of theirs.
    `lost`: members that share their secrets and then answer no more. Raises ThresholdNotMet: more are lost
    than the parameters tolerate. Raises LocalProtocolError: members that are not those of the parameters.
    """
    if len(vectors) != parameters.num_clients:
        raise LocalProtocolError(
            f"{len(vectors)} vectors for num_clients={parameters.num_clients}: give one vector a member"
        )
    policy = policy or ClientPolicy(minimum_cohort=2, maximum_dropout_fraction=0.5, mode=parameters.mode)
    signing = vectors if parameters.mode == ACTIVE else ()
    identities = {number: Identity(os.urandom(KEY_BYTES)) for number in signing}
    roster = Roster({number: identity.public_bytes() for number, identity in identities.items()})
    members = {
        number: ClientSession(number, policy, identity=identities.get(number), roster=roster)
        for number in vectors
    }
    server = ServerSession(parameters, members, roster)
    while not server.done:
        shared = server.stage not in (Stage.ADVERTISE, Stage.SHARE)
        for number, message in server.requests().items():
            if not (shared and number in lost):
                server.receive(
                    number, _answer_of_member(members[number], server.stage, message, vectors[number])
                )
        server.close_stage()
    result = server.result()
    return parameters.encoding(result.num_contributors).decode(result.total), tuple(sorted(result.survivors))


def _answer_of_member(
    session: ClientSession, stage: Stage, message: bytes, vector: npt.NDArray[np.floating]
) -> bytes:
    if stage is Stage.MASK:
        session.accept_shares(message)
        return session.mask(session.encoding().encode(vector))
    answers = {
        Stage.ADVERTISE: session.advertise,
        Stage.SHARE: session.share,
        Stage.CHECK: session.check,
        Stage.UNMASK: session.unmask,
    }
    return answers[stage](message)
