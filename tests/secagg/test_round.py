"""Tests of whole rounds between real sessions: the sum is exact, or a typed error is raised."""

import numpy as np
import pytest

from secagg import (
    ClientSession,
    ClientStage,
    LocalProtocolError,
    RemoteProtocolError,
    ServerSession,
    Stage,
    ThresholdNotMet,
)
from testing.secagg_sums import IDS, POLICY, Joined, make_parameters

STAGES = (Stage.ADVERTISE, Stage.SHARE, Stage.MASK, Stage.UNMASK)


@pytest.mark.parametrize("suite", ["aes128ctr", "aes256ctr", "chacha20"])
@pytest.mark.parametrize("num_clients", [2, 3, 6])
def test_sum_is_exact(suite: str, num_clients: int) -> None:
    tolerance = 0 if num_clients < 4 else 1
    joined = Joined(make_parameters(num_clients, suite=suite, dropout_tolerance=tolerance))
    result = joined.run()
    assert np.array_equal(result.total, joined.expected(joined.clients))
    assert result.survivors == tuple(sorted(joined.clients))
    assert (result.num_contributors, result.dropped) == (num_clients, ())
    assert all(client.stage is ClientStage.CLOSED for client in joined.clients.values())


def test_both_ends_move_together() -> None:
    joined = Joined(make_parameters())
    client = joined.clients[IDS[0]]
    after = (ClientStage.ADVERTISED, ClientStage.SHARED, ClientStage.MASKED, ClientStage.CLOSED)
    for stage, client_stage in zip(STAGES, after, strict=True):
        assert joined.server.stage is stage
        joined.exchange()
        assert client.stage is client_stage
    assert joined.server.done


def test_large_vector_crosses_chunks() -> None:
    joined = Joined(make_parameters(3, dropout_tolerance=0, dimension=200_003))
    assert np.array_equal(joined.run().total, joined.expected(joined.clients))


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("lost", [0, 1, 2, 3])
def test_dropout_at_every_stage(stage: Stage, lost: int) -> None:
    # n = 8, k = 7, t = 4, D = 2: three lost is one more than is tolerated.
    joined = Joined(make_parameters(8, dropout_tolerance=2))
    silent = tuple(joined.clients)[1 : 1 + lost]
    if stage is Stage.MASK and lost > 2:
        with pytest.raises(ThresholdNotMet) as caught:
            joined.run({stage: silent})
        assert (caught.value.stage, caught.value.have, caught.value.need) == ("mask", 5, 6)
        assert joined.server.stage is Stage.ERROR
        return
    result = joined.run({stage: silent})
    gone = () if stage is Stage.UNMASK else silent
    assert result.survivors == tuple(sorted(set(joined.clients) - set(gone)))
    assert result.dropped == tuple(sorted(gone))
    contributors = 8 - (lost if stage in (Stage.ADVERTISE, Stage.SHARE) else 0)
    assert result.num_contributors == contributors
    assert np.array_equal(result.total, joined.expected(result.survivors))


@pytest.mark.parametrize("stage", STAGES)
def test_too_few_is_an_error_at_every_stage(stage: Stage) -> None:
    joined = Joined(make_parameters(8, dropout_tolerance=2))
    with pytest.raises(ThresholdNotMet) as caught:
        joined.run({stage: tuple(joined.clients)[:5]})
    assert caught.value.stage == stage
    assert caught.value.have < caught.value.need
    with pytest.raises(LocalProtocolError):
        joined.server.requests()
    with pytest.raises(LocalProtocolError):
        joined.server.result()


def test_dropouts_at_several_stages() -> None:
    joined = Joined(make_parameters(10, dropout_tolerance=2))
    a, b, c, d, *_ = joined.clients
    result = joined.run({Stage.ADVERTISE: [a], Stage.SHARE: [b], Stage.MASK: [c], Stage.UNMASK: [d]})
    assert (result.num_contributors, len(result.survivors)) == (8, 7)
    assert np.array_equal(result.total, joined.expected(result.survivors))


def test_state_survives_between_messages() -> None:
    joined = Joined(make_parameters(8, dropout_tolerance=2), serialise=True)
    result = joined.run({Stage.MASK: [IDS[2]]})
    assert np.array_equal(result.total, joined.expected(result.survivors))


def test_noise_of_accepted_survivors_is_never_below_the_plan() -> None:
    for tolerance in range(4):
        for corrupt in range(3):
            parameters = make_parameters(
                10,
                dropout_tolerance=tolerance,
                corrupt_tolerance=corrupt,
                clipping_norm=2.0,
                noise_multiplier=1.5,
                dimension=3,
            )
            for contributors in range(parameters.fewest_contributors, 11):
                variance = parameters.client_noise_stddev(contributors) ** 2
                for survivors in range(contributors - tolerance, contributors + 1):
                    assert (survivors - corrupt) * variance >= (2.0 * 1.5) ** 2 * (1 - 1e-12)


def test_first_answer_stands_when_repeated() -> None:
    joined = Joined(make_parameters())
    joined.exchange_until(Stage.MASK)
    for client_id, request in joined.server.requests().items():
        reply = joined.answer(client_id, request)
        joined.server.receive(client_id, reply)
        with pytest.raises(RemoteProtocolError) as caught:
            joined.server.receive(client_id, reply)
        assert (caught.value.stage, caught.value.sender) == ("mask", client_id)
    joined.server.close_stage()
    assert np.array_equal(joined.run().total, joined.expected(joined.clients))


def test_sender_of_garbage_is_dropped_and_the_round_goes_on() -> None:
    joined = Joined(make_parameters())
    with pytest.raises(RemoteProtocolError) as caught:
        joined.server.receive(IDS[0], b"garbage")
    assert (caught.value.stage, caught.value.sender) == ("advertise", IDS[0])
    with pytest.raises(RemoteProtocolError):
        joined.server.receive(12345, b"from nobody")
    assert IDS[0] not in joined.server.requests()
    result = joined.run()
    assert result.dropped == (IDS[0],)
    assert np.array_equal(result.total, joined.expected(result.survivors))


@pytest.mark.parametrize("ids", [IDS[:5], IDS[:7], (*IDS[:5], IDS[0]), (*IDS[:5], 2**64)])
def test_server_refuses_wrong_members(ids: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="ids"):
        ServerSession(make_parameters(6), ids)


def test_client_refuses_a_wrong_vector_and_stays_failed() -> None:
    joined = Joined(make_parameters())
    joined.exchange_until(Stage.MASK)
    client = joined.clients[IDS[0]]
    client.accept_shares(joined.server.requests()[IDS[0]])
    with pytest.raises(LocalProtocolError, match="int64"):
        client.mask(np.zeros(50, dtype=np.uint32))
    with pytest.raises(LocalProtocolError, match="after an error"):
        client.mask(joined.vectors[IDS[0]])


def test_a_session_chooses_no_law_of_noise() -> None:
    """A session that is given no noise refuses to mask, because the caller must choose the law of noise."""
    joined = Joined(make_parameters())
    joined.exchange_until(Stage.MASK)
    client = joined.clients[IDS[0]]
    client.accept_shares(joined.server.requests()[IDS[0]])
    with pytest.raises(
        LocalProtocolError, match='none is given: give noise=..., or noise="discrete_gaussian"'
    ):
        client.mask(joined.vectors[IDS[0]])


def test_no_second_masked_vector() -> None:
    joined = Joined(make_parameters())
    joined.exchange_until(Stage.UNMASK)
    with pytest.raises(LocalProtocolError, match="mask once"):
        joined.clients[IDS[0]].mask(joined.vectors[IDS[0]])
    assert joined.clients[IDS[0]].stage is ClientStage.ERROR


def test_calls_before_their_time() -> None:
    client = Joined.new_client(5)
    with pytest.raises(LocalProtocolError):
        _ = client.parameters
    with pytest.raises(RemoteProtocolError, match="answered once"):
        client.unmask(b"")
    with pytest.raises(LocalProtocolError, match="new session"):
        client.advertise(b"")


def test_erased_session_answers_nothing() -> None:
    joined = Joined(make_parameters())
    client = joined.clients[IDS[0]]
    client.erase()
    with pytest.raises(RemoteProtocolError):
        client.advertise(joined.server.requests()[IDS[0]])


def test_unreadable_state_is_a_local_error() -> None:
    with pytest.raises(LocalProtocolError, match="not readable"):
        ClientSession.from_bytes(b"nothing", POLICY)
