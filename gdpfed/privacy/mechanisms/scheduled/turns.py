"""The schedule of clients: who takes part in which round (turns), fixed before a run from public numbers.

So a node knows of any round who may bring an update, and how many members its sum can have. It needs no word
of the server for that when the round comes.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np

from gdpfed.errors import PrivacyError
from gdpfed.privacy.sampling.laws import ClientIds

MOST_CLIENTS = 1_000_000


@dataclass(frozen=True)
class DealtTurns:
    """The schedule of one group: each client takes part in `width` of every `period` rounds.

    Client j has phase j mod P, and a turn in rounds that contain its phase.

    Attributes:
        clients: their ids, in the order of the group.
        period: P.
        width: w; w / P is the rate of turns in lowest terms.
    """

    clients: Sequence[int]
    period: int
    width: int

    def due(self, round_index: int) -> ClientIds:
        """Return the ids (int64, ascending) of the clients that are scheduled for a round.

        The last n mod P clients, which do not fill all phases alike, are spread evenly over them.
        """
        whole, rest = self.dealt
        first = round_index * self.width % self.period
        # Without a loop over the width, which may be any number in what a server offers.
        phases = (first + np.arange(min(self.width, whole))) % self.period
        places = (np.arange(0, whole, self.period)[:, None] + phases).ravel()
        # Of those left over, client i has the phase floor(i P / rest): the ones that are due are neighbours.
        begin, end = (-(-phase * rest // self.period) for phase in (first, first + self.width))
        chosen = np.concatenate([places, whole + np.arange(begin, end) % max(1, rest)])
        if isinstance(self.clients, range):
            return np.sort(self.clients.start + self.clients.step * chosen)
        return np.sort(np.asarray(self.clients, dtype=np.int64)[chosen])

    @property
    def dealt(self) -> tuple[int, int]:
        """The number of clients rounded down to a multiple of the period, and how many are left over."""
        rest = len(self.clients) % self.period
        return len(self.clients) - rest, rest


@dataclass(frozen=True)
class TurnSchedule:
    """The schedule of all groups whose clients are summed together."""

    groups: tuple[DealtTurns, ...]

    def due(self, round_index: int) -> frozenset[int]:
        """Return the clients that are scheduled for a round; an empty set before the first round."""
        if round_index < 0:
            return frozenset()
        return frozenset(client for group in self.groups for client in group.due(round_index).tolist())

    def members(self, round_index: int, taps: Sequence[float]) -> int:
        """Return how many clients a round's sum can have: those scheduled, and those that subtract noise."""
        return len(self.due(round_index) | self.correctors(round_index, taps))

    def correctors(self, round_index: int, taps: Sequence[float]) -> frozenset[int]:
        """Return the clients that subtract, in this round, a part of the noise of their earlier rounds."""
        lags = (lag for lag, tap in enumerate(taps, start=1) if tap > 0)
        return frozenset().union(*(self.due(round_index - lag) for lag in lags))

    def to_text(self) -> str:
        """Return the schedule as JSON: each group's period P, width w, and its clients as ranges."""
        return json.dumps([[group.period, group.width, _ranges(group.clients)] for group in self.groups])

    @classmethod
    def from_text(cls, text: str) -> "TurnSchedule":
        """Read the schedule that `to_text` wrote.

        Raises PrivacyError: another form, or a client twice.
        """
        try:
            ranges = [_checked_group(*group) for group in json.loads(text)]
            if sum(len(part) for _, _, parts in ranges for part in parts) > MOST_CLIENTS:
                raise ValueError(f"it has more than {MOST_CLIENTS} clients")
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise PrivacyError(f"the terms have no valid schedule of turns: {error}") from None
        groups = tuple(
            DealtTurns(tuple(client for part in parts for client in part), period, width)
            for period, width, parts in ranges
        )
        clients = [client for group in groups for client in group.clients]
        if len(set(clients)) < len(clients):
            raise PrivacyError(
                "the terms have a schedule of turns that names a client twice; each client belongs to "
                "one group"
            )
        return cls(groups)


@dataclass(frozen=True)
class NoiseStream:
    """The values on which all clients in a run's sums must agree if later sums subtract earlier noise.

    The proof needs new noise of s^2 from honest members in every sum, also in those that a client is not in.
    So the others must have agreed to the same as this client (docs/privacy.md, "Whose new noise counts").

    Attributes:
        num_rounds: T; no sum after these rounds takes noise back.
        taps: g, the parts of a sum's noise that later sums subtract.
        noise_stddev: s.
        corrupt_tolerance: the fraction of a sum's members that may be corrupt.
        schedule: whose turn each round is, as `TurnSchedule.to_text` writes it.
    """

    num_rounds: int
    taps: tuple[float, ...]
    noise_stddev: float
    corrupt_tolerance: float
    schedule: str

    @property
    def digest(self) -> str:
        """The SHA-256 of noise parameters and schedule, as hexadecimal text, which all members sign."""
        numbers = [float(each) for each in (*self.taps, self.noise_stddev, self.corrupt_tolerance)]
        text = json.dumps([self.num_rounds, numbers, self.schedule])
        return sha256(text.encode()).hexdigest()


def _checked_group(period: Any, width: Any, ranges: Any) -> tuple[int, int, list[range]]:
    numbers = [period, width, *(number for each in ranges for number in each)]
    if not all(type(number) is int and 0 <= number < 2**63 for number in numbers):
        raise ValueError("it holds what is not a number of a client or of a round")
    if not 1 <= width <= period or math.gcd(width, period) > 1:
        raise ValueError(f"{width} of {period} is not a rate of turns in lowest terms")
    return period, width, [range(first, last + 1, step) for first, last, step in ranges]


def _ranges(clients: Sequence[int]) -> list[list[int]]:
    """Write ascending ids as a few ranges [first, last, step]."""
    found: list[list[int]] = []
    for client in clients:
        if found and len(found[-1]) == 2 and client > found[-1][1]:
            found[-1].append(client - found[-1][1])
            found[-1][1] = client
        elif found and len(found[-1]) == 3 and client == found[-1][1] + found[-1][2]:
            found[-1][1] = client
        else:
            found.append([int(client), int(client)])
    return [each if len(each) == 3 else [*each, 1] for each in found]
