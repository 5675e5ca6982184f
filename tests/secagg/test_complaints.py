"""Tests of members that seal garbage, complain falsely or reveal wrong shares: the sum still succeeds."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from secagg import MaskedSum, RemoteProtocolError, Stage, ThresholdNotMet
from secagg.protocol.sum_messages import MaskReply, ShareReply, UnmaskReply, UnmaskRequest
from testing.secagg_sums import ACTIVE, IDS, Joined, make_parameters

LIAR, OTHER = IDS[0], IDS[1]
Alter = Callable[[int, bytes], bytes]
GRAPHS: dict[str, dict[str, Any]] = {
    "complete": {"num_clients": 10, "threshold": 6, "dropout_tolerance": 3},
    "active": {"num_clients": 10, "dropout_tolerance": 2, **ACTIVE, "threshold": 7},
    "sparse": {"num_clients": 20, "threshold": 6, "num_neighbours": 8, "dropout_tolerance": 4},
}


def garbage_for(joined: Joined, count: int) -> Alter:
    """Return a change of messages by which LIAR sends `count` neighbours sealed shares that do not open."""

    def alter(client_id: int, data: bytes) -> bytes:
        if client_id != LIAR:
            return data
        reply = ShareReply.decode(data)
        chosen = sorted(reply.sealed)[:count]
        return replace(reply, sealed=reply.sealed | {j: bytes(100) for j in chosen}).encode()

    return alter


def summed(joined: Joined, alter: dict[Stage, Alter]) -> MaskedSum:
    while not joined.server.done:
        honest: Alter = lambda _, reply: reply  # noqa: E731 - the harness takes a function
        joined.exchange(alter=alter.get(joined.server.stage, honest))
    return joined.server.result()


@pytest.mark.parametrize("graph", GRAPHS)
def test_garbage_for_a_few_costs_nobody_anything(graph: str) -> None:
    joined = Joined(make_parameters(**GRAPHS[graph]))
    result = summed(joined, {Stage.SHARE: garbage_for(joined, 2)})
    assert set(result.survivors) == set(joined.clients)
    assert np.array_equal(result.total, joined.expected(result.survivors))
    assert not joined.server.blamed


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("left", [0, 1, 4])
def test_garbage_for_most_loses_its_dealer_and_not_the_sum(graph: str, left: int) -> None:
    """A member whose shares most neighbours cannot open is left out, and the other members' sum is exact."""
    joined = Joined(make_parameters(**GRAPHS[graph]))
    neighbours = GRAPHS[graph].get("num_neighbours", 9)
    result = summed(joined, {Stage.SHARE: garbage_for(joined, neighbours - left)})
    assert set(result.survivors) == set(joined.clients) - {LIAR}
    assert np.array_equal(result.total, joined.expected(result.survivors))
    assert joined.server.blamed == ({LIAR} if 2 * (neighbours - left) > neighbours else set())


@pytest.mark.parametrize("graph", GRAPHS)
def test_complaints_for_nothing_lose_who_makes_them(graph: str) -> None:
    joined = Joined(make_parameters(**GRAPHS[graph]))

    def alter(client_id: int, data: bytes) -> bytes:
        if client_id != LIAR:
            return data
        reply = MaskReply.decode(data, 50)
        return replace(reply, complaints=tuple(sorted(joined.clients[LIAR]._state.held_shares))).encode()

    result = summed(joined, {Stage.MASK: alter})
    assert set(result.survivors) == set(joined.clients) - {LIAR}
    assert np.array_equal(result.total, joined.expected(result.survivors))
    assert joined.server.blamed == {LIAR}


def test_a_few_false_complaints_do_not_exclude_a_chosen_member() -> None:
    """Two false complaints about an honest member do not exclude it from the sum."""
    joined = Joined(make_parameters(**GRAPHS["complete"], corrupt_tolerance=2))
    liars = set(joined.clients) - set(IDS[:8])

    def alter(client_id: int, data: bytes) -> bytes:
        reply = MaskReply.decode(data, 50)
        return replace(reply, complaints=(OTHER,)).encode() if client_id in liars else data

    def keep_silent(client_id: int, data: bytes) -> bytes:
        reply = UnmaskReply.decode(data)
        shares = {j: share for j, share in reply.seed_shares.items() if j != OTHER}
        return replace(reply, seed_shares=shares).encode() if client_id in liars else data

    result = summed(joined, {Stage.MASK: alter, Stage.UNMASK: keep_silent})
    assert OTHER in result.survivors
    assert np.array_equal(result.total, joined.expected(result.survivors))


def test_complaints_that_leave_a_member_out_name_both_sides() -> None:
    """If four of nine holders complain about a member, it is left out, and the server names all five."""
    joined = Joined(make_parameters(**GRAPHS["complete"]))
    liars = set(IDS[6:10])

    def alter(client_id: int, data: bytes) -> bytes:
        reply = MaskReply.decode(data, 50)
        return replace(reply, complaints=(OTHER,)).encode() if client_id in liars else data

    result = summed(joined, {Stage.MASK: alter})
    assert set(result.survivors) == set(joined.clients) - {OTHER}
    assert np.array_equal(result.total, joined.expected(result.survivors))
    assert not joined.server.blamed
    assert joined.server.disputed == {OTHER: liars}


def test_a_complaint_about_a_stranger_loses_its_maker() -> None:
    joined = Joined(make_parameters(**GRAPHS["sparse"]))
    joined.exchange_until(Stage.MASK)
    request = joined.server.requests()[LIAR]
    near = joined.server._state.graph.neighbours(LIAR)
    stranger = min(set(joined.clients) - near - {LIAR})
    reply = MaskReply.decode(joined.answer(LIAR, request), 50)
    with pytest.raises(RemoteProtocolError, match="no neighbour"):
        joined.server.receive(LIAR, replace(reply, complaints=(stranger,)).encode())


@pytest.mark.parametrize("told_dropped", range(1, 10))
def test_two_stories_with_orphans_never_open_one_vector(told_dropped: int) -> None:
    """A lying server calls the victim a survivor to some members, and to others an orphan, which is a lost
    member whose secrets too few survivors hold. The server never opens the victim's vector.

    To open its vector it needs t shares of its seed, and the mask with every honest neighbour. Who gave a
    share of the seed did not give its mask.
    """
    joined = Joined(make_parameters(**GRAPHS["complete"]))
    joined.exchange_until(Stage.UNMASK)
    truth = UnmaskRequest.decode(joined.server.requests()[LIAR])
    victim = IDS[3]
    lie = replace(
        truth,
        survivors=tuple(i for i in truth.survivors if i != victim),
        dropped=(victim,),
        orphans=(victim,),
    )
    seeds, masks = set(), set()
    for rank, holder in enumerate(i for i in joined.clients if i != victim):
        told = lie if rank < told_dropped else truth
        reply = UnmaskReply.decode(joined.clients[holder].unmask(told.encode()))
        assert not (reply.seed_shares.keys() & reply.pair_keys.keys())
        assert not (reply.key_shares.keys() & reply.pair_keys.keys())
        seeds |= {holder} & ({holder} if victim in reply.seed_shares else set())
        masks |= {holder} & ({holder} if victim in reply.pair_keys else set())
    assert not seeds & masks
    assert len(seeds) < joined.parameters.threshold or len(masks) < 9


def test_orphans_are_lost_members_only() -> None:
    joined = Joined(make_parameters())
    joined.exchange_until(Stage.UNMASK)
    truth = UnmaskRequest.decode(joined.server.requests()[LIAR])
    with pytest.raises(RemoteProtocolError, match="orphan"):
        joined.clients[LIAR].unmask(replace(truth, orphans=(OTHER,)).encode())


def test_wrong_shares_are_the_holders_fault_and_cost_nothing() -> None:
    """Holders that reveal wrong shares are blamed, no other member is blamed, and the sum is exact."""
    joined = Joined(make_parameters(40, threshold=27, dropout_tolerance=4, dimension=5))
    liars = set(sorted(joined.clients)[:8])

    def alter(client_id: int, data: bytes) -> bytes:
        if client_id not in liars:
            return data
        reply = UnmaskReply.decode(data)
        return replace(reply, seed_shares={j: bytes(36) for j in reply.seed_shares}).encode()

    joined.exchange_until(Stage.UNMASK)
    joined.exchange(alter=alter)
    result = joined.server.result()
    assert np.array_equal(result.total, joined.expected(result.survivors))
    assert joined.server.blamed == liars


def test_an_orphan_needs_everybody_who_shares_a_mask_with_it() -> None:
    joined = Joined(make_parameters(**GRAPHS["complete"]))
    joined.exchange()
    joined.exchange(alter=garbage_for(joined, 9))
    joined.exchange()
    with pytest.raises(ThresholdNotMet):
        joined.exchange(silent=[OTHER])
