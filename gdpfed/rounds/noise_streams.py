"""Correlated noise: remembers the keys of earlier noise, so that later rounds can subtract parts of it.

What is new in a round is drawn from 32 bytes of the operating system: by the server where it adds the noise,
by every client where sums are masked. While parts of it are still to be taken back the server keeps its
bytes, and who has added a share, in the checkpoint, which its owner alone can read; then nothing is left from
which it could be drawn again. Noise that is never taken back costs accuracy and no epsilon (docs/privacy.md).
"""

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import hypot
from typing import Any

import numpy as np
import numpy.typing as npt

from gdpfed.clients.keyed_noise import KEY_BYTES
from gdpfed.methods.base import ClientSum

State = dict[str, npt.NDArray[np.generic]]

PREFIX = "noise."
_HEAD = struct.Struct(f">{KEY_BYTES}sdd")


@dataclass(frozen=True)
class NewNoise:
    """The new noise of one round's sum, with the key to draw it again when a part of it is subtracted.

    Attributes:
        round_index: of the sum.
        key: of the noise, where one process draws all of it.
        asked: the clients that were asked to add a share; empty where the server adds the noise.
        members: those whose shares are in the sum.
        share_stddev: the standard deviation of a share; 0 until it is known.
        largest_share: what it is at most for its parts to be taken back.
    """

    round_index: int
    key: bytes
    asked: tuple[int, ...] = ()
    members: tuple[int, ...] = ()
    share_stddev: float = 0.0
    largest_share: float = 0.0


@dataclass(frozen=True)
class SumNoise:
    """The noise of one sum: new noise, minus parts of the noise of earlier rounds.

    Attributes:
        key: of the noise that is new.
        taken_back: the new noise of each earlier round of which a part is taken back, and which part.
        new_share: the standard deviation of the new noise, in that of a sum that takes back all it may.
    """

    key: bytes
    taken_back: tuple[tuple[NewNoise, float], ...] = ()
    new_share: float = 1.0

    @property
    def largest_correction(self) -> float:
        """The largest standard deviation of the earlier noise that one client subtracts."""
        return hypot(*(tap * each.largest_share for each, tap in self.taken_back))


class NoiseStreams:
    """Stores earlier noise, by the name of its sum, as long as later rounds subtract parts of it.

    Args:
        most_taps: p, for how many rounds after its own a key is needed; 0 where noise is not correlated.
    """

    def __init__(self, most_taps: int) -> None:
        self.most_taps = most_taps
        self._kept: dict[str, dict[int, NewNoise]] = {}
        self._drawn: dict[str, NewNoise] = {}

    def draw(self, name: str, taps: tuple[float, ...], round_index: int) -> SumNoise:
        """Draw a key for a sum's new noise; return it with the earlier noise that the sum subtracts."""
        drawn = NewNoise(round_index, os.urandom(KEY_BYTES))
        self._drawn[name] = drawn
        return _noise(drawn.key, taps, round_index, self._kept.get(name, {}))

    def asked(self, name: str, clients: tuple[int, ...], largest_share: float) -> None:
        """Record which clients add a part of the new noise, and how large one client's part can be."""
        self._drawn[name] = replace(self._drawn[name], asked=clients, largest_share=largest_share)

    def expected(self, name: str, taps: tuple[float, ...], round_index: int) -> SumNoise:
        """Return the earlier noise that the next round subtracts if this round's sums are released."""
        drawn = {each.round_index: each for each in [self._drawn.get(name)] if each is not None}
        return _noise(b"", taps, round_index, self._kept.get(name, {}) | drawn)

    def round_ended(self, round_index: int, sums: Mapping[str, ClientSum]) -> None:
        """Keep the noise keys of released sums, and erase keys that no later round needs.

        What a sum that was thrown away carried is seen by nobody, so nothing of it is to be taken back; nor
        is it where shares are larger than they may be.
        """
        for name, drawn in self._drawn.items():
            summed = sums.get(name)
            if summed is None or summed.total is None or summed.share_stddev > drawn.largest_share:
                continue
            members = tuple(summed.members) if drawn.asked else ()
            kept = replace(drawn, members=members, share_stddev=summed.share_stddev)
            self._kept.setdefault(name, {})[round_index] = kept
        self._drawn = {}
        oldest = round_index + 1 - self.most_taps
        for name, kept_of in self._kept.items():
            self._kept[name] = {index: each for index, each in kept_of.items() if index >= oldest}

    def state_dict(self) -> State:
        """Return the stored noise keys that a resumed run needs, as bytes for each sum."""
        state: State = {}
        for name, kept in self._kept.items():
            for index, each in kept.items():
                members = np.array(each.members, dtype="<i8")
                packed = _HEAD.pack(each.key, each.share_stddev, each.largest_share) + members.tobytes()
                state[f"{PREFIX}{index}.{name}"] = np.frombuffer(packed, np.uint8)
        return state

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> State:
        """Take the stored noise keys out of a checkpoint's state; return the rest of the state.

        Raises ValueError for keys that a run with `most_taps` does not keep.
        """
        own = {key: value for key, value in state.items() if key.startswith(PREFIX)}
        for key, data in own.items():
            number, _, name = key.removeprefix(PREFIX).partition(".")
            kept, index = self._kept.setdefault(name, {}), int(number)
            if (
                data.dtype != np.uint8
                or data.ndim != 1
                or len(data) < _HEAD.size
                or (len(data) - _HEAD.size) % 8
            ):
                raise ValueError(ODD_KEYS)
            raw = data.tobytes()
            noise_key, share, largest = _HEAD.unpack_from(raw)
            members = tuple(np.frombuffer(raw, "<i8", offset=_HEAD.size).tolist())
            kept[index] = NewNoise(index, noise_key, members, members, share, largest)
            if len(kept) > self.most_taps:
                raise ValueError(ODD_KEYS)
        return {key: value for key, value in state.items() if key not in own}


ODD_KEYS = "the keys of noise that is to be subtracted are not those that this run keeps"


def _noise(key: bytes, taps: tuple[float, ...], round_index: int, kept: Mapping[int, NewNoise]) -> SumNoise:
    parts = [(kept.get(round_index - lag), tap) for lag, tap in enumerate(taps, start=1) if tap > 0]
    return SumNoise(
        key=key,
        taken_back=tuple((each, tap) for each, tap in parts if each is not None),
        new_share=1 / hypot(1.0, *taps),
    )
