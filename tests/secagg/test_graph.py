"""Tests of sparse graphs of neighbours: published bounds on degrees, the graphs' shape, and whole sums."""

from collections import Counter
from dataclasses import replace
from itertools import combinations, product
from math import comb
from typing import Any

import numpy as np
import pytest

from secagg import Cause, ClientPolicy, RemoteProtocolError, Stage, ThresholdNotMet, sparse_degree
from secagg.protocol import graph as graphs
from secagg.protocol.graph import graph_of, is_correct, is_private
from secagg.protocol.sum_messages import MaskRequest
from testing.secagg_sums import IDS, Joined, make_parameters

SPARSE: dict[str, Any] = {"num_neighbours": 6, "threshold": 4, "dropout_tolerance": 2}


@pytest.mark.parametrize(
    ("num_clients", "fraction", "expected"),
    [(120, 0.1, (24, 13)), (120, 0.2, (46, 25)), (300, 0.1, (36, 21)), (300, 0.2, (74, 41))],
)
def test_degrees(num_clients: int, fraction: float, expected: tuple[int, int]) -> None:
    assert sparse_degree(num_clients, fraction, fraction) == expected


def test_degrees_grow_slowly_and_stay_above_half() -> None:
    for num_clients in (60, 120, 300, 1000):
        degree, threshold = sparse_degree(num_clients, 0.1, 0.1)
        assert degree < 2 * threshold <= 2 * degree
        assert is_correct(num_clients, degree, threshold, num_clients // 10)
    assert sparse_degree(1000, 0.1, 0.1)[0] < 50


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ((30, 0.45, 0.45), "no sparse graph of 30"),
        ((3, 0.1, 0.1), "3 clients"),
        ((120, 1.0, 0.1), "corrupt 1.0"),
    ],
)
def test_impossible_degrees_say_why(values: tuple[int, float, float], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        sparse_degree(*values)


def one_by_one(n: int, degree: int, threshold: int, corrupt: int, dropped: int) -> int:
    """Return the fewest members of a private graph, by one member fewer at a time."""
    members = n
    while members > n - dropped:
        if not graphs.is_private(members - 1, degree, threshold, corrupt, dropped - (n - members + 1)):
            break
        members -= 1
    return members


@pytest.mark.parametrize("bits", [1, 3])
def test_the_fewest_members_are_those_of_a_search_one_by_one(
    bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one or three bits of privacy, small graphs are private or not, as large ones are with forty."""
    monkeypatch.setattr(graphs, "PRIVACY_BITS", bits)
    search, found = graphs.fewest_private.__wrapped__, set()
    monkeypatch.setattr(graphs, "is_private", graphs.is_private.__wrapped__)
    for n in range(4, 19):
        for degree in range(2, n - 1, 2):
            for threshold in range(degree // 2 + 1, degree + 1):
                for corrupt, dropped in product(range(n - 1), range(n)):
                    case = n, degree, threshold, corrupt, dropped
                    assert search(*case) == one_by_one(*case), case
                    found.add((search(*case) == n, search(*case) == n - dropped))
    assert len(found) == 4


def test_the_fewest_members_of_a_large_sum_are_found_in_a_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node looks for them when a server names the size of a sum, before it has agreed to anything."""
    degree, threshold = sparse_degree(3000, 0.1, 0.3)
    asked = list[int]()

    def counted(members: int, *others: int) -> bool:
        asked.append(members)
        return is_private(members, *others)

    monkeypatch.setattr(graphs, "is_private", counted)
    found = graphs.fewest_private.__wrapped__(3000, degree, threshold, 300, 900)
    assert len(asked) < 15
    monkeypatch.undo()
    assert found == one_by_one(3000, degree, threshold, 300, 900) < 3000


@pytest.mark.parametrize("marked", range(9))
@pytest.mark.parametrize("draws", range(9))
def test_ways_to_draw_at_least_some_marked_members(marked: int, draws: int) -> None:
    drawn = [len([each for each in some if each < marked]) for some in combinations(range(8), draws)]
    for least in range(draws + 2):
        assert graphs._tail(8, marked, draws, least) == sum(hits >= least for hits in drawn)


def test_bounds_against_a_simulation() -> None:
    """The simulated chance that some client has t = 4 corrupt neighbours lies between its bounds.

    20,000 random graphs: the share is below the union bound n * tail, and above the largest single
    term, each less 5 standard deviations of the estimate.
    """
    n, degree, threshold, corrupt, trials = 20, 6, 4, 5, 20_000
    tail = sum(comb(corrupt, x) * comb(n - 1 - corrupt, degree - x) for x in range(threshold, 6))
    single = tail / comb(n - 1, degree)
    generator = np.random.default_rng(5)
    near = (np.arange(n)[:, None] + np.array([-3, -2, -1, 1, 2, 3])) % n
    bad = np.zeros((trials, n), dtype=bool)
    bad[:, :corrupt] = True
    bad = generator.permuted(bad, axis=1)
    share = (bad[:, near].sum(axis=2) >= threshold).any(axis=1).mean()
    assert single - 0.02 < share < n * single + 0.02
    assert not is_private(n, degree, threshold, corrupt, 0)


def test_ring_shape() -> None:
    members = frozenset(IDS[:21])
    graph = graph_of(b"s" * 32, members, 6)
    assert graph == graph_of(b"s" * 32, members, 6)
    assert graph != graph_of(b"t" * 32, members, 6)
    for member in members:
        near = graph.neighbours(member)
        assert len(near) == 6
        assert member not in near
        assert all(member in graph.neighbours(other) for other in near)
        assert sorted(graph.holders(member).values()) == list(range(1, 8))


def test_ring_order_is_uniform() -> None:
    """In random rings of five members, each of four members is a neighbour of the fifth in half of the rings.

    4,000 graphs: 2,000 +- 32 each; the bound is 5 standard deviations.
    """
    counts = Counter[int]()
    for number in range(4000):
        counts.update(graph_of(number.to_bytes(32, "big"), frozenset(range(5)), 2).neighbours(0))
    assert all(abs(counts[other] - 2000) < 160 for other in range(1, 5))


@pytest.mark.parametrize("num_neighbours", [0, 4, 10])
def test_few_members_make_a_complete_graph(num_neighbours: int) -> None:
    graph = graph_of(b"s" * 32, frozenset(IDS[:5]), num_neighbours)
    assert graph.is_complete
    assert graph.neighbours(IDS[0]) == frozenset(IDS[1:5])


@pytest.mark.parametrize("serialise", [False, True])
@pytest.mark.parametrize("lost", [0, 1, 2])
def test_sum_on_a_sparse_graph(lost: int, serialise: bool) -> None:
    joined = Joined(make_parameters(20, **SPARSE), serialise=serialise)
    result = joined.run({Stage.MASK: IDS[4 : 4 + lost]})
    assert len(result.survivors) == 20 - lost
    assert np.array_equal(result.total, joined.expected(result.survivors))


def test_dropouts_at_any_time_count() -> None:
    joined = Joined(make_parameters(20, **SPARSE))
    result = joined.run({Stage.ADVERTISE: IDS[:1], Stage.SHARE: IDS[1:2]})
    assert np.array_equal(result.total, joined.expected(result.survivors))
    joined = Joined(make_parameters(20, **SPARSE))
    with pytest.raises(ThresholdNotMet) as caught:
        joined.run({Stage.ADVERTISE: IDS[:1], Stage.SHARE: IDS[1:2], Stage.MASK: IDS[2:3]})
    assert (caught.value.stage, caught.value.have, caught.value.need) == ("mask", 17, 18)


def test_a_neighbourhood_that_is_gone_ends_the_sum_before_unmasking() -> None:
    joined = Joined(make_parameters(20, **(SPARSE | {"dropout_tolerance": 4})))
    joined.exchange_until(Stage.MASK)
    gone = sorted(joined.server._state.graph.neighbours(IDS[0]))[:3]
    with pytest.raises(ThresholdNotMet) as caught:
        joined.exchange(silent=gone)
    assert (caught.value.have, caught.value.need) == (14, 16)


def test_another_graph_is_refused() -> None:
    """A client refuses shares of a non-neighbour, and a request that lacks the shares of a neighbour."""
    for change in ("added", "withheld"):
        joined = Joined(make_parameters(20, **SPARSE))
        joined.exchange_until(Stage.MASK)
        told = MaskRequest.decode(joined.server.requests()[IDS[0]])
        sealed = dict(told.sealed)
        taken = sealed.pop(min(sealed))
        if change == "added":
            far = min(set(told.contributors) - set(told.sealed) - {IDS[0]})
            sealed = {**told.sealed, far: taken}
        with pytest.raises(RemoteProtocolError, match="not a neighbour"):
            joined.clients[IDS[0]].accept_shares(replace(told, sealed=sealed).encode())


@pytest.mark.parametrize(("left", "refused"), [(4, False), (3, True)])
def test_too_few_contributing_neighbours_are_refused(left: int, refused: bool) -> None:
    """A client refuses to mask if fewer than t = 4 of its six neighbours contribute to the sum."""
    joined = Joined(make_parameters(20, **(SPARSE | {"dropout_tolerance": 4})))
    joined.exchange_until(Stage.MASK)
    client = joined.clients[IDS[0]]
    told = MaskRequest.decode(joined.server.requests()[IDS[0]])
    gone = sorted(told.sealed)[left:]
    request = replace(
        told,
        contributors=tuple(i for i in told.contributors if i not in gone),
        sealed={i: sealed for i, sealed in told.sealed.items() if i not in gone},
        commitments={i: committed for i, committed in told.commitments.items() if i not in gone},
    )
    assert len(request.contributors) >= joined.parameters.fewest_contributors
    if refused:
        with pytest.raises(RemoteProtocolError) as caught:
            client.accept_shares(request.encode())
        assert (caught.value.stage, caught.value.cause) == ("mask", Cause.MEMBERS)
    else:
        assert client.accept_shares(request.encode()) == len(request.contributors)


def test_each_client_does_the_work_of_its_neighbours_only() -> None:
    joined = Joined(make_parameters(20, **SPARSE))
    joined.exchange_until(Stage.UNMASK)
    assert all(len(client._state.held_shares) == 6 for client in joined.clients.values())


def test_a_client_refuses_too_few_neighbours() -> None:
    """A client refuses a neighbour graph that may reveal updates with a probability above 2**-40."""
    policy = ClientPolicy(minimum_cohort=2, maximum_dropout_fraction=0.5)
    weak = make_parameters(120, num_neighbours=6, threshold=4, dropout_tolerance=12, graph_corrupt=12)
    with pytest.raises(RemoteProtocolError, match="num_neighbours 6"):
        policy.check(weak)
    strong = replace(weak, num_neighbours=24, threshold=13)
    policy.check(strong)
    wary = replace(policy, corrupt_fraction=0.2)
    with pytest.raises(RemoteProtocolError, match="num_neighbours 24"):
        wary.check(strong)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"num_neighbours": 5, "threshold": 4}, "even"),
        ({"num_neighbours": 20, "threshold": 12}, "below 19"),
        ({"num_neighbours": 6, "threshold": 3}, "threshold 3 of 6"),
        ({"num_neighbours": 6, "threshold": 4, "mode": "active"}, "complete graph"),
    ],
)
def test_impossible_graphs(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        make_parameters(20, **changes)


def test_a_ring_too_short_to_be_private_is_refused() -> None:
    """Of 300 members 284 must take part: with fewer, the neighbour graph no longer keeps updates private."""
    parameters = make_parameters(300, num_neighbours=74, threshold=41, dropout_tolerance=60, graph_corrupt=60)
    fewest = parameters.fewest_members
    assert fewest == 284
    assert is_private(fewest, 74, 41, 60, 60 - (300 - fewest))
    assert not is_private(fewest - 1, 74, 41, 60, 60 - (300 - fewest + 1))
    assert make_parameters(300).fewest_members == make_parameters(300).fewest_contributors
