"""Tests of a lying server: a client refuses what is forged, replayed, swapped or cut, and says so."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from secagg import (
    ClientPolicy,
    ClientSession,
    ClientStage,
    Identity,
    RemoteProtocolError,
    ServerSession,
    Stage,
    ThresholdNotMet,
    threshold_for,
)
from secagg.crypto.signatures import is_signed, keys_statement, survivors_statement
from secagg.protocol.sum_messages import (
    AdvertiseReply,
    AdvertiseRequest,
    CheckReply,
    CheckRequest,
    ShareRequest,
    UnmaskReply,
    UnmaskRequest,
    hash_parameters,
)
from testing.secagg_sums import ACTIVE, IDENTITIES, IDS, POLICY, ROSTER, Joined, make_parameters

VICTIM, OTHER = IDS[0], IDS[1]
STAGES = (Stage.ADVERTISE, Stage.SHARE, Stage.MASK, Stage.CHECK, Stage.UNMASK)


def active(num_clients: int = 6, **changes: Any) -> Joined:
    return Joined(make_parameters(num_clients, **(ACTIVE | changes)))


def at(stage: Stage, **changes: Any) -> tuple[Joined, ClientSession, bytes]:
    joined = active(**changes)
    joined.exchange_until(stage)
    return joined, joined.clients[VICTIM], joined.server.requests()[VICTIM]


def assert_refused(
    call: Callable[[bytes], object], data: bytes, blame: tuple[Stage, int | None], match: str
) -> None:
    with pytest.raises(RemoteProtocolError, match=match) as caught:
        call(data)
    assert (caught.value.stage, caught.value.sender) == blame


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("lost", [0, 1])
def test_sum_is_exact(stage: Stage, lost: int) -> None:
    joined = active(7, threshold=5)
    result = joined.run({stage: tuple(joined.clients)[1 : 1 + lost]})
    assert np.array_equal(result.total, joined.expected(result.survivors))
    if not lost:
        assert all(client.stage is ClientStage.CLOSED for client in joined.clients.values())


def test_identity_comes_from_outside_the_saved_session() -> None:
    joined = Joined(make_parameters(6, **ACTIVE), serialise=True)
    result = joined.run({Stage.MASK: [OTHER]})
    assert np.array_equal(result.total, joined.expected(result.survivors))


def test_both_ends_move_together() -> None:
    joined = active()
    after = (
        ClientStage.ADVERTISED,
        ClientStage.SHARED,
        ClientStage.MASKED,
        ClientStage.CHECKED,
        ClientStage.CLOSED,
    )
    for stage, client_stage in zip(STAGES, after, strict=True):
        assert joined.server.stage is stage
        joined.exchange()
        assert joined.clients[VICTIM].stage is client_stage


def test_too_few_signatures_end_the_sum() -> None:
    with pytest.raises(ThresholdNotMet) as caught:
        active().run({Stage.CHECK: IDS[:2]})
    assert (caught.value.stage, caught.value.have, caught.value.need) == ("check", 4, 5)


def test_replaced_keys_name_their_owner() -> None:
    """A client refuses keys that the server put in another client's place, whatever their signature."""
    joined, _, request = at(Stage.SHARE)
    told = ShareRequest.decode(request)
    eve = AdvertiseReply.decode(
        Joined.new_client(OTHER, seed=9).advertise(AdvertiseRequest(joined.parameters, OTHER).encode())
    )
    members = {**told.members, OTHER: eve.keys.to_bytes()}
    by_another = IDENTITIES[IDS[10]].sign(b"anything")
    for signature in (told.signatures[OTHER], bytes(64), by_another):
        _, client, _ = at(Stage.SHARE)
        lie = ShareRequest(members, {**told.signatures, OTHER: signature}).encode()
        assert_refused(client.share, lie, (Stage.SHARE, OTHER), "not signed")


def test_keys_of_an_earlier_sum_are_refused() -> None:
    """A client refuses another client's keys from an earlier sum, even with the signature of that sum."""
    old = active(label="run/round 0/group 0")
    old.exchange()
    told_before = ShareRequest.decode(old.server.requests()[VICTIM])
    _, client, request = at(Stage.SHARE)
    told = ShareRequest.decode(request)
    lie = ShareRequest(
        {**told.members, OTHER: told_before.members[OTHER]},
        {**told.signatures, OTHER: told_before.signatures[OTHER]},
    )
    assert_refused(client.share, lie.encode(), (Stage.SHARE, OTHER), "not signed")


def test_swapped_keys_are_refused() -> None:
    _, client, request = at(Stage.SHARE)
    told = ShareRequest.decode(request)
    a, b = IDS[1], IDS[2]
    lie = ShareRequest(
        {**told.members, a: told.members[b], b: told.members[a]},
        {**told.signatures, a: told.signatures[b], b: told.signatures[a]},
    )
    assert_refused(client.share, lie.encode(), (Stage.SHARE, min(a, b)), "not signed")


def test_missing_signatures_and_strangers_are_refused() -> None:
    _, client, request = at(Stage.SHARE)
    told = ShareRequest.decode(request)
    cut = {i: signature for i, signature in told.signatures.items() if i != OTHER}
    assert_refused(client.share, ShareRequest(told.members, cut).encode(), (Stage.SHARE, OTHER), "missing")
    joined, client, request = at(Stage.SHARE)
    told, stranger = ShareRequest.decode(request), IDS[30]
    members = {i: keys for i, keys in told.members.items() if i != OTHER} | {stranger: told.members[OTHER]}
    signed = {i: signature for i, signature in told.signatures.items() if i != OTHER}
    statement = keys_statement(
        ROSTER.digest, hash_parameters(joined.parameters), stranger, told.members[OTHER]
    )
    signed[stranger] = Identity(bytes(32)).sign(statement)
    assert_refused(
        client.share, ShareRequest(members, signed).encode(), (Stage.SHARE, stranger), "not signed"
    )


def test_two_survivor_lists_get_one_signature() -> None:
    joined, client, request = at(Stage.CHECK, num_clients=8, threshold=5)
    client.check(request)
    told = CheckRequest.decode(request)
    other_list = tuple(i for i in told.survivors if i != OTHER)
    lie = CheckRequest(told.sid, other_list).encode()
    assert_refused(client.check, lie, (Stage.CHECK, None), "answered once")
    assert client.stage is ClientStage.ERROR
    assert joined.server.stage is Stage.CHECK


def test_unmasking_other_survivors_than_signed_is_refused() -> None:
    _, client, request = at(Stage.UNMASK, num_clients=8, threshold=5)
    told = UnmaskRequest.decode(request)
    lie = replace(told, survivors=tuple(i for i in told.survivors if i != OTHER), dropped=(OTHER,))
    assert_refused(client.unmask, lie.encode(), (Stage.UNMASK, None), "other survivors")


def test_a_minority_told_another_list_cannot_be_unmasked() -> None:
    """By telling three of eight clients another list of survivors, the server cannot unmask anybody."""
    joined, _, request = at(Stage.CHECK, num_clients=8, threshold=6)
    told = CheckRequest.decode(request)
    shorter = replace(told, survivors=tuple(i for i in told.survivors if i != OTHER))
    fooled, signatures = IDS[2:5], {}
    for client_id, client in joined.clients.items():
        lie = shorter if client_id in fooled else told
        if client_id != OTHER:
            signatures[client_id] = CheckReply.decode(client.check(lie.encode())).signature
    own = {i: signatures[i] for i in fooled}
    for given, match in ((own, "3 signatures"), (signatures, "does not fit")):
        client = joined.clients[IDS[2] if given is own else IDS[3]]
        lie_request = UnmaskRequest(told.sid, shorter.survivors, (OTHER,), signatures=given).encode()
        with pytest.raises(RemoteProtocolError, match=match):
            client.unmask(lie_request)


@pytest.mark.parametrize("kind", ["cut", "forged", "swapped", "stranger"])
def test_signatures_of_survivors_are_verified(kind: str) -> None:
    _, client, request = at(Stage.UNMASK)
    told = UnmaskRequest.decode(request)
    signatures = dict(told.signatures)
    blame: int | None = OTHER
    if kind == "cut":
        signatures = dict(list(signatures.items())[:3])
        blame = None
    elif kind == "forged":
        signatures[OTHER] = signatures[OTHER][:-1] + bytes([signatures[OTHER][-1] ^ 1])
    elif kind == "swapped":
        a, b = sorted(signatures)[:2]
        signatures[a], signatures[b] = signatures[b], signatures[a]
        blame = a
    else:
        statement = survivors_statement(
            ROSTER.digest, told.sid, tuple(sorted(told.survivors)), told.survivors
        )
        blame = IDS[9]
        signatures[blame] = IDENTITIES[blame].sign(statement)
    lie = replace(told, signatures=signatures).encode()
    assert_refused(client.unmask, lie, (Stage.UNMASK, blame), "signature")


def test_unmask_before_check_is_refused() -> None:
    joined, client, _ = at(Stage.CHECK)
    early = UnmaskRequest(client._state.sid, tuple(sorted(joined.clients)), ())
    assert_refused(client.unmask, early.encode(), (Stage.UNMASK, None), "masked")


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("cut", [0, 1, 17, -1, -20, -90])
def test_truncated_messages(stage: Stage, cut: int) -> None:
    joined, _, request = at(stage)
    with pytest.raises(RemoteProtocolError) as caught:
        joined.answer(VICTIM, request[:cut])
    assert (caught.value.stage, caught.value.sender) == (stage, None)
    reply = joined.answer(OTHER, joined.server.requests()[OTHER])
    with pytest.raises(RemoteProtocolError) as caught:
        joined.server.receive(OTHER, reply[:cut])
    assert (caught.value.stage, caught.value.sender) == (stage, OTHER)


def test_a_downgrade_is_refused() -> None:
    """A client that requires signatures refuses a sum without them."""
    policy = ClientPolicy(minimum_cohort=2, maximum_dropout_fraction=0.5, mode="active")
    client = ClientSession(VICTIM, policy, identity=IDENTITIES[VICTIM], roster=ROSTER)
    request = AdvertiseRequest(make_parameters(), VICTIM).encode()
    assert_refused(client.advertise, request, (Stage.ADVERTISE, None), "mode curious")


def test_a_client_without_identity_refuses() -> None:
    client = ClientSession(VICTIM, POLICY)
    request = AdvertiseRequest(make_parameters(**ACTIVE), VICTIM).encode()
    assert_refused(client.advertise, request, (Stage.ADVERTISE, None), "no identity")


def test_the_roster_must_know_this_client() -> None:
    with pytest.raises(ValueError, match="register it first"):
        ClientSession(VICTIM, POLICY, identity=IDENTITIES[OTHER], roster=ROSTER)


def test_the_server_needs_everybody_in_the_roster() -> None:
    with pytest.raises(ValueError, match="not in the roster"):
        ServerSession(make_parameters(**ACTIVE), IDS[:6])


def test_the_server_drops_bad_signatures() -> None:
    joined = active(7, threshold=5)
    reply = AdvertiseReply.decode(joined.answer(OTHER, joined.server.requests()[OTHER]))
    with pytest.raises(RemoteProtocolError, match="not signed") as caught:
        joined.server.receive(OTHER, replace(reply, signature=bytes(64)).encode())
    assert (caught.value.stage, caught.value.sender) == ("advertise", OTHER)
    joined.exchange_until(Stage.CHECK)
    third = IDS[2]
    check = CheckReply.decode(joined.answer(third, joined.server.requests()[third]))
    with pytest.raises(RemoteProtocolError, match="does not fit") as caught:
        joined.server.receive(third, replace(check, signature=bytes(64)).encode())
    assert (caught.value.stage, caught.value.sender) == ("check", third)


def test_lowest_threshold_leaves_no_two_quorums() -> None:
    for num_clients in range(4, 40):
        for corrupt in range(num_clients // 4):
            threshold = threshold_for(num_clients, 0.5, corrupt=corrupt, mode="active")
            assert 2 * threshold > num_clients + corrupt
            with pytest.raises(ValueError, match="use more"):
                make_parameters(
                    num_clients,
                    mode="active",
                    threshold=(num_clients + corrupt) // 2,
                    corrupt_tolerance=corrupt,
                    dropout_tolerance=0,
                )


def test_ed25519() -> None:
    """Ed25519 signatures agree with test 2 of RFC 8032, section 7.1."""
    h = bytes.fromhex
    identity = Identity(h("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb"))
    public = h("3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c")
    signature = h(
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
    )
    assert identity.public_bytes() == public
    assert identity.sign(b"\x72") == signature
    assert is_signed(public, signature, b"\x72")
    assert not is_signed(public, signature, b"\x73")
    assert not is_signed(b"\xff" * 32, signature, b"\x72")
    assert "4ccd" not in repr(identity)


def test_replies_hold_no_second_secret() -> None:
    joined, client, request = at(Stage.UNMASK)
    reply = UnmaskReply.decode(client.unmask(request))
    assert not reply.seed_shares.keys() & reply.key_shares.keys()
    assert joined.server.stage is Stage.UNMASK
