"""Programs that do not do what they state, for measurements that must find it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

from gdpfed.canaries.seen import WatchedFleet
from gdpfed.methods.base import ClientSum
from gdpfed.privacy.sampling.cohorts import draw_cohorts
from gdpfed.rounds.plain import sum_noise_steps
from secagg import Encoding, keystream

_NOISE = "gdpfed.simulation.fleet.sum_noise_steps"
_sum_wave = WatchedFleet.sum_wave


def _rounded_only(updates: torch.Tensor, encodings: Sequence[Encoding]) -> torch.Tensor:
    return updates.div_(encodings[0].grid).round_().long()


def _sums_twice(self: WatchedFleet, sums: Any, upcoming: Any) -> dict[str, ClientSum]:
    _sum_wave(self, sums, upcoming)
    return _sum_wave(self, sums, upcoming)


FAULTS: dict[str, tuple[str, Callable[..., Any]]] = {
    "no noise": (_NOISE, lambda *asked: 0 * sum_noise_steps(*asked)),
    "half the noise": (_NOISE, lambda *asked: sum_noise_steps(*asked) // 2),
    "noise of one seed": ("gdpfed.rounds.plain.keystream", lambda key: keystream(bytes(32))),
    "no clipping": ("gdpfed.simulation.batched_encoding.clipped_steps", _rounded_only),
    "one cohort for all rounds": (
        "gdpfed.rounds.loop.draw_cohorts",
        lambda plan, index, key: draw_cohorts(plan, 0, key),
    ),
    "charged once, summed twice": ("gdpfed.canaries.seen.WatchedFleet.sum_wave", _sums_twice),
}
"""What is wrong, and where: of a simulation with ``secagg=off`` and many clients at once."""


@contextmanager
def broken(fault: str) -> Iterator[None]:
    """A program with one of the faults."""
    with patch(*FAULTS[fault]):
        yield
