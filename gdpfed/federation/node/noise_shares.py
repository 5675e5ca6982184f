"""Noise that a node has added to sums and may subtract in later rounds; each part is used only once.

They lie in the session file, on the node's disk, and so outlast its process; without such a file, as in
simulation, in the node's state. A share that is lost costs accuracy and no epsilon (docs/privacy.md). Nothing
is charged for what is taken back: the sum must have all the new noise of the terms, so whoever sees it learns
no more than the turns have paid for.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from gdpfed.clients.keyed_noise import KeyedNoise, NoiseShare
from gdpfed.clients.messages import CONTEXT, DATA, TURNS, RoundOfRun
from gdpfed.federation.node.budget import BudgetRefusedError, check_terms_of_sum, places_of
from gdpfed.federation.node.ledger_file import locked_ledger
from gdpfed.federation.node.node_settings import Node
from gdpfed.federation.node.own_budget import Budgets
from gdpfed.federation.node.sessions import SHARES, session_file_of
from gdpfed.privacy.ledgers.terms import Terms
from secagg import RemoteProtocolError, Stage, SumParameters
from secagg.crypto.keys import CONTEXT_BYTES


@dataclass(frozen=True)
class Correction:
    """The server's request to a node to subtract, in this round, noise that the node added in earlier rounds.

    Attributes:
        turns: the rounds of its turns, earlier ones of the same run, of whose noise a part is due.
        context: what the members with an update train by, of which one without knows no more; else empty.
    """

    turns: tuple[int, ...] = ()
    context: bytes = b""

    @classmethod
    def of(cls, values: Mapping[str, Any], round_index: int) -> "Correction":
        """Read from a message which rounds' noise to subtract; raise RemoteProtocolError if it is invalid."""
        turns, context = values.get(TURNS, []), values.get(CONTEXT, b"")
        if not isinstance(turns, list) or not all(type(turn) is int for turn in turns):
            raise RemoteProtocolError(Stage.MASK, None, "the rounds whose noise to subtract are not numbers")
        if turns != sorted(set(turns)) or any(not 0 <= turn < round_index for turn in turns):
            reason = f"round {round_index} is to subtract noise of rounds {turns}: they are not before it"
            raise RemoteProtocolError(Stage.MASK, None, reason)
        if not isinstance(context, bytes) or len(context) not in (0, CONTEXT_BYTES):
            raise RemoteProtocolError(Stage.MASK, None, f"its context is not of 0 or {CONTEXT_BYTES} bytes")
        return cls(tuple(turns), context)


NO_CORRECTION = Correction()
"""Where a message asks for nothing back."""


def keep_share(
    node: Node, round_of_run: RoundOfRun, noise: KeyedNoise, dimension: int, taps: Sequence[float]
) -> None:
    """Store the key of new noise on disk, before a vector with that noise leaves the node."""
    share = NoiseShare(
        run=round_of_run.run,
        round_index=round_of_run.index,
        noise=noise,
        dimension=dimension,
        taps=tuple(taps),
        opened=time.time(),
    )
    with _shares(node) as shares:
        shares[:] = [*_left(shares, round_of_run), share]


def taken_back(
    node: Node, round_of_run: RoundOfRun, turns: Sequence[int], parameters: SumParameters
) -> list[KeyedNoise]:
    """Return the node's noise of earlier rounds that this round subtracts; each part is returned only once.

    A part whose share is lost, was given out before or does not fit the sum is left out.
    """
    most = parameters.correction_multiplier * parameters.clipping_norm * (1 + _ROUNDING)
    parts: list[KeyedNoise] = []
    with _shares(node) as shares:
        for number, share in enumerate(shares):
            if share.run != round_of_run.run or share.round_index not in turns:
                continue
            part = share.part(round_of_run.index, parameters.dimension, most)
            if part is not None:
                parts.append(part)
                lag = round_of_run.index - share.round_index
                shares[number] = replace(share, lags=(*share.lags, lag))
        shares[:] = _left(shares, round_of_run)
    return parts


def forget_shares(node: Node, round_of_run: RoundOfRun) -> None:
    """Erase stored noise that will not be subtracted in this or any later round."""
    file = session_file_of(node)
    kept = _in_state(node) if file is None else file.shares()
    if len(_left(kept, round_of_run)) < len(kept):
        with _shares(node) as shares:
            shares[:] = _left(shares, round_of_run)


# Between the server's product of numbers and the client's there is rounding.
_ROUNDING = 1e-9


def _left(shares: Sequence[NoiseShare], round_of_run: RoundOfRun) -> list[NoiseShare]:
    return [share for share in shares if not share.is_over(round_of_run.run, round_of_run.index)]


@contextmanager
def _shares(node: Node) -> Iterator[list[NoiseShare]]:
    """Yield the node's stored noise as a list; changes to the list are saved afterwards."""
    file = session_file_of(node)
    if file is not None:
        with file.changed_shares() as shares:
            yield shares
        return
    shares = _in_state(node)
    yield shares
    node.state[SHARES] = {DATA: json.dumps([share.to_dict() for share in shares]).encode()}


def _in_state(node: Node) -> list[NoiseShare]:
    record = node.state.get(SHARES)
    return [NoiseShare.from_dict(share) for share in json.loads(record[DATA])] if record else []


def check_correction(budgets: Budgets, round_of_run: RoundOfRun, parameters: SumParameters) -> Terms:
    """Return the run's terms; raise an error if the sum breaks them, or this client has no noise to subtract.

    A run of which it has noise has cost it something, so these terms stay.
    """
    with locked_ledger(*places_of(budgets)) as file:
        run = file.ledger.run(round_of_run.run)
        if not run.turns_to_take_back(round_of_run.index):
            raise BudgetRefusedError(
                f"this client has no noise to subtract in round {round_of_run.index} of {round_of_run.run}"
            )
        check_terms_of_sum(run.terms, round_of_run.index, parameters)
    return run.terms


def take_back(
    budgets: Budgets, round_of_run: RoundOfRun, parameters: SumParameters, turns: Sequence[int]
) -> None:
    """Record in the ledger on disk that noise of these earlier rounds is about to be subtracted.

    The ledger is where it is noted that each part is sent once: an old copy of the session file, in which
    the share still lies, does not undo it.

    Raises:
        BudgetRefusedError, PrivacyError: it must not be.
        LedgerError: the ledger cannot be relied on or written.
    """
    with locked_ledger(*places_of(budgets)) as file:
        run = file.ledger.run(round_of_run.run)
        check_terms_of_sum(run.terms, round_of_run.index, parameters)
        for turn in turns:
            run.take_back(turn, round_of_run.index)
        file.save()
