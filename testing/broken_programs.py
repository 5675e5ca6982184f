"""Training programs that break their stated privacy parameters, to test that an audit notices."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch

from fastgrad.record_gradients import RecordGradients
from gdpfed.extras.canaries.transcript import WatchedFleet
from gdpfed.learning.training.record_training import exact_sums
from gdpfed.learning.training.secret_draws import PoissonBatches, gaussian_noise
from gdpfed.methods.base import ClientSum
from gdpfed.privacy.sampling.cohorts import draw_cohorts
from gdpfed.rounds.noise_streams import NewNoise, NoiseStreams, SumNoise
from gdpfed.rounds.plain import sum_noise_steps
from secagg import Encoding, keystream

_NOISE = "gdpfed.simulation.in_process_fleet.sum_noise_steps"
_STREAM = "gdpfed.rounds.noise_streams.NoiseStreams.draw"
_draw_noise = NoiseStreams.draw
_sum_wave = WatchedFleet.sum_wave
_truncated_sums = RecordGradients.truncated_sums
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
    "no clipping": ("gdpfed.simulation.batched.clipped_steps", _rounded_only),
    "one cohort for all rounds": (
        "gdpfed.rounds.loop.draw_cohorts",
        lambda plan, index, key: draw_cohorts(plan, 0, key),
    ),
    "charged once, summed twice": ("gdpfed.extras.canaries.transcript.WatchedFleet.sum_wave", _sums_twice),
}
"""Faults by name: the function to replace and its replacement, for batched simulations without masks."""


def _taken_back(
    change: Callable[[tuple[tuple[NewNoise, float], ...]], tuple[tuple[NewNoise, float], ...]],
) -> Any:
    def drawn(*asked: Any) -> SumNoise:
        noise = _draw_noise(*asked)
        return replace(noise, taken_back=change(noise.taken_back))

    return drawn


def _same_key_again(self: NoiseStreams, name: str, taps: tuple[float, ...], round_index: int) -> SumNoise:
    """Draw noise with a planted fault: every second round uses the noise key of the round before again."""
    noise = _draw_noise(self, name, taps, round_index)
    last = getattr(self, "last", None)
    if round_index % 2 and last is not None:
        noise = replace(noise, key=last)
    self.__dict__["last"] = noise.key
    return noise


def _corrections_alone(order: Any, parameters: Any, stream: SumNoise) -> Any:
    return sum_noise_steps(order, parameters, stream) - sum_noise_steps(
        order, parameters, replace(stream, taken_back=())
    )


STREAM_FAULTS: dict[str, tuple[str, Callable[..., Any]]] = {
    "stream, half the noise": FAULTS["half the noise"],
    "stream, other taps": (_STREAM, _taken_back(lambda parts: tuple((key, 1.0) for key, _ in parts))),
    "stream, taken back twice": (_STREAM, _taken_back(lambda parts: parts + parts)),
    "stream, no new noise": (_NOISE, _corrections_alone),
    "stream, noise used again": (_STREAM, _same_key_again),
}
"""Faults by name, for runs in which later rounds subtract a part of the earlier noise."""


_STEPS = "gdpfed.learning.training.record_training."
_FAR = 1e9


def _unclipped_sums(self: Any, thetas: Any, x: Any, y: Any, present: Any, *bound: Any) -> torch.Tensor:
    norms, unit = bound
    return _truncated_sums(self, thetas, x, y, present, _FAR * norms, unit)


def _unclipped_integers(*asked: Any, bounds: Sequence[float], unit: float) -> Any:
    return exact_sums(*asked, bounds=[_FAR for _ in bounds], unit=unit)


RECORD_FAULTS: dict[str, tuple[str, Callable[..., Any]]] = {
    "dp_sgd, no noise": (_STEPS + "gaussian_noise", lambda *asked, **how: 0 * gaussian_noise(*asked, **how)),
    "dp_sgd, half the noise": (
        _STEPS + "gaussian_noise",
        lambda *asked, **how: gaussian_noise(*asked, **how) / 2,
    ),
    "dp_sgd, no clipping": ("fastgrad.record_gradients.RecordGradients.truncated_sums", _unclipped_sums),
    "dp_sgd, one batch for all steps": (
        "gdpfed.learning.training.secret_draws.PoissonBatches.draw",
        lambda self, bits: _draw(self, keystream(bytes(32))),
    ),
    "dp_sgd, noise of one seed": (
        _STEPS + "gaussian_noise",
        lambda size, stddev, bits, **how: gaussian_noise(size, stddev, keystream(bytes(32)), **how),
    ),
    "dp_sum, no noise": FAULTS["no noise"],
    "dp_sum, half the noise": FAULTS["half the noise"],
    "dp_sum, noise of one seed": FAULTS["noise of one seed"],
    "dp_sum, no clipping": ("gdpfed.clients.works.gradient_sum.exact_sums", _unclipped_integers),
    "dp_sum, one batch for all steps": (
        "gdpfed.learning.training.secret_draws.PoissonBatches.draw",
        lambda self, bits: _draw(self, keystream(bytes(32))),
    ),
    "dp_sum, charged once, summed twice": FAULTS["charged once, summed twice"],
}
"""Faults by name, for simulations that protect records; each name begins with the training method."""


@contextmanager
def broken(fault: str) -> Iterator[None]:
    """Put the named fault into the audited program for the duration of the ``with`` block."""
    with patch(*(FAULTS | STREAM_FAULTS | RECORD_FAULTS)[fault]):
        yield
