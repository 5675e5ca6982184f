"""Tests of sums in which some members send no update and only subtract noise of earlier sums."""

import math
from typing import Any

import numpy as np
import pytest

from secagg import (
    ImplausibleSum,
    LocalProtocolError,
    RemoteProtocolError,
    Stage,
    ThresholdNotMet,
    check_sum,
    threshold_for,
)
from secagg.arithmetic.noise_levels import Contributors, Corrections
from secagg.crypto.keys import PublicKeys
from secagg.protocol.sum_messages import CheckRequest, ShareRequest, UnmaskRequest
from testing.secagg_sums import ACTIVE, IDS, Joined, make_parameters

CURIOUS = {"mode": "curious", "threshold": threshold_for(12, 0.5)}
BOTH = pytest.mark.parametrize(
    "mode", [CURIOUS, ACTIVE | {"threshold": threshold_for(12, 0.5, corrupt=2, mode="active")}]
)
CORRECTORS, UPDATERS = IDS[1:6], (IDS[0], *IDS[6:12])


def joined(mode):
    numbers = {
        **{"num_correctors": 5, "correction_multiplier": 0.6, "dropout_tolerance": 2},
        **{"corrupt_tolerance": 2, **mode},
    }
    return Joined(make_parameters(12, **numbers), serialise=True)


@BOTH
@pytest.mark.parametrize("stage", [Stage.ADVERTISE, Stage.SHARE, Stage.MASK, Stage.CHECK, Stage.UNMASK])
def test_whoever_is_lost_in_whatever_stage_the_others_are_summed(mode, stage):
    if stage is Stage.CHECK and mode["mode"] == "curious":
        return
    each = joined(mode)
    gone = (CORRECTORS[0], UPDATERS[1], UPDATERS[4])
    result = each.run({stage: gone})
    late = stage in (Stage.CHECK, Stage.UNMASK)
    assert result.survivors == tuple(sorted(i for i in UPDATERS if late or i not in gone))
    assert result.correctors == tuple(sorted(i for i in CORRECTORS if late or i not in gone))
    assert result.num_contributors == (5 if stage in (Stage.ADVERTISE, Stage.SHARE) else 7)
    assert np.array_equal(result.total, each.expected((*result.survivors, *result.correctors)))


@BOTH
def test_the_noise_counts_the_updates_alone_and_lost_corrections_nothing(mode):
    each = joined(mode)
    parameters = each.parameters
    # 7 updates, of which 2 may be lost. A sixth of all 12 may collude, and be 2 of the 7.
    assert parameters.client_noise_stddev(7) == pytest.approx(1 / math.sqrt(7 - 2 - 2))
    assert parameters.fewest_updates == 5
    # More updates lost than tolerated: thrown away before anything is unmasked, with all corrections there.
    with pytest.raises(ThresholdNotMet) as refused:
        each.run({Stage.MASK: UPDATERS[:3]})
    assert (refused.value.stage, refused.value.have, refused.value.need) == (Stage.MASK, 4, 5)
    with pytest.raises(ThresholdNotMet):
        joined(mode).run({Stage.SHARE: UPDATERS[:3]})
    # As many corrections lost as the threshold allows: the sum stands.
    lost = CORRECTORS[: 12 - parameters.threshold - 1]
    result = joined(mode).run({Stage.MASK: lost})
    assert (len(result.survivors), len(result.correctors)) == (7, 5 - len(lost))


@BOTH
def test_a_server_that_passes_a_correction_off_as_an_update_is_refused(mode):
    each = joined(mode)
    each.exchange_until(Stage.SHARE)
    (request,) = set(each.server.requests().values())
    decoded = ShareRequest.decode(request)
    keys = PublicKeys.from_bytes(decoded.members[CORRECTORS[0]])
    decoded.members[CORRECTORS[0]] = PublicKeys(keys.mask_key, keys.seal_key, keys.seed_commitment).to_bytes()
    lie = ShareRequest(decoded.members, decoded.signatures).encode()
    with pytest.raises(RemoteProtocolError, match="are not its own"):
        each.clients[CORRECTORS[0]].share(lie)
    # More members with an update than were agreed on would make each one's noise too small.
    with pytest.raises(RemoteProtocolError, match="8 members with an update: from 5 to 7"):
        each.clients[UPDATERS[0]].share(lie)
    # With as many as were agreed on: who signs is heard, and who does not sign cannot notice.
    gone = UPDATERS[1]
    members = {i: own for i, own in decoded.members.items() if i != gone}
    lie = ShareRequest(members, {i: own for i, own in decoded.signatures.items() if i != gone}).encode()
    if mode["mode"] == "active":
        with pytest.raises(RemoteProtocolError, match="not signed by its identity"):
            each.clients[UPDATERS[2]].share(lie)


@BOTH
@pytest.mark.parametrize("who", [UPDATERS[0], CORRECTORS[0]])
def test_no_member_helps_to_unmask_too_few_updates(mode, who):
    each = joined(mode)
    each.exchange_until(Stage.UNMASK if mode["mode"] == "curious" else Stage.CHECK)
    sid = each.server._state.sid
    survivors = tuple(sorted({*IDS[:12]} - {*UPDATERS[4:]}))
    lost = tuple(sorted(UPDATERS[4:]))
    stage = each.clients[who].check if mode["mode"] == "active" else each.clients[who].unmask
    request = (
        CheckRequest(sid, survivors) if mode["mode"] == "active" else UnmaskRequest(sid, survivors, lost)
    )
    with pytest.raises(RemoteProtocolError, match="4 survivors with an update, at least 5"):
        stage(request.encode())


def test_a_corrector_adds_no_noise_and_an_answer_of_the_other_kind_is_refused():
    each = joined(CURIOUS)
    each.exchange_until(Stage.MASK)
    client, steps = each.clients[CORRECTORS[0]], np.zeros(50, dtype=np.int64)
    client.accept_shares(each.server.requests()[CORRECTORS[0]])
    with pytest.raises(LocalProtocolError, match="adds no noise"):
        client.mask(steps, noise="discrete_gaussian")
    other = joined(CURIOUS)
    asked = other.server.requests()
    answer = other.clients[UPDATERS[0]].advertise(asked[UPDATERS[0]])
    other.server._state.correctors |= {UPDATERS[0]}
    with pytest.raises(RemoteProtocolError, match="in place of none"):
        other.server.receive(UPDATERS[0], answer)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"num_correctors": 11}, "leave 2 with an update"),
        ({"noise_multiplier": 0.0}, "with noise of their own"),
        ({"noise_levels": 1}, "in no levels"),
        ({"mode": "off"}, "masked sums"),
        ({"correction_multiplier": math.inf}, "use 0 or more"),
        ({"corrupt_tolerance": 5}, "leave none to add noise"),
        (
            {"dropout_tolerance": 0, "corrupt_tolerance": 6, "threshold": 6},
            "threshold 6 with 6 corrupt members",
        ),
    ],
)
def test_parameters_that_are_impossible(changes, match):
    with pytest.raises(ValueError, match=match):
        joined(CURIOUS | changes)


def test_the_grid_has_room_for_what_is_taken_back():
    d = 400
    numbers: dict[str, Any] = {"num_clients": 400, "noise_multiplier": 90.0, "dropout_tolerance": 40}
    plain = Contributors(400, 40).modulus_bits(90.0)
    taken_back = Corrections(800, 0.9 * 90 / math.sqrt(280))
    bits = Contributors(400, 40, corrections=taken_back).modulus_bits(90.0)
    assert bits == plain + 1
    parameters = make_parameters(
        **(numbers | {"num_clients": 800, "num_correctors": 400, "threshold": 401, "dimension": d}),
        modulus_bits=bits,
        correction_multiplier=taken_back.multiplier,
    )
    encoding = parameters.encoding(400)
    generator = np.random.default_rng(3)
    own = generator.normal(size=(400, d)) * parameters.client_noise_stddev(400)
    back = generator.normal(size=(800, d)) * taken_back.multiplier
    total = (own.sum(axis=0) + back.sum(axis=0)) / encoding.grid
    assert 16 * total.std() < 2 ** (bits - 1)
    # Noise and what is taken back in one vector is rounded once; beyond their tail nothing is.
    assert (
        np.abs(encoding.encode_noise(own[0] - back[0]) * encoding.grid - own[0] + back[0]).max()
        <= encoding.grid
    )
    # Who knows of no correction takes the sum for implausible, and not who does.
    values = encoding.decode(encoding.to_residues(np.rint(total).astype(np.int64)))
    check_sum(encoding, 400, 0, values, norms=0.0, num_correcting=800)
    with pytest.raises(ImplausibleSum):
        check_sum(encoding, 400, 0, values, norms=0.0)


@BOTH
def test_who_drops_out_before_the_vectors_still_counts_as_a_member(mode, monkeypatch):
    """A member that drops out before vectors are sent stays in the lists of members that others see."""
    each, seen = joined(mode), {}
    mask = each.mask

    def noted(client):
        seen[client.client_id] = client.updates, client.correctors
        return mask(client)

    monkeypatch.setattr(each, "mask", noted)
    gone = CORRECTORS[0], UPDATERS[1]
    each.run({Stage.SHARE: gone})
    numbers = [frozenset(each.number(i) for i in ids) for ids in (UPDATERS, CORRECTORS)]
    assert seen == dict.fromkeys({*UPDATERS, *CORRECTORS} - {*gone}, tuple(numbers))
