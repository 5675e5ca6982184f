"""Draws cohorts from a secret key, and further clients that send zeros to fill up small cohorts.

Amplification by sampling holds only against adversaries who do not know the cohorts. So the server keeps the
key secret: with the key, every cohort can be computed. A cohort that is too small is not summed, and everyone
who sees the models sees that. So if epsilon relies on a secret Poisson sample, small cohorts are filled up:
further clients of the group send zeros. Then every round has its sum, and the sum does not reveal the draw.
"""

import hmac
import math
from collections.abc import Sequence
from itertools import islice

import numpy as np

from gdpfed.errors import PrivacyError
from gdpfed.privacy.mechanism_options import DrawsAhead, drawn_at
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.sampling.laws import ClientIds
from gdpfed.privacy.validation import require_count

KEY_BYTES = 32
_LABEL = b"gdpfed cohort v1"
_FILL_LABEL = b"gdpfed fill v1"
TELLING_SHARE = 0.01
"""The part of delta reserved for the case that cohort sizes, or cohorts too small to sum, reveal a draw."""


def draw_cohorts(plan: PrivacyPlan, round_index: int, key: bytes) -> tuple[ClientIds, ...]:
    """Draw the clients that take part in a round: one array of ids (int64, ascending) for each group.

    The same 32-byte key, round and group always give the same cohort. Cohorts of two rounds or groups are
    independent, unless the plan's mechanism draws several rounds together. Raises PrivacyError for a round
    outside the plan, a key of another length, and samples that follow from released values, not from a key.
    """
    round_index = require_count("round_index", round_index, at_least=0)
    if not isinstance(key, bytes) or len(key) != KEY_BYTES:
        length = len(key) if isinstance(key, bytes) else type(key).__name__
        raise PrivacyError(f"the sampling key is {length} long; give {KEY_BYTES} secret bytes")
    return tuple(
        plan.mechanism.draw(
            m, group, round_index, _generator(key, drawn_at(plan.mechanism, group, round_index), m)
        )
        for m, group in enumerate(plan.groups)
    )


def fills_cohorts(plan: PrivacyPlan) -> bool:
    """Whether clients that were not drawn send zeros, so that sums over small cohorts are possible, too.

    They are if clients are drawn by Poisson sampling and epsilon relies on that draw being secret. With a
    fixed size no filling is needed: a cohort is then too small in every round or in none.
    """
    return plan.law.name == "poisson" and plan.private and plan.sample_is_secret


def reveals_sizes(plan: PrivacyPlan, *, same_size: bool) -> bool:
    """Whether the noise and rounding of secure sums reveal cohort sizes, which epsilon does not cover.

    `same_size`: whether cohorts are filled up to one size in all rounds. Random allocation does not do this.
    """
    differ = plan.law.name in ("poisson", "allocation") and plan.sample_is_secret
    return differ and not (same_size and fills_cohorts(plan))


def draws_secret_blocks(plan: PrivacyPlan) -> bool:
    """Whether several rounds are drawn together, and epsilon relies on this draw being secret."""
    return isinstance(plan.mechanism, DrawsAhead) and plan.sample_is_secret


def draw_fillers(
    groups: Sequence[Sequence[int]],
    drawn: ClientIds,
    count: int,
    round_index: int,
    group_index: int,
    key: bytes,
) -> ClientIds:
    """Draw `count` clients (int64, ascending) that were not drawn for a sum, to fill it up with zeros.

    Every subset of that size is equally likely. The same key, round, group and clients always give the same
    result, whatever is drawn in other rounds. `group_index`: the sum's group; 0 if all groups are one sum.
    """
    generator = _generator(key, round_index, group_index, _FILL_LABEL)
    ends = np.cumsum([len(group) for group in groups])
    # Positions in random order, from which drawn clients are skipped: no array is as large as the groups.
    positions = generator.choice(ends[-1], min(int(ends[-1]), count + len(drawn)), replace=False)
    found = np.searchsorted(ends, positions, side="right")
    clients = (
        groups[m][position - ends[m]]  # from the end of its group
        for m, position in zip(found.tolist(), positions.tolist(), strict=True)
    )
    taken = frozenset(drawn.tolist())
    free = (client for client in clients if client not in taken)
    return np.sort(np.fromiter(islice(free, count), np.int64, count))


def size_hardly_exceeded(expected: float, chance: float) -> int:
    """Return a cohort size that is exceeded with at most this probability, given the expected size.

    For independent draws with any rates and expected size mu, P(size >= mu (1 + x)) is at most
    exp(-mu ((1 + x) ln(1 + x) - x)) (Chernoff).
    """

    def bound(size: int) -> float:
        ratio = size / expected
        return -expected * (ratio * math.log(ratio) - ratio + 1)

    size = math.ceil(expected)
    while size > 0 and bound(size + 1) > math.log(chance):
        size += 1
    return size


def usual_size(plan: PrivacyPlan, expected: float, reachable: int) -> int:
    """Return the number of members to which each sum is filled up, so that it hides how many were drawn.

    `expected`: the mean number of clients drawn for a sum. `reachable`: how many clients can be drawn, which
    is the largest size. The probability that any sum of any round draws more clients than the returned number
    is at most `TELLING_SHARE` of delta.
    """
    sums = plan.num_rounds * (1 if plan.one_sum else len(plan.groups))
    return min(reachable, size_hardly_exceeded(expected, TELLING_SHARE * plan.delta / sums))


def _generator(key: bytes, round_index: int, group_index: int, label: bytes = _LABEL) -> np.random.Generator:
    """Return a random generator for a round and group, seeded by HMAC-SHA256 of the secret key."""
    message = label + round_index.to_bytes(8, "big") + group_index.to_bytes(8, "big")
    seed = int.from_bytes(hmac.digest(key, message, "sha256"), "big")
    return np.random.Generator(np.random.PCG64DXSM(np.random.SeedSequence(seed)))
