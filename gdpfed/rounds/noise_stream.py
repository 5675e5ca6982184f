"""The noise of a stream of sums, of which later rounds take parts back, where the server adds it.

What is new in a round is drawn from 32 bytes of the operating system. While parts of it are still to be taken
back the bytes are kept, in the checkpoint, which its owner alone can read; then nothing is left from which it
could be drawn again. Noise that is never taken back costs accuracy and no epsilon (docs/privacy.md).
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from math import hypot
from typing import Any

import numpy as np
import numpy.typing as npt

State = dict[str, npt.NDArray[np.generic]]

KEY_BYTES = 32
KEYS, ROUNDS = "noise.keys", "noise.rounds"


@dataclass(frozen=True)
class SumNoise:
    """The noise of one sum: its own, and what it takes back.

    Attributes:
        key: of the noise that is new.
        taken_back: the key of each earlier round's noise of which a part is taken back, and which part.
        new_share: the standard deviation of the new noise, in that of a sum that takes back all it may.
    """

    key: bytes
    taken_back: tuple[tuple[bytes, float], ...] = ()
    new_share: float = 1.0


class NoiseStream:
    """The keys of the noise that is still to be taken back; none where noise is not correlated.

    Args:
        taps: g_1, ..., g_p: sum t takes back g_j of the new noise of sum t - j.
    """

    def __init__(self, taps: tuple[float, ...]) -> None:
        self.taps = taps
        self._keys: dict[int, bytes] = {}
        self._drawn: tuple[int, SumNoise] | None = None

    def draw(self, round_index: int) -> SumNoise:
        """Return the noise of the one sum of a round, with a fresh key."""
        lags = enumerate(self.taps, start=1)
        parts = [(self._keys.get(round_index - lag), tap) for lag, tap in lags if tap > 0]
        noise = SumNoise(
            key=os.urandom(KEY_BYTES),
            taken_back=tuple((key, tap) for key, tap in parts if key is not None),
            new_share=1 / hypot(1.0, *self.taps),
        )
        self._drawn = round_index, noise
        return noise

    def released(self, round_index: int) -> None:
        """Keep the noise of a sum that was released, and erase what no later round takes back.

        What a sum that was thrown away carried is seen by nobody, so nothing of it is to be taken back.
        """
        if self._drawn is not None and self._drawn[0] == round_index:
            self._keys[round_index] = self._drawn[1].key
        self._drawn = None
        oldest = round_index + 1 - len(self.taps)
        self._keys = {index: key for index, key in self._keys.items() if index >= oldest}

    def state_dict(self) -> State:
        """Return the keys that a resumed run needs, shape (r, 32), and their rounds; nothing for none."""
        if not self._keys:
            return {}
        keys = np.array([np.frombuffer(each, dtype=np.uint8) for each in self._keys.values()])
        return {KEYS: keys, ROUNDS: np.array(list(self._keys), dtype=np.int64)}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> State:
        """Take what `state_dict` returned out of a checkpoint's state, and return the rest.

        Raises ValueError for keys that a run with these taps does not keep.
        """
        rest = {key: value for key, value in state.items() if key not in (KEYS, ROUNDS)}
        keys, rounds = (
            state.get(KEYS, np.zeros((0, KEY_BYTES), np.uint8)),
            state.get(ROUNDS, np.zeros(0, np.int64)),
        )
        if keys.shape != (len(rounds), KEY_BYTES) or keys.dtype != np.uint8 or len(rounds) > len(self.taps):
            raise ValueError("the keys of noise that is to be taken back are not those that this run keeps")
        self._keys = {int(index): key.tobytes() for index, key in zip(rounds, keys, strict=True)}
        return rest
