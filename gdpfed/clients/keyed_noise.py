"""A client's part of a sum's noise, with the key from which a later round can redraw and subtract it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from math import inf
from typing import Any

KEY_BYTES = 32
AES, CHACHA20 = "aes256ctr", "chacha20"
_MARK = f"{CHACHA20}:"


@dataclass(frozen=True)
class KeyedNoise:
    """Gaussian noise that a 32-byte key determines: N(0, stddev^2) in every coordinate.

    `suite`: the cipher that the key is for. What one device has drawn another draws again by it.
    """

    key: bytes = field(repr=False)
    stddev: float
    suite: str = AES


@dataclass(frozen=True)
class NoiseShare:
    """The noise that a client added to one round's sum; later rounds may subtract parts of this noise.

    Attributes:
        run, round_index: of the sum.
        noise: of the share.
        dimension: of the sum.
        taps: g_1, ..., g_p: of the sum j rounds later g_j of the share is taken back.
        opened: when it was drawn, in seconds since 1970.
        lags: j of what has been taken back.
    """

    run: str
    round_index: int
    noise: KeyedNoise
    dimension: int
    taps: tuple[float, ...]
    opened: float
    lags: tuple[int, ...] = ()

    def is_over(self, run: str, round_index: int) -> bool:
        """Whether neither this round nor a later one subtracts any part of this noise."""
        last = max((lag for lag, tap in enumerate(self.taps, start=1) if tap > 0), default=0)
        return self.run == run and (self.round_index + last < round_index or last in self.lags)

    def part(self, round_index: int, dimension: int, most: float) -> KeyedNoise | None:
        """Return the part of this noise that a later round subtracts; None if it must not subtract any.

        So it is where a part was given out before, and where it does not fit the sum.
        """
        lag = round_index - self.round_index
        if not 1 <= lag <= len(self.taps) or lag in self.lags or dimension != self.dimension:
            return None
        stddev = self.taps[lag - 1] * self.noise.stddev
        return replace(self.noise, stddev=stddev) if 0 < stddev <= most else None

    def to_dict(self) -> dict[str, Any]:
        """Return this noise as a JSON mapping, which `from_dict` reads.

        A key for ChaCha20 has a mark before it. A version that knows AES alone cannot read it, and so draws
        no other noise from it.
        """
        values = {name: getattr(self, name) for name in _PLAIN}
        lists = {"taps": list(self.taps), "lags": list(self.lags)}
        mark = _MARK if self.noise.suite == CHACHA20 else ""
        return {**values, **lists, "key": mark + self.noise.key.hex(), "stddev": self.noise.stddev}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "NoiseShare":
        """Read the noise that `to_dict` wrote; raise KeyError, TypeError or ValueError for other data."""
        key, suite = data["key"], AES
        if str(key).startswith(_MARK):
            key, suite = key.removeprefix(_MARK), CHACHA20
        noise = KeyedNoise(bytes.fromhex(key), float(data["stddev"]), suite)
        if len(noise.key) != KEY_BYTES or not 0 < noise.stddev < inf:
            raise ValueError(
                f"the noise of a share needs a key of {KEY_BYTES} bytes and a standard deviation above 0"
            )
        plain = {name: data[name] for name in _PLAIN}
        return cls(noise=noise, taps=tuple(data["taps"]), lags=tuple(data["lags"]), **plain)


_PLAIN = ("run", "round_index", "dimension", "opened")


def member_key(key: bytes, client_id: int) -> bytes:
    """Derive the key of one client's noise from a key for all clients, in simulations."""
    return sha256(b"gdpfed share of noise" + key + client_id.to_bytes(8)).digest()
