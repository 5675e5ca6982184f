"""Tests of member ids in the mode `curious` (the server follows the protocol), which are new in each sum."""

import numpy as np
import pytest

from secagg import RemoteProtocolError, Stage
from secagg.protocol.sum_messages import AdvertiseRequest, MaskRequest, ShareRequest, UnmaskRequest
from testing.secagg_sums import ACTIVE, IDS, Joined, make_parameters

VICTIM = IDS[0]
SPARSE = {"num_neighbours": 6, "threshold": 4}


def ids_sent_to(joined: Joined, client_id: int) -> set[int]:
    """Return every member id that the server sends to one member until the sum ends."""
    told: set[int] = set()
    while not joined.server.done:
        data = joined.server.requests()[client_id]
        if joined.server.stage is Stage.ADVERTISE:
            told.add(AdvertiseRequest.decode(data).member)
        elif joined.server.stage is Stage.SHARE:
            told |= ShareRequest.decode(data).members.keys()
        elif joined.server.stage is Stage.MASK:
            mask = MaskRequest.decode(data)
            told |= {*mask.contributors, *mask.sealed, *mask.commitments}
        else:
            unmask = UnmaskRequest.decode(data)
            told |= {*unmask.survivors, *unmask.dropped, *unmask.orphans}
        joined.exchange(silent=[IDS[2]] if joined.server.stage is Stage.MASK else ())
    return told


@pytest.mark.parametrize("graph", ["complete", "sparse"])
def test_no_lasting_id_is_sent_to_a_member(graph: str) -> None:
    changes = SPARSE if graph == "sparse" else {}
    joined = Joined(make_parameters(20, **changes), drawn=True)
    assert ids_sent_to(joined, VICTIM) == set(range(20))
    assert ids_sent_to(Joined(make_parameters(20, **changes)), VICTIM) == set(IDS[:20])


def test_numbers_are_drawn_for_each_sum() -> None:
    """A member's number is drawn anew for each sum: in 600 sums it is each of 6 numbers about 100 times."""
    places = np.zeros(6)
    for seed in range(600):
        joined = Joined(make_parameters(), seed=seed, drawn=True)
        places[AdvertiseRequest.decode(joined.server.requests()[VICTIM]).member] += 1
    # Multinomial with mean 100 and standard deviation 9.1: five of them.
    assert places.sum() == 600
    assert np.abs(places - 100).max() < 46


def test_results_and_errors_name_clients() -> None:
    joined = Joined(make_parameters(), drawn=True)
    lost = IDS[2]
    joined.exchange()
    with pytest.raises(RemoteProtocolError) as caught:
        joined.server.receive(VICTIM, b"nothing")
    assert caught.value.sender == VICTIM
    assert joined.server.blamed == {VICTIM}
    again = Joined(make_parameters(), drawn=True)
    result = again.run({Stage.MASK: [lost]})
    assert result.survivors == tuple(sorted(set(IDS[:6]) - {lost}))
    assert result.dropped == (lost,)
    assert np.array_equal(result.total, again.expected(result.survivors))


def test_in_active_mode_members_are_their_clients() -> None:
    joined = Joined(make_parameters(**ACTIVE), drawn=True)
    joined.exchange()
    assert all(client.member == client_id for client_id, client in joined.clients.items())
    lie = AdvertiseRequest(joined.parameters, IDS[1]).encode()
    with pytest.raises(RemoteProtocolError, match="their own ids"):
        Joined.new_client(VICTIM).advertise(lie)


def test_two_members_cannot_have_one_number() -> None:
    joined = Joined(make_parameters(), drawn=True)
    requests = joined.server.requests()
    first, second = IDS[:2]
    for client_id in joined.clients:
        request = requests[first] if client_id == second else requests[client_id]
        reply = joined.clients[client_id].advertise(request)
        if client_id == second:
            with pytest.raises(RemoteProtocolError, match="made by member"):
                joined.server.receive(client_id, reply)
        else:
            joined.server.receive(client_id, reply)
    joined.server.close_stage()
    told = joined.server.requests()[first]
    with pytest.raises(RemoteProtocolError, match="are not its own"):
        joined.clients[second].share(told)
