"""Tests of a server that colludes with c clients: it learns no secret of another client."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from secagg import RemoteProtocolError, Stage
from secagg.crypto.keys import NO_CONTEXT, SECRET_BYTES, commitment, noise_commitment
from secagg.crypto.prg import add_masks
from secagg.crypto.shamir import recover
from secagg.protocol.client_keys import pair_keys
from secagg.protocol.sum_messages import SHARE_BYTES, MaskReply, MaskRequest, UnmaskReply, UnmaskRequest
from testing.secagg_sums import IDS, Joined, make_parameters

VICTIM = IDS[0]
GRAPHS: dict[str, dict[str, Any]] = {
    "complete": {"num_clients": 12, "threshold": 7},
    "sparse": {"num_clients": 20, "threshold": 5, "num_neighbours": 8},
}
NOISY: dict[str, Any] = {"dropout_tolerance": 3, "noise_levels": 3}


def masked(graph: str) -> Joined:
    joined = Joined(make_parameters(**(NOISY | GRAPHS[graph])))
    joined.exchange_until(Stage.UNMASK)
    return joined


def secrets_of_victim(joined: Joined, holders: list[int]) -> list[bytes | None]:
    """Return the secrets of the victim that the shares of these holders recover."""
    numbers = joined.server._state.graph.holders(VICTIM)
    held = {numbers[i]: joined.clients[i]._state.held_shares[VICTIM] for i in holders}
    return [
        recover({x: shares[at : at + SHARE_BYTES] for x, shares in held.items()}, SECRET_BYTES)
        for at in range(0, 5 * SHARE_BYTES, SHARE_BYTES)
    ]


@pytest.mark.parametrize("graph", GRAPHS)
def test_one_colluder_short_of_the_threshold_learns_no_secret(graph: str) -> None:
    joined = Joined(make_parameters(**(NOISY | GRAPHS[graph])))
    joined.exchange()
    joined.exchange()
    state = joined.clients[VICTIM]._state
    own = [state.self_seed, state.mask_private_key, state.noise_seed]
    committed = joined.server._state.dealt[VICTIM].noise_commitment
    joined.exchange()
    neighbours = sorted(joined.server._state.graph.neighbours(VICTIM))
    threshold = joined.parameters.threshold
    assert not set(own) & set(secrets_of_victim(joined, neighbours[: threshold - 1]))
    enough = secrets_of_victim(joined, neighbours[:threshold])
    assert enough[:3] == own
    assert noise_commitment(enough[2] or b"", 3) == committed
    assert commitment(enough[0] or b"") == commitment(own[0])


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("share_told_lost", [0.25, 0.5, 0.75])
def test_two_stories_never_give_both_secrets(graph: str, share_told_lost: float) -> None:
    """Two different lists of survivors never reveal both secrets of the victim, its seed and masking key."""
    joined = masked(graph)
    truth = UnmaskRequest.decode(joined.server.requests()[VICTIM])
    lie = replace(truth, survivors=tuple(i for i in truth.survivors if i != VICTIM), dropped=(VICTIM,))
    seeds = keys = 0
    neighbours = sorted(joined.server._state.graph.neighbours(VICTIM))
    for rank, holder in enumerate(neighbours):
        told = lie if rank < share_told_lost * len(neighbours) else truth
        reply = UnmaskReply.decode(joined.clients[holder].unmask(told.encode()))
        seeds += VICTIM in reply.seed_shares
        keys += VICTIM in reply.key_shares
    assert seeds + keys == len(neighbours)
    assert min(seeds, keys) < joined.parameters.threshold


@pytest.mark.parametrize("graph", GRAPHS)
def test_two_stories_never_give_the_noise_of_a_smaller_sum(graph: str) -> None:
    """A server that sends two lists of survivors gets no noise seeds for a sum that leaves three members out.

    Whoever tells it the masking keys of the three reveals no noise seed, and the other way round;
    neither group of the victim's neighbours reaches the threshold together with the other.
    """
    joined = masked(graph)
    truth = UnmaskRequest.decode(joined.server.requests()[VICTIM])
    neighbours = sorted(joined.server._state.graph.neighbours(VICTIM))
    others = [i for i in truth.survivors if i != VICTIM and i not in neighbours[:6]]
    gone = tuple(sorted((others + neighbours[5:])[:3]))
    smaller = replace(truth, survivors=tuple(i for i in truth.survivors if i not in gone), dropped=gone)
    with_noise = without = 0
    for rank, holder in enumerate(i for i in neighbours if i not in gone):
        told = smaller if rank % 2 else truth
        reply = UnmaskReply.decode(joined.clients[holder].unmask(told.encode()))
        with_noise += VICTIM in reply.noise_shares
        without += VICTIM not in reply.noise_shares
    assert min(with_noise, without) < joined.parameters.threshold


def test_two_stories_of_who_contributes_leave_no_sum_with_levels_of_noise() -> None:
    """Members that are told different lists of contributors derive different keys for their masks."""
    joined = Joined(make_parameters(**(NOISY | GRAPHS["complete"])))
    joined.exchange_until(Stage.MASK)
    colluder, *_, told_less = IDS[:12][::-1]
    for client_id, request in joined.server.requests().items():
        told = MaskRequest.decode(request, joined.parameters.noise_levels)
        if client_id == told_less:
            told = replace(
                told,
                contributors=tuple(i for i in told.contributors if i != colluder),
                sealed={i: each for i, each in told.sealed.items() if i != colluder},
                commitments={i: each for i, each in told.commitments.items() if i != colluder},
            )
        joined.answer(client_id, told.encode())
    states = {i: joined.clients[i]._state for i in IDS[:12]}
    other, another = IDS[1], IDS[2]
    assert states[other].pair_keys[another] == states[another].pair_keys[other]
    assert states[other].pair_keys[told_less] != states[told_less].pair_keys[other]


@pytest.mark.parametrize("graph", GRAPHS)
def test_a_sum_of_the_victim_alone_is_refused(graph: str) -> None:
    joined = masked(graph)
    truth = UnmaskRequest.decode(joined.server.requests()[VICTIM])
    others = tuple(i for i in truth.survivors if i != VICTIM)
    with pytest.raises(RemoteProtocolError, match="survivors, at least"):
        joined.clients[VICTIM].unmask(replace(truth, survivors=(VICTIM,), dropped=others).encode())


def test_the_masked_vector_with_every_colluders_mask_removed_is_still_masked() -> None:
    """If all but two of twelve members collude, what they can make of the victim's vector looks uniform.

    A chi-square over 256 byte values of 80,000 bytes: mean 255, standard deviation 22.6; the keys
    are fixed. The bound of 400 is 6.4 of them away.
    """
    joined = Joined(make_parameters(12, threshold=7, dimension=20_000))
    joined.vectors = {i: np.zeros(20_000, dtype=np.int64) for i in joined.vectors}
    joined.exchange_until(Stage.MASK)
    colluders = [i for i in joined.clients if i not in (VICTIM, IDS[1])]
    known = set()
    for client_id, request in joined.server.requests().items():
        joined.clients[client_id].accept_shares(request)
        if client_id in colluders:
            known |= set(pair_keys(joined.clients[client_id]._state, NO_CONTEXT).values())
    shared = pair_keys(joined.clients[VICTIM]._state, NO_CONTEXT)
    shared = {other: key for other, key in shared.items() if key in known}
    assert shared.keys() == set(colluders)
    reply = joined.clients[VICTIM].mask(joined.vectors[VICTIM], noise="discrete_gaussian")
    left = np.array(MaskReply.decode(reply, 20_000).vector())
    add_masks(left, [(key, -1 if other > VICTIM else 1) for other, key in shared.items()])
    counts = np.bincount(left.view(np.uint8), minlength=256)
    expected = counts.sum() / 256
    assert ((counts - expected) ** 2 / expected).sum() < 400
