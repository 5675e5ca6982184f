"""The noise of streams of sums, of which later rounds take parts back, where the server adds it.

What is new in a round is drawn from 32 bytes of the operating system. While parts of it are still to be taken
back the bytes are kept, in the checkpoint, which its owner alone can read; then nothing is left from which it
could be drawn again. Noise that is never taken back costs accuracy and no epsilon (docs/privacy.md).
"""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import hypot
from typing import Any

import numpy as np
import numpy.typing as npt

State = dict[str, npt.NDArray[np.generic]]

KEY_BYTES = 32
PREFIX = "noise."
NUMBER_BYTES = 8


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


class NoiseStreams:
    """The keys of the noise that is still to be taken back, of every stream: sums of one name.

    Args:
        most_taps: p, for so many rounds a key is needed after its own; 0 where noise is not correlated.
    """

    def __init__(self, most_taps: int) -> None:
        self.most_taps = most_taps
        self._keys: dict[str, dict[int, bytes]] = {}
        self._drawn: dict[str, bytes] = {}

    def draw(self, name: str, taps: tuple[float, ...], round_index: int) -> SumNoise:
        """Return the noise of a sum, with a fresh key; it takes back g_j of what was new in round t - j."""
        kept = self._keys.get(name, {})
        parts = [(kept.get(round_index - lag), tap) for lag, tap in enumerate(taps, start=1) if tap > 0]
        key = os.urandom(KEY_BYTES)
        self._drawn[name] = key
        return SumNoise(
            key=key,
            taken_back=tuple((key, tap) for key, tap in parts if key is not None),
            new_share=1 / hypot(1.0, *taps),
        )

    def round_ended(self, round_index: int, released: Collection[str]) -> None:
        """Keep the noise of the sums that were released, and erase what no later round takes back.

        What a sum that was thrown away carried is seen by nobody, so nothing of it is to be taken back.
        """
        for name in self._drawn.keys() & set(released):
            self._keys.setdefault(name, {})[round_index] = self._drawn[name]
        self._drawn = {}
        oldest = round_index + 1 - self.most_taps
        for name, keys in self._keys.items():
            self._keys[name] = {index: key for index, key in keys.items() if index >= oldest}

    def state_dict(self) -> State:
        """Return what a resumed run needs: per stream with keys uint8 (r, 40), round and key; or nothing."""
        return {
            f"{PREFIX}{name}": np.array(
                [np.frombuffer(index.to_bytes(NUMBER_BYTES) + key, np.uint8) for index, key in keys.items()]
            )
            for name, keys in self._keys.items()
            if keys
        }

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> State:
        """Take what `state_dict` returned out of a checkpoint's state, and return the rest.

        Raises ValueError for keys that a run with so many taps does not keep.
        """
        own = {name: value for name, value in state.items() if name.startswith(PREFIX)}
        for name, rows in own.items():
            whole = rows.ndim == 2 and rows.shape[1] == NUMBER_BYTES + KEY_BYTES and rows.dtype == np.uint8
            if not whole or len(rows) > self.most_taps:
                raise ValueError(
                    "the keys of noise that is to be taken back are not those that this run keeps"
                )
            data = [row.tobytes() for row in rows]
            self._keys[name.removeprefix(PREFIX)] = {
                int.from_bytes(each[:NUMBER_BYTES]): each[NUMBER_BYTES:] for each in data
            }
        return {name: value for name, value in state.items() if name not in own}
