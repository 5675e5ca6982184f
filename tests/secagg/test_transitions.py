"""Tests of the order of calls in a sum: sessions accept the calls in the table of transitions alone."""

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg import (
    Cause,
    ClientSession,
    ClientStage,
    LocalProtocolError,
    RemoteProtocolError,
    SecAggError,
    Stage,
    ThresholdNotMet,
)
from secagg.protocol.transitions import TRANSITIONS, following
from testing.secagg_sums import ACTIVE, IDENTITIES, IDS, POLICY, ROSTER, Joined, make_parameters

MODES = ("curious", "active")
CLIENT = {
    "curious": ("advertise", "share", "accept_shares", "mask", "unmask"),
    "active": ("advertise", "share", "accept_shares", "mask", "check", "unmask"),
}
REACHED = {
    "advertise": ClientStage.ADVERTISED,
    "share": ClientStage.SHARED,
    "accept_shares": ClientStage.READY,
    "mask": ClientStage.MASKED,
    "check": ClientStage.CHECKED,
    "unmask": ClientStage.CLOSED,
}
SERVER = {
    "curious": (Stage.ADVERTISE, Stage.SHARE, Stage.MASK, Stage.UNMASK, Stage.DONE),
    "active": (Stage.ADVERTISE, Stage.SHARE, Stage.MASK, Stage.CHECK, Stage.UNMASK, Stage.DONE),
}
SERVER_CALLS = ("bind", "requests", "receive", "close_stage", "result")
VICTIM = IDS[0]


def joined(mode):
    return Joined(make_parameters(**(ACTIVE if mode == "active" else {})))


@cache
def way_of_a_client(mode):
    """Return a client's requests by call, and its saved sessions: before each call, and after the last."""
    both, requests, rested = joined(mode), {}, []
    client = both.clients[VICTIM]
    for call in CLIENT[mode]:
        if call != "mask":
            requests[call] = both.server.requests()[VICTIM]
        rested.append(client.to_bytes())
        if call == "accept_shares":
            client.accept_shares(requests[call])
        elif call == "mask":
            both.server.receive(VICTIM, both.mask(client))
            for i in IDS[1:6]:
                both.server.receive(i, both.answer(i, both.server.requests()[i]))
            both.server.close_stage()
        else:
            both.exchange()
    return requests, (*rested, client.to_bytes())


def session_after(mode, done):
    """Return a client's session after ``done`` calls; a new session draws the same keys each time."""
    if done == 0:
        return Joined.new_client(VICTIM)
    rested = way_of_a_client(mode)[1][done]
    return ClientSession.from_bytes(rested, POLICY, identity=IDENTITIES[VICTIM], roster=ROSTER)


def call_client(client, mode, call):
    requests = way_of_a_client(mode)[0]
    if call == "mask":
        client.mask(joined(mode).vectors[VICTIM], noise="discrete_gaussian")
    else:
        getattr(client, call)(requests.get(call, b""))


def test_the_table_is_the_written_order():
    assert TRANSITIONS.keys() == {"client", "server"}
    assert TRANSITIONS["client"].keys() == TRANSITIONS["server"].keys() == set(MODES)
    for mode in MODES:
        stages = (ClientStage.NEW, *(REACHED[call] for call in CLIENT[mode]))
        expected = {(call, *stages[at : at + 2]) for at, call in enumerate(CLIENT[mode])}
        assert entries(TRANSITIONS["client"][mode]) == expected
        asked = SERVER[mode][:-1]
        expected = {(call, stage, stage) for call in ("requests", "receive") for stage in asked}
        expected |= {("bind", stage, stage) for stage in asked[:3]}
        expected |= {("close_stage", *SERVER[mode][at : at + 2]) for at in range(len(asked))}
        assert entries(TRANSITIONS["server"][mode]) == expected | {("result", Stage.DONE, Stage.DONE)}


def entries(calls):
    return {(call, stage, after) for call, stages in calls.items() for stage, after in stages.items()}


@given(st.sampled_from(MODES), st.data())
def test_a_client_refuses_every_call_that_is_not_due(mode, data):
    """A client fails at any call that is not due, even if the call's request suits another stage."""
    done = data.draw(st.integers(0, len(CLIENT[mode])))
    client, due = session_after(mode, done), list(CLIENT[mode][done:])
    for call in data.draw(st.lists(st.sampled_from(sorted(REACHED)), min_size=1, max_size=4)):
        stage = client.stage
        assert (following(TRANSITIONS["client"], mode, call, stage) is not None) == (due[:1] == [call])
        if due[:1] == [call]:
            call_client(client, mode, due.pop(0))
            assert client.stage is REACHED[call]
            continue
        with pytest.raises(SecAggError) as caught:
            call_client(client, mode, call)
        by_server = stage is not ClientStage.ERROR and call != "mask"
        assert type(caught.value) is (RemoteProtocolError if by_server else LocalProtocolError)
        assert caught.value.cause is (Cause.OUT_OF_ORDER if by_server else Cause.CALLER)
        assert client.stage is ClientStage.ERROR
        assert_no_secrets(client)
        due = []


def assert_no_secrets(client):
    state = client._state
    assert not any((state.mask_private_key, state.seal_private_key, state.seal_secrets, state.self_seed))
    assert not any((state.base_noise_seed, state.noise_seed, state.held_shares, state.pair_keys))


@given(st.sampled_from(MODES), st.data())
def test_a_server_refuses_every_call_that_is_not_allowed(mode, data):
    """A server refuses calls that its stage does not allow, and stays in that stage."""
    stage = data.draw(st.sampled_from((*SERVER[mode], Stage.ERROR)))
    server, table = server_in(mode, stage), TRANSITIONS["server"]
    missing = [call for call in SERVER_CALLS if following(table, mode, call, stage) is None]
    assert len(missing) >= 1
    for call in data.draw(st.lists(st.sampled_from(missing), min_size=1, max_size=4)):
        with pytest.raises(LocalProtocolError) as caught:
            call_server(server, call)
        assert caught.value.cause is Cause.CALLER
        assert server.stage is stage


def server_in(mode, stage):
    both = joined(mode)
    if stage is Stage.ERROR:
        with pytest.raises(ThresholdNotMet):
            both.exchange(silent=IDS[:6])
    else:
        both.exchange_until(stage)
    return both.server


def call_server(server, call):
    arguments = {"bind": (bytes(32),), "receive": (VICTIM, b"")}
    getattr(server, call)(*arguments.get(call, ()))


def test_no_context_is_bound_once_masked_vectors_come():
    both = joined("curious")
    both.exchange_until(Stage.MASK)
    both.server.bind(bytes(32))
    both.server.receive(VICTIM, both.answer(VICTIM, both.server.requests()[VICTIM]))
    with pytest.raises(LocalProtocolError):
        both.server.bind(bytes(32))
