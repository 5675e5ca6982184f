"""Programs that do not do what they state, for measurements that must find it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

from fastgrad.record_gradients import RecordGradients
from gdpfed.canaries.transcript import WatchedFleet
from gdpfed.learning.training.gaussian_noise import gaussian_noise
from gdpfed.learning.training.record_batches import PoissonBatches
from gdpfed.learning.training.record_training import exact_sums
from gdpfed.methods.base import ClientSum
from gdpfed.privacy.sampling.cohorts import draw_cohorts
from gdpfed.rounds.plain import sum_noise_steps
from secagg import Encoding, keystream

_NOISE = "gdpfed.simulation.in_process_fleet.sum_noise_steps"
_sum_wave = WatchedFleet.sum_wave
_clipped_sums = RecordGradients.clipped_sums
_draw = PoissonBatches.draw


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
    "charged once, summed twice": ("gdpfed.canaries.transcript.WatchedFleet.sum_wave", _sums_twice),
}
"""What is wrong, and where: of a simulation with ``secagg=off`` and many clients at once."""


_STEPS = "gdpfed.learning.training.record_training."
_FAR = 1e9


def _unclipped_sums(self: Any, thetas: Any, x: Any, y: Any, present: Any, norms: Any) -> torch.Tensor:
    return _clipped_sums(self, thetas, x, y, present, _FAR * norms)


def _unclipped_integers(*asked: Any, bounds: Sequence[float], unit: float) -> Any:
    return exact_sums(*asked, bounds=[_FAR for _ in bounds], unit=unit)


RECORD_FAULTS: dict[str, tuple[str, Callable[..., Any]]] = {
    "dp_sgd, no noise": (_STEPS + "gaussian_noise", lambda *asked, **how: 0 * gaussian_noise(*asked, **how)),
    "dp_sgd, half the noise": (
        _STEPS + "gaussian_noise",
        lambda *asked, **how: gaussian_noise(*asked, **how) / 2,
    ),
    "dp_sgd, no clipping": ("fastgrad.record_gradients.RecordGradients.clipped_sums", _unclipped_sums),
    "dp_sgd, one batch for all steps": (
        "gdpfed.learning.training.record_batches.PoissonBatches.draw",
        lambda self, bits: _draw(self, keystream(bytes(32))),
    ),
    "dp_sgd, noise of one seed": (
        _STEPS + "gaussian_noise",
        lambda size, stddev, bits, **how: gaussian_noise(size, stddev, keystream(bytes(32)), **how),
    ),
    "dp_sum, no noise": FAULTS["no noise"],
    "dp_sum, half the noise": FAULTS["half the noise"],
    "dp_sum, noise of one seed": FAULTS["noise of one seed"],
    "dp_sum, no clipping": ("gdpfed.clients.record_work.exact_sums", _unclipped_integers),
    "dp_sum, one batch for all steps": (
        "gdpfed.learning.training.record_batches.PoissonBatches.draw",
        lambda self, bits: _draw(self, keystream(bytes(32))),
    ),
    "dp_sum, charged once, summed twice": FAULTS["charged once, summed twice"],
}
"""The same of a simulation that protects records; the first word is its method."""


@contextmanager
def broken(fault: str) -> Iterator[None]:
    """A program with one of the faults."""
    with patch(*(FAULTS | RECORD_FAULTS)[fault]):
        yield
