"""Drawing the cohorts of a round, exactly as the plan's accounting assumes.

Amplification by sampling holds against those who cannot tell who was drawn, so the key is a
secret of the server: whoever has it knows every cohort.
"""

import hmac
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gdpfed.errors import PrivacyError
from gdpfed.privacy.events import Sampling, fixed_cohort_size
from gdpfed.privacy.plan import GroupPlan, PrivacyPlan
from gdpfed.privacy.validation import require_count

KEY_BYTES = 32
_LABEL = b"gdpfed cohort v1"

ClientIds = npt.NDArray[np.int64]


def draw_cohorts(plan: PrivacyPlan, round_index: int, key: bytes) -> tuple[ClientIds, ...]:
    """Return the client ids (int64, ascending) that take part in a round, one array a group.

    The same 32-byte key, round and group always give the same cohort; two rounds or groups are
    independent. Poisson sampling includes each client on its own with probability q_m, drawn as a
    binomial size and a uniform subset of that size, which is the same distribution at the cost of
    the cohort instead of the population. fixed_size draws exactly round(q_m |G_m|).

    Raises PrivacyError for a negative round and for a key of another length.
    """
    round_index = require_count("round_index", round_index, at_least=0)
    if not isinstance(key, bytes) or len(key) != KEY_BYTES:
        length = len(key) if isinstance(key, bytes) else type(key).__name__
        raise PrivacyError(f"the sampling key is {length} long; give {KEY_BYTES} secret bytes")
    return tuple(
        _draw(group, plan.sampling, _generator(key, round_index, index))
        for index, group in enumerate(plan.groups)
    )


def _generator(key: bytes, round_index: int, group_index: int) -> np.random.Generator:
    """Return a generator seeded with 256 bits of HMAC-SHA256(key, round, group)."""
    message = _LABEL + round_index.to_bytes(8, "big") + group_index.to_bytes(8, "big")
    seed = int.from_bytes(hmac.digest(key, message, "sha256"), "big")
    return np.random.Generator(np.random.PCG64DXSM(np.random.SeedSequence(seed)))


def _draw(group: GroupPlan, sampling: Sampling, generator: np.random.Generator) -> ClientIds:
    population = len(group.clients)
    if sampling == "poisson":
        size = int(generator.binomial(population, group.sampling_rate))
    else:
        size = fixed_cohort_size(group.sampling_rate, population)
    chosen = np.sort(generator.choice(population, size, replace=False, shuffle=False))
    return _ids_at(group.clients, chosen)


def _ids_at(clients: Sequence[int], positions: ClientIds) -> ClientIds:
    if isinstance(clients, range):
        return np.sort(clients.start + clients.step * positions)
    return np.sort(np.fromiter((clients[i] for i in positions), np.int64, len(positions)))
