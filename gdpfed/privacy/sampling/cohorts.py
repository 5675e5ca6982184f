"""Draw the cohorts of a round from a secret key, exactly as the plan's accounting assumes.

Amplification by sampling holds against those who cannot tell who was drawn, so the key is a
secret of the server: whoever has it knows every cohort.
"""

import hmac

import numpy as np

from gdpfed.errors import PrivacyError
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.sampling.laws import ClientIds
from gdpfed.privacy.validation import require_count

KEY_BYTES = 32
_LABEL = b"gdpfed cohort v1"


def draw_cohorts(plan: PrivacyPlan, round_index: int, key: bytes) -> tuple[ClientIds, ...]:
    """Return the client ids (int64, ascending) that take part in a round, one array a group.

    The same 32-byte key, round and group always give the same cohort; two rounds or groups are
    independent.

    Raises PrivacyError for a round outside the plan, for a key of another length, and for samples that follow
    from what clients have released, which no key draws.
    """
    round_index = require_count("round_index", round_index, at_least=0)
    if not isinstance(key, bytes) or len(key) != KEY_BYTES:
        length = len(key) if isinstance(key, bytes) else type(key).__name__
        raise PrivacyError(f"the sampling key is {length} long; give {KEY_BYTES} secret bytes")
    return tuple(
        plan.mechanism.draw(m, group, round_index, _generator(key, round_index, m))
        for m, group in enumerate(plan.groups)
    )


def _generator(key: bytes, round_index: int, group_index: int) -> np.random.Generator:
    """Return a generator seeded with 256 bits of HMAC-SHA256(key, round, group)."""
    message = _LABEL + round_index.to_bytes(8, "big") + group_index.to_bytes(8, "big")
    seed = int.from_bytes(hmac.digest(key, message, "sha256"), "big")
    return np.random.Generator(np.random.PCG64DXSM(np.random.SeedSequence(seed)))
