"""Tests of the roster of identities: lying servers, false members, other consortia and damaged files."""

import json
from hashlib import sha256
from typing import Any

import pytest

from secagg import ClientSession, Identity, RemoteProtocolError, Roster, RosterError, ServerSession, Stage
from secagg.crypto.signatures import is_signed, join_statement, keys_statement
from secagg.protocol.sum_messages import AdvertiseReply, ShareRequest, hash_parameters
from testing.secagg_sums import ACTIVE, IDENTITIES, IDS, POLICY, ROSTER, Joined, make_parameters

VICTIM, OTHER = IDS[0], IDS[1]
MEMBERS = IDS[:6]
CONSORTIUM = Identity(sha256(b"consortium").digest())
KEY = CONSORTIUM.public_bytes()
SMALL = Roster({i: ROSTER[i] for i in MEMBERS})
SIGNED = SMALL.signed_by(CONSORTIUM)


def made_up(client_id: int) -> Identity:
    """Return an identity that the server has made up for a client that does not exist."""
    return Identity(sha256(f"made up {client_id}".encode()).digest())


def test_a_signed_roster_is_read_as_it_was_written() -> None:
    assert Roster.from_signed(SIGNED, KEY) == SMALL
    assert dict(SMALL) == {i: ROSTER[i] for i in MEMBERS}
    assert list(SMALL) == sorted(MEMBERS)


def test_the_digest_is_of_the_whole_content_and_of_no_order() -> None:
    keys = dict(SMALL)
    backwards = Roster(dict(sorted(keys.items(), reverse=True)))
    assert (backwards, backwards.digest) == (SMALL, SMALL.digest)
    swapped = {**keys, VICTIM: keys[OTHER], OTHER: keys[VICTIM]}
    fewer = {i: key for i, key in keys.items() if i != OTHER}
    renamed = {**fewer, OTHER + 1: keys[OTHER]}
    digests = {Roster(each).digest for each in (keys, swapped, fewer, renamed)}
    assert len(digests) == 4


def test_the_published_digest() -> None:
    """A roster's digest is SHA-256 of a label, the number of clients, and each id and key, big-endian."""
    text = b"secagg/3/roster" + bytes.fromhex("00000000000000010000000000000007") + bytes(range(32))
    assert Roster({7: bytes(range(32))}).digest == sha256(text).digest()


def test_a_roster_never_changes() -> None:
    keys = dict(SMALL)
    roster = Roster(keys)
    keys[VICTIM] = bytes(32)
    assert roster == SMALL
    with pytest.raises(TypeError):
        roster[VICTIM] = bytes(32)  # type: ignore[index]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({1: ROSTER[VICTIM], 2: ROSTER[VICTIM]}, "clients 1 and 2 have one key"),
        ({1: ROSTER[VICTIM][:31]}, "the key of client 1 has 31 bytes, not 32"),
        ({-1: ROSTER[VICTIM]}, "client -1 is not an id"),
        ({2**64: ROSTER[VICTIM]}, "is not an id: use 0 to 2\\*\\*64 - 1"),
    ],
)
def test_what_is_no_roster(keys: dict[int, bytes], words: str) -> None:
    with pytest.raises(RosterError, match=words):
        Roster(keys)


def test_a_roster_that_is_altered_by_one_byte_is_refused() -> None:
    """A roster is refused if any bit is altered, unless the alteration leaves its content the same."""
    for place in range(len(SIGNED)):
        for bit in (1, 2, 16, 32):
            altered = bytearray(SIGNED)
            altered[place] ^= bit
            try:
                read = Roster.from_signed(bytes(altered), KEY)
            except RosterError:
                continue
            assert read == SMALL
            assert json.loads(altered) == json.loads(SIGNED)


def test_a_roster_of_another_consortium_is_refused() -> None:
    for foreign in (made_up(0), IDENTITIES[VICTIM]):
        with pytest.raises(RosterError, match="not signed by the consortium with key"):
            Roster.from_signed(SMALL.signed_by(foreign), KEY)


def test_the_consortiums_signature_under_another_roster_is_refused() -> None:
    smaller = Roster({i: key for i, key in SMALL.items() if i != OTHER})
    content = json.loads(smaller.signed_by(CONSORTIUM))
    content["signature"] = json.loads(SIGNED)["signature"]
    with pytest.raises(RosterError, match="not signed"):
        Roster.from_signed(json.dumps(content).encode(), KEY)


def changed(**values: Any) -> bytes:
    return json.dumps(json.loads(SIGNED) | values).encode()


NAMED_TWICE = SIGNED.replace(b'"clients": {', b'"clients": {\n  "3": "00",', 1)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "it is not JSON"),
        (b"\xff", "it is not JSON"),
        (b"[" * 100_000, "it is not JSON"),
        (b"[]", "must hold clients, date, number, signature, version and nothing else"),
        (changed(more=1), "and nothing else"),
        (changed(clients=[]), "and nothing else"),
        (changed(version=2), "version 2, not 1"),
        (changed(version=True), "version True, not 1"),
        (changed(version=1.0), "version 1.0, not 1"),
        (changed(number=-1), "its number is -1"),
        (changed(number=True), "its number is True"),
        (changed(number=1), "not signed by the consortium"),
        (changed(date="2026-11-24"), "not signed by the consortium"),
        (changed(date="24.11.2026"), "its date is '24.11.2026': write YYYY-MM-DD"),
        (changed(signature=None), "the signature is not 64 bytes"),
        (changed(signature="0" * 126), "the signature is not 64 bytes"),
        (changed(clients={"3": 5}), "the key of client 3 is not 32 bytes"),
        (changed(clients={"3": ROSTER[VICTIM].hex().upper()}), "in lower-case hexadecimal"),
        (changed(clients={"03": ROSTER[VICTIM].hex()}), "'03' is not a client id"),
        (changed(clients={"-3": ROSTER[VICTIM].hex()}), "'-3' is not a client id"),
        (changed(clients={"9" * 20: ROSTER[VICTIM].hex()}), "is not an id"),
        (
            changed(clients={"1": ROSTER[VICTIM].hex(), "2": ROSTER[VICTIM].hex()}),
            "clients 1 and 2 have one key",
        ),
        (NAMED_TWICE, "a name stands in it twice"),
    ],
)
def test_a_file_of_another_form_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(RosterError, match=words):
        Roster.from_signed(data, KEY)


def advertised(client: ClientSession, server: ServerSession) -> AdvertiseReply:
    return AdvertiseReply.decode(client.advertise(server.requests()[client.client_id]))


def test_a_server_that_invents_a_roster_finds_no_victim() -> None:
    """A client refuses a sum in which the server has invented all other members and signs for them."""
    parameters = make_parameters(6, **ACTIVE)
    invented = Roster({i: made_up(i).public_bytes() for i in MEMBERS} | {VICTIM: ROSTER[VICTIM]})
    server = ServerSession(parameters, MEMBERS, invented)
    victim = ClientSession(VICTIM, POLICY, identity=IDENTITIES[VICTIM], roster=ROSTER)
    replies = {VICTIM: advertised(victim, server)}
    for i in MEMBERS[1:]:
        puppet = ClientSession(i, POLICY, identity=made_up(i), roster=invented)
        replies[i] = advertised(puppet, server)
    # The puppets could also sign under the victim's roster: its digest is no secret.
    hashed = hash_parameters(parameters)
    for digest in (invented.digest, ROSTER.digest):
        signatures = {VICTIM: replies[VICTIM].signature}
        for i in MEMBERS[1:]:
            statement = keys_statement(digest, hashed, i, replies[i].keys.to_bytes())
            signatures[i] = made_up(i).sign(statement)
        lie = ShareRequest({i: reply.keys.to_bytes() for i, reply in replies.items()}, signatures).encode()
        saved = victim.to_bytes()
        with pytest.raises(RemoteProtocolError, match="not signed by its identity"):
            victim.share(lie)
        victim = ClientSession.from_bytes(saved, POLICY, identity=IDENTITIES[VICTIM], roster=ROSTER)


def other_roster() -> Roster:
    """Return a roster with the keys of all members, and with one more client that is in no sum."""
    return Roster({**ROSTER, 2**50: made_up(0).public_bytes()})


def test_two_rosters_in_one_sum_refuse_each_other() -> None:
    """Client and server refuse each other if only their rosters differ, and no key or signature is false."""
    joined = Joined(make_parameters(6, **ACTIVE))
    other = ClientSession(OTHER, POLICY, identity=IDENTITIES[OTHER], roster=other_roster())
    request = joined.server.requests()[OTHER]
    answer = other.advertise(request)
    with pytest.raises(RemoteProtocolError, match="not signed by its identity"):
        joined.server.receive(OTHER, answer)
    # A server that passes it on all the same finds that neither side takes the other's keys.
    joined.exchange(silent=[OTHER])
    told = ShareRequest.decode(joined.server.requests()[VICTIM])
    reply = AdvertiseReply.decode(answer)
    lie = ShareRequest(
        {**told.members, OTHER: reply.keys.to_bytes()}, {**told.signatures, OTHER: reply.signature}
    ).encode()
    for client in (joined.clients[VICTIM], other):
        with pytest.raises(RemoteProtocolError, match="not signed by its identity"):
            client.share(lie)


def test_a_roster_that_changes_during_a_sum_ends_it_for_that_client() -> None:
    """If a client's roster is replaced during the sum, the server refuses that client's signature."""
    joined = Joined(make_parameters(6, **ACTIVE))
    joined.exchange_until(Stage.CHECK)
    saved = joined.clients[OTHER].to_bytes()
    late = ClientSession.from_bytes(saved, POLICY, identity=IDENTITIES[OTHER], roster=other_roster())
    with pytest.raises(RemoteProtocolError, match="does not fit the survivors"):
        joined.server.receive(OTHER, late.check(joined.server.requests()[OTHER]))


def test_a_signature_of_the_join_serves_once() -> None:
    """A client's signature for joining a run is invalid for another run, challenge, client or roster."""
    run, challenge = "17", bytes(32)
    signature = IDENTITIES[VICTIM].sign(join_statement(run, challenge, VICTIM, ROSTER.digest))
    key = ROSTER[VICTIM]
    assert is_signed(key, signature, join_statement(run, challenge, VICTIM, ROSTER.digest))
    for other in (
        join_statement("18", challenge, VICTIM, ROSTER.digest),
        join_statement(run, bytes(31) + b"\x01", VICTIM, ROSTER.digest),
        join_statement(run, challenge, OTHER, ROSTER.digest),
        join_statement(run, challenge, VICTIM, other_roster().digest),
        join_statement(run, challenge, VICTIM),
        join_statement("1", b"7" + challenge, VICTIM, ROSTER.digest),
    ):
        assert not is_signed(key, signature, other)
    assert not is_signed(ROSTER[OTHER], signature, join_statement(run, challenge, VICTIM, ROSTER.digest))


def test_an_identity_is_the_same_after_a_file() -> None:
    identity = Identity(bytes(range(32)))
    assert Identity.from_pem(identity.to_pem()).public_bytes() == identity.public_bytes()
    for damaged in (
        b"",
        identity.to_pem()[:60],
        b"-----BEGIN PRIVATE KEY-----\n\n-----END PRIVATE KEY-----\n",
    ):
        with pytest.raises(ValueError, match="not an Ed25519 private key"):
            Identity.from_pem(damaged)
