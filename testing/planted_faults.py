"""Programs with one planted fault each, which an audit by canaries must find.

Every fault is one thing that the program does otherwise. Where a session or a ledger would refuse it, that
defence is taken away as well: what is tried here is whether a measurement finds what nothing has refused.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import numpy as np

from gdpfed.clients.keyed_noise import KEY_BYTES, member_key
from gdpfed.clients.noise import keyed_steps, own_noise
from gdpfed.extras.canaries.program_check import CONTRIBUTIONS, CORRELATION, KEYS, NOISE, SAMPLES, TURNS
from gdpfed.learning.training.secret_draws import gaussian_noise
from gdpfed.privacy.mechanisms.scheduled.mechanism import ScheduledSums
from gdpfed.privacy.sampling.cohorts import draw_cohorts
from gdpfed.rounds.noise_streams import NoiseStreams, SumNoise
from gdpfed.simulation.engine import Cohort
from secagg import Encoding
from testing.broken_programs import FAULTS, STREAM_FAULTS

Patches = Sequence[tuple[str, Any]]

_SESSIONS = "gdpfed.simulation.joined_sessions."
_CHECK_OF_NOISE = ("secagg.protocol.client_keys._check_noise", lambda state, noise: None)
_draw_noise = NoiseStreams.draw


@dataclass(frozen=True)
class PlantedFault:
    """A planted fault, and the check that must find it.

    Attributes:
        name: of the fault.
        looked_at: the checks that look for it; several where it is seen in each.
        patches: what is put in the place of what, with secagg=off.
        masked: the same under masks; None where it is the same.
        against: whom epsilon is to hold against: the mechanism that has the fault.
    """

    name: str
    looked_at: tuple[str, ...]
    patches: Patches
    masked: Patches | None = None
    against: str = "everyone"


def _less_noise(share: float) -> tuple[Patches, Patches]:
    """Return two replacements that scale a sum's noise by a factor: for sums without and with masks."""

    def plain(size: int, stddev: float, *more: Any, **how: Any) -> Any:
        return share * gaussian_noise(size, stddev, *more, **how)

    def of_member(*asked: Any) -> Any:
        return np.rint(share * np.asarray(own_noise(*asked))).astype(np.int64)

    def of_corrector(*asked: Any) -> Any:
        return np.rint(share * keyed_steps(*asked)).astype(np.int64)

    masked = [
        (_SESSIONS + "own_noise", of_member),
        (_SESSIONS + "keyed_steps", of_corrector),
        _CHECK_OF_NOISE,
    ]
    return [("gdpfed.rounds.plain.gaussian_noise", plain)], masked


def _steeper_taps(self: NoiseStreams, *asked: Any) -> SumNoise:
    noise = _draw_noise(self, *asked)
    return replace(noise, taken_back=tuple((each, 1.25 * tap) for each, tap in noise.taken_back))


_KEY_OF_ALL_SUMS = os.urandom(KEY_BYTES)


def _key_of_every_sum(key: bytes, client_id: int) -> bytes:
    """Return the same noise key for a client in all rounds."""
    del key
    return member_key(_KEY_OF_ALL_SUMS, client_id)


def _turns_too_close(self: ScheduledSums, m: int, group: Any, round_index: int, generator: Any) -> Any:
    """Draw cohorts in which every client takes part again one round too early."""
    del generator
    clients, limits = np.asarray(group.clients, dtype=np.int64), self.limits[m]
    since = round_index - np.arange(len(clients)) % limits.separation
    return clients[(since == 0) | (since == max(1, limits.separation - 1))]


def _first_sample(plan: Any, round_index: int, key: bytes) -> Any:
    return draw_cohorts(plan, 0 * round_index, key)


def _norm_of_the_sum(self: Cohort, clients: Sequence[int]) -> list[Encoding]:
    """Plant a fault: clip every client to the sum's norm instead of its own group's smaller norm."""
    return [self.encoding for _ in clients]


_LEDGER_LETS_TURNS_PASS = (
    ("gdpfed.privacy.mechanisms.scheduled.mechanism.ScheduledSums.broken_turn", lambda *asked: ""),
    ("gdpfed.privacy.mechanisms.scheduled.mechanism.ScheduledSums.most_rounds", lambda *asked: None),
)

PLANTED_FAULTS = (
    PlantedFault("noise x 0.7", (NOISE, CORRELATION), *_less_noise(0.7)),
    PlantedFault("noise x 0.9", (NOISE, CORRELATION), *_less_noise(0.9)),
    PlantedFault("no clipping", (CONTRIBUTIONS,), [FAULTS["no clipping"]]),
    PlantedFault(
        "the norm of another group",
        (CONTRIBUTIONS,),
        [("gdpfed.simulation.engine.Cohort.encodings", _norm_of_the_sum)],
    ),
    PlantedFault(
        "taps x 1.25", (CORRELATION, KEYS), [("gdpfed.rounds.noise_streams.NoiseStreams.draw", _steeper_taps)]
    ),
    PlantedFault("taken back twice", (CORRELATION, KEYS), [STREAM_FAULTS["stream, taken back twice"]]),
    PlantedFault(
        "a key of noise twice",
        (KEYS, CORRELATION),
        [STREAM_FAULTS["stream, noise used again"]],
        [(_SESSIONS + "member_key", _key_of_every_sum)],
    ),
    PlantedFault(
        "turns too close",
        (TURNS,),
        [
            ("gdpfed.privacy.mechanisms.scheduled.mechanism.ScheduledSums.draw", _turns_too_close),
            *_LEDGER_LETS_TURNS_PASS,
        ],
    ),
    PlantedFault(
        "one sample for all rounds",
        (SAMPLES,),
        [("gdpfed.rounds.loop.draw_cohorts", _first_sample)],
        against="outsiders",
    ),
)


@contextmanager
def planted(fault: PlantedFault, *, masked: bool) -> Iterator[None]:
    """Run the ``with`` block with a known fault in the program, which an audit should find."""
    patches = fault.patches if not masked or fault.masked is None else fault.masked
    with ExitStack() as stack:
        for target, replacement in patches:
            stack.enter_context(patch(target, replacement))
        yield
