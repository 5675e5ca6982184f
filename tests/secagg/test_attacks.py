"""Tests of lying servers, lying clients and damaged messages: each ends in a typed error."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from secagg import (
    ClientPolicy,
    ClientSession,
    ClientStage,
    LocalProtocolError,
    RemoteProtocolError,
    Stage,
    ThresholdNotMet,
)
from secagg.protocol.sum_messages import (
    AdvertiseReply,
    AdvertiseRequest,
    MaskReply,
    MaskRequest,
    ShareReply,
    ShareRequest,
    UnmaskReply,
    UnmaskRequest,
)
from testing.secagg_sums import IDS, POLICY, Joined, make_parameters

VICTIM, OTHER = IDS[0], IDS[1]
MODEL = b"model".ljust(32)


def joined_at(stage: Stage, **changes: Any) -> tuple[Joined, ClientSession, bytes]:
    joined = Joined(make_parameters(**changes))
    joined.exchange_until(stage)
    return joined, joined.clients[VICTIM], joined.server.requests()[VICTIM]


def assert_refused(call: Callable[[bytes], object], data: bytes, stage: Stage, match: str) -> None:
    with pytest.raises(RemoteProtocolError, match=match) as caught:
        call(data)
    assert caught.value.stage == stage


def test_unmask_twice_is_refused() -> None:
    _, client, request = joined_at(Stage.UNMASK)
    client.unmask(request)
    assert_refused(client.unmask, request, Stage.UNMASK, "closed")
    assert client.stage is ClientStage.ERROR


def test_two_lists_never_reveal_both_secrets_of_one_client() -> None:
    """A server that divides the clients between two lists of survivors gets one secret of a client at most.

    For every split of the holders, at most one of the two secrets gets as many shares as the threshold.
    """
    for told_survived in range(6):
        joined, _, request = joined_at(Stage.UNMASK, dropout_tolerance=2)
        truth = UnmaskRequest.decode(request)
        lie = replace(truth, survivors=tuple(i for i in truth.survivors if i != VICTIM), dropped=(VICTIM,))
        seeds = keys = 0
        for rank, holder in enumerate(i for i in joined.clients if i != VICTIM):
            told = truth if rank < told_survived else lie
            reply = UnmaskReply.decode(joined.clients[holder].unmask(told.encode()))
            assert not reply.seed_shares.keys() & reply.key_shares.keys()
            seeds += VICTIM in reply.seed_shares
            keys += VICTIM in reply.key_shares
        assert min(seeds, keys) < joined.parameters.threshold


@pytest.mark.parametrize(
    ("survivors", "dropped", "match"),
    [
        (IDS[:6], (OTHER,), "both"),
        (IDS[1:6], (VICTIM,), "is not a survivor"),
        (IDS[:5], (), "left out"),
        ((*IDS[:6], 4), (), "no contributor"),
        (IDS[:4], IDS[4:6], "4 survivors, at least 5"),
        ((), (), "is not a survivor"),
    ],
)
def test_false_survivors(survivors: tuple[int, ...], dropped: tuple[int, ...], match: str) -> None:
    _, client, request = joined_at(Stage.UNMASK)
    sid = UnmaskRequest.decode(request).sid
    lie = UnmaskRequest(sid, tuple(sorted(survivors)), tuple(sorted(dropped))).encode()
    assert_refused(client.unmask, lie, Stage.UNMASK, match)
    assert_refused_for_good(client, request)


def assert_refused_for_good(client: ClientSession, request: bytes) -> None:
    with pytest.raises(Exception, match="after an error"):
        client.unmask(request)


@pytest.mark.parametrize("survivors", [(VICTIM, VICTIM, *IDS[1:6]), tuple(reversed(IDS[:4]))])
def test_repeated_or_unsorted_ids(survivors: tuple[int, ...]) -> None:
    _, client, request = joined_at(Stage.UNMASK)
    lie = UnmaskRequest(UnmaskRequest.decode(request).sid, survivors, ()).encode()
    assert_refused(client.unmask, lie, Stage.UNMASK, "ascend")


def test_wrong_sid_at_every_later_stage() -> None:
    _, client, request = joined_at(Stage.MASK)
    lie = replace(MaskRequest.decode(request), sid=bytes(32)).encode()
    assert_refused(client.accept_shares, lie, Stage.MASK, "sid")
    _, client, request = joined_at(Stage.UNMASK)
    lie = replace(UnmaskRequest.decode(request), sid=bytes(32)).encode()
    assert_refused(client.unmask, lie, Stage.UNMASK, "sid")


def test_own_keys_exchanged() -> None:
    _, client, request = joined_at(Stage.SHARE)
    members = dict(ShareRequest.decode(request).members)
    members[VICTIM] = bytes([members[VICTIM][0] ^ 1]) + members[VICTIM][1:]
    assert_refused(client.share, ShareRequest(members).encode(), Stage.SHARE, "not its own")


def test_own_keys_missing() -> None:
    _, client, request = joined_at(Stage.SHARE)
    members = dict(ShareRequest.decode(request).members)
    del members[VICTIM]
    assert_refused(client.share, ShareRequest(members).encode(), Stage.SHARE, "not its own")


@pytest.mark.parametrize("source", [VICTIM, OTHER])
def test_one_key_for_two_members(source: int) -> None:
    _, client, request = joined_at(Stage.SHARE)
    members = dict(ShareRequest.decode(request).members)
    members[IDS[3]] = members[source]
    assert_refused(client.share, ShareRequest(members).encode(), Stage.SHARE, "repeats")


def test_key_of_small_order_names_its_owner() -> None:
    _, client, request = joined_at(Stage.SHARE)
    members = dict(ShareRequest.decode(request).members)
    members[OTHER] = members[OTHER][:32] + bytes(32) + members[OTHER][64:]
    with pytest.raises(RemoteProtocolError, match="no secret") as caught:
        client.share(ShareRequest(members).encode())
    assert caught.value.sender == OTHER


@pytest.mark.parametrize("key", [bytes(32), b"\x01" + bytes(31), b"\xff" * 32])
def test_server_drops_an_unsound_key(key: bytes) -> None:
    joined = Joined(make_parameters())
    reply = AdvertiseReply.decode(joined.answer(OTHER, joined.server.requests()[OTHER]))
    bad = replace(reply, keys=replace(reply.keys, mask_key=key)).encode()
    with pytest.raises(RemoteProtocolError, match="unsound") as caught:
        joined.server.receive(OTHER, bad)
    assert caught.value.sender == OTHER


def test_too_few_members() -> None:
    _, client, request = joined_at(Stage.SHARE)
    members = ShareRequest.decode(request).members
    few = {i: members[i] for i in sorted(members)[:3] if i != VICTIM} | {VICTIM: members[VICTIM]}
    assert_refused(client.share, ShareRequest(few).encode(), Stage.SHARE, "members")


def test_too_few_contributors() -> None:
    _, client, request = joined_at(Stage.MASK)
    told = MaskRequest.decode(request)
    kept = sorted(told.sealed)[:2]
    few = {i: told.sealed[i] for i in kept}
    lie = replace(told, sealed=few, contributors=tuple(sorted([*kept, VICTIM]))).encode()
    assert_refused(client.accept_shares, lie, Stage.MASK, "3 contributors")


def test_shares_of_a_stranger() -> None:
    _, client, request = joined_at(Stage.MASK)
    told = MaskRequest.decode(request)
    lie = replace(told, sealed={**told.sealed, 4: told.sealed[OTHER]}).encode()
    assert_refused(client.accept_shares, lie, Stage.MASK, "from 4 missing, or it is not a neighbour")
    _, client, request = joined_at(Stage.MASK)
    told = MaskRequest.decode(request)
    stranger = tuple(sorted((*told.contributors, 2**64 - 2)))
    lie = replace(told, contributors=stranger).encode()
    assert_refused(client.accept_shares, lie, Stage.MASK, "stranger")


def complaints_about(client: ClientSession, told: MaskRequest, sealed: dict[int, bytes]) -> tuple[int, ...]:
    client.accept_shares(replace(told, sealed={**told.sealed, **sealed}).encode())
    assert not set(client.complaints) & client._state.held_shares.keys()
    return client.complaints


def test_altered_sealed_share_is_complained_about() -> None:
    _, client, request = joined_at(Stage.MASK)
    told = MaskRequest.decode(request)
    altered = told.sealed[OTHER][:-1] + bytes([told.sealed[OTHER][-1] ^ 1])
    assert complaints_about(client, told, {OTHER: altered}) == (OTHER,)


def test_swapped_sealed_shares_do_not_open() -> None:
    """Sealed shares that are swapped between two senders do not open, and the client names both senders."""
    _, client, request = joined_at(Stage.MASK)
    told = MaskRequest.decode(request)
    a, b = sorted(IDS[1:3])
    assert complaints_about(client, told, {a: told.sealed[b], b: told.sealed[a]}) == (a, b)


def test_reflected_share_does_not_open() -> None:
    joined = Joined(make_parameters())
    joined.exchange()
    sent: dict[int, ShareReply] = {}

    def note(client_id: int, reply: bytes) -> bytes:
        sent[client_id] = ShareReply.decode(reply)
        return reply

    joined.exchange(alter=note)
    told = MaskRequest.decode(joined.server.requests()[VICTIM])
    assert complaints_about(joined.clients[VICTIM], told, {OTHER: sent[VICTIM].sealed[OTHER]}) == (OTHER,)


def test_a_share_that_does_not_fit_its_commitment_is_complained_about() -> None:
    _, client, request = joined_at(Stage.MASK)
    told = MaskRequest.decode(request)
    other = {**told.commitments, OTHER: bytes(len(told.commitments[OTHER]))}
    client.accept_shares(replace(told, commitments=other).encode())
    assert client.complaints == (OTHER,)


@pytest.mark.parametrize("change", [{"label": "run/round 2/group 0"}, {"noise_multiplier": 0.5}])
def test_clients_told_different_things_do_not_share(change: dict[str, Any]) -> None:
    """The server refuses the answer of a client that was told other parameters than the others."""
    joined = Joined(make_parameters())
    lie = AdvertiseRequest(make_parameters(**change), VICTIM).encode()
    with pytest.raises(RemoteProtocolError, match="other parameters"):
        joined.server.receive(VICTIM, joined.clients[VICTIM].advertise(lie))


def test_clients_with_other_parameters_derive_another_sid() -> None:
    """A client with other parameters has another session id, and is refused even with a forged hash."""
    joined = Joined(make_parameters())
    lie = AdvertiseRequest(make_parameters(noise_multiplier=0.5), VICTIM).encode()
    truth = AdvertiseReply.decode(
        joined.clients[OTHER].advertise(joined.server.requests()[OTHER])
    ).parameters_hash
    forged = replace(AdvertiseReply.decode(joined.clients[VICTIM].advertise(lie)), parameters_hash=truth)
    joined.clients[OTHER] = Joined.new_client(OTHER)
    for client_id, request in joined.server.requests().items():
        honest = client_id != VICTIM
        reply = joined.answer(client_id, request) if honest else forged.encode()
        joined.server.receive(client_id, reply)
    joined.server.close_stage()
    requests = joined.server.requests()
    with pytest.raises(RemoteProtocolError, match="sid"):
        joined.server.receive(VICTIM, joined.answer(VICTIM, requests[VICTIM]))
    joined.server.receive(OTHER, joined.answer(OTHER, requests[OTHER]))


@pytest.mark.parametrize("lost", [(), (IDS[5],)])
def test_a_member_shown_another_model_stays_masked(lost: tuple[int, ...]) -> None:
    """The vector of a member that was shown another model stays masked (Pasquini et al., CCS 2022).

    All vectors are zero, so a mask that cancelled would show; of 20,000 uniform words none is zero. An
    honest server leaves VICTIM out; this one pretends that all was well.
    """

    def total(victims_model: bytes) -> NDArray[np.uint32]:
        joined = Joined(make_parameters(dimension=20_000, noise_multiplier=0.0))
        joined.vectors = {i: np.zeros(20_000, dtype=np.int64) for i in joined.vectors}
        joined.server.bind(MODEL)
        joined.contexts = dict.fromkeys(joined.clients, MODEL) | {VICTIM: victims_model}
        joined.exchange_until(Stage.MASK)

        def pretend(_: int, reply: bytes) -> bytes:
            return replace(MaskReply.decode(reply, 20_000), context=MODEL).encode()

        joined.exchange(lost, pretend)
        return joined.run().total

    assert np.count_nonzero(total(b"another model".ljust(32))) > 19_990
    assert not total(MODEL).any()


def test_a_vector_made_from_another_model_is_left_out() -> None:
    joined = Joined(make_parameters())
    joined.server.bind(MODEL)
    joined.contexts = dict.fromkeys(joined.clients, MODEL) | {VICTIM: bytes(32)}
    joined.exchange_until(Stage.MASK)
    requests = joined.server.requests()
    with pytest.raises(RemoteProtocolError, match="something else") as caught:
        joined.server.receive(VICTIM, joined.answer(VICTIM, requests.pop(VICTIM)))
    assert (caught.value.stage, caught.value.sender) == (Stage.MASK, VICTIM)
    for client_id, request in requests.items():
        joined.server.receive(client_id, joined.answer(client_id, request))
    with pytest.raises(LocalProtocolError, match="bind"):
        joined.server.bind(MODEL)
    joined.server.close_stage()
    result = joined.run()
    assert np.array_equal(result.total, joined.expected(set(joined.clients) - {VICTIM}))


@pytest.mark.parametrize("length", [0, 31, 33])
def test_a_context_of_another_length_is_refused(length: int) -> None:
    joined = Joined(make_parameters())
    with pytest.raises(ValueError, match="32"):
        joined.server.bind(bytes(length))
    joined.contexts = {VICTIM: bytes(length)}
    joined.exchange_until(Stage.MASK)
    with pytest.raises(LocalProtocolError, match="32"):
        joined.answer(VICTIM, joined.server.requests()[VICTIM])


def test_reply_of_an_earlier_round_is_refused() -> None:
    old = Joined(make_parameters(), seed=1)
    old.run()
    joined = Joined(make_parameters(label="run/round 2/group 0"), seed=2)
    joined.exchange_until(Stage.MASK)
    with pytest.raises(RemoteProtocolError, match="sid"):
        joined.server.receive(VICTIM, old.masked[VICTIM])


@pytest.mark.parametrize("stage", [Stage.ADVERTISE, Stage.SHARE, Stage.MASK, Stage.UNMASK])
@pytest.mark.parametrize("cut", [0, 1, 17, -1, -20])
def test_truncated_request_and_reply(stage: Stage, cut: int) -> None:
    joined, _, request = joined_at(stage)
    reply = joined.answer(OTHER, joined.server.requests()[OTHER])
    with pytest.raises(RemoteProtocolError) as caught:
        joined.server.receive(OTHER, reply[:cut])
    assert (caught.value.stage, caught.value.sender) == (stage, OTHER)
    with pytest.raises(RemoteProtocolError) as caught:
        joined.answer(VICTIM, request[:cut])
    assert (caught.value.stage, caught.value.sender) == (stage, None)
    assert joined.clients[VICTIM].stage is ClientStage.ERROR


@pytest.mark.parametrize("stage", [Stage.ADVERTISE, Stage.SHARE, Stage.MASK, Stage.UNMASK])
def test_reply_under_another_name(stage: Stage) -> None:
    joined, _, request = joined_at(stage)
    reply = joined.answer(VICTIM, request)
    with pytest.raises(RemoteProtocolError, match="made by member") as caught:
        joined.server.receive(OTHER, reply)
    assert caught.value.sender == OTHER


@pytest.mark.parametrize("stage", [Stage.ADVERTISE, Stage.SHARE, Stage.MASK, Stage.UNMASK])
def test_message_with_something_after_its_end(stage: Stage) -> None:
    joined, _, request = joined_at(stage)
    with pytest.raises(RemoteProtocolError):
        joined.answer(VICTIM, request + b"\0")


@pytest.mark.parametrize("wrong_holders", [1, 2, 3])
def test_wrong_shares_are_found_and_done_without(wrong_holders: int) -> None:
    joined = Joined(make_parameters(10, threshold=5, dropout_tolerance=2))
    joined.exchange()
    joined.exchange()
    joined.exchange(silent=[IDS[9]])
    liars = sorted(joined.clients)[:wrong_holders]

    def alter(client_id: int, reply: bytes) -> bytes:
        if client_id not in liars:
            return reply
        told = UnmaskReply.decode(reply)
        wrong = {j: bytes([share[0] ^ 1]) + share[1:] for j, share in told.seed_shares.items()}
        return replace(told, seed_shares=wrong).encode()

    joined.exchange(alter=alter)
    result = joined.server.result()
    assert np.array_equal(result.total, joined.expected(result.survivors))
    assert {holder for _, holder in result.bad_shares} == set(liars)


def test_wrong_shares_beyond_the_spare_ones_are_an_error_not_a_sum() -> None:
    joined = Joined(make_parameters(6, threshold=3))
    joined.exchange_until(Stage.UNMASK)

    def alter(client_id: int, reply: bytes) -> bytes:
        told = UnmaskReply.decode(reply)
        wrong = {j: bytes(len(share)) for j, share in told.seed_shares.items()}
        return replace(told, seed_shares=wrong).encode()

    with pytest.raises(ThresholdNotMet) as caught:
        joined.exchange(alter=alter)
    assert (caught.value.have, caught.value.need) == (0, 3)
    assert len(joined.server.blamed) == 5
    assert joined.server.stage is Stage.ERROR


def test_unmask_reply_with_other_shares_than_asked() -> None:
    joined, client, request = joined_at(Stage.UNMASK)
    reply = UnmaskReply.decode(client.unmask(request))
    moved = replace(reply, seed_shares={}, key_shares=reply.seed_shares).encode()
    with pytest.raises(RemoteProtocolError, match="not asked for"):
        joined.server.receive(VICTIM, moved)


@pytest.mark.parametrize(
    ("policy", "match"),
    [
        (ClientPolicy(minimum_cohort=7, maximum_dropout_fraction=0.5), "num_clients 6"),
        (ClientPolicy(minimum_cohort=2, maximum_dropout_fraction=0.1), "dropout_tolerance 1"),
        (
            ClientPolicy(minimum_cohort=2, maximum_dropout_fraction=0.5, minimum_noise_multiplier=1.1),
            "noise_multiplier 1",
        ),
    ],
)
def test_policy(policy: ClientPolicy, match: str) -> None:
    client = ClientSession(VICTIM, policy)
    request = AdvertiseRequest(make_parameters(), VICTIM).encode()
    assert_refused(client.advertise, request, Stage.ADVERTISE, match)
    ClientSession(VICTIM, POLICY).advertise(request)
