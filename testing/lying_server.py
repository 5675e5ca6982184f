"""A lying server, with colluding clients, that asks real nodes for sums; computes what sums reveal to it.

The server asks for any sum that it likes, and the nodes answer or refuse as in a deployment. For each masked
vector of an honest node the noise in it is noted, by its key. So all sums that were unmasked are one Gaussian
mechanism. Its mu follows from the noise that only honest nodes know.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partialmethod
from itertools import product
from math import inf
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt

from gdpfed.clients.keyed_noise import KeyedNoise
from gdpfed.clients.messages import CONTEXT, TURNS, RoundOfRun
from gdpfed.clients.noise import own_noise
from gdpfed.clients.order import TrainingOrder
from gdpfed.errors import InputError
from gdpfed.federation.node import agreed_terms, budget, sum_stages
from gdpfed.federation.node.contribution import Contributor
from gdpfed.federation.node.ledger_file import locked_ledger
from gdpfed.federation.node.node_settings import Node, NodeSettings
from gdpfed.privacy.ledgers.client import ClientLedger
from gdpfed.privacy.ledgers.terms import Terms
from secagg import ClientPolicy, ClientSession, Roster, SecAggError, ServerSession, SumParameters
from testing.known_identities import identity_of, keys_of, node_settings, write_files

Noise = Mapping[bytes, float]
"""Gaussian noise as its parts: by the key of each, its factor times its standard deviation."""
LENIENT = ClientPolicy(minimum_cohort=2, maximum_dropout_fraction=0.9)
REFUSALS = (InputError, SecAggError)
SAME = bytes(32)


@dataclass(frozen=True)
class Sent:
    """An honest node's contribution to a sum: the bound on its update (0 if it sent none), and its noise."""

    norm: float
    noise: Noise


@dataclass(frozen=True)
class AskedSum:
    """The sum that a lying server asks for; it need not be what the clients have agreed to.

    Attributes:
        round_of_run, parameters: as all members are told them.
        orders: the instruction to train of each member with an update.
        correctors: the members that are asked for no update.
        back: by member, the rounds whose noise it is to take back.
        lost: honest members whom the server calls lost before they send a vector.
        begun_again: by honest member, the terms on which the server begins the run again with it before its
            vector, once it has had the member forget the run.
    """

    round_of_run: RoundOfRun
    parameters: SumParameters
    orders: Mapping[int, TrainingOrder]
    correctors: Sequence[int] = ()
    back: Mapping[int, Sequence[int]] = field(default_factory=dict)
    lost: Collection[int] = ()
    begun_again: Mapping[int, Terms] = field(default_factory=dict)

    @property
    def members(self) -> list[int]:
        return [*self.orders, *self.correctors]


class LyingServer:
    """A lying server with some colluding clients; the other clients are real nodes.

    Attributes:
        nodes: of the honest clients.
        sums: of every sum that was unmasked, what honest nodes have put in.
        opened: what honest nodes have sent in sums in which colluders alone could unmask, or could have two
            lists of survivors signed.
    """

    def __init__(
        self, folder: Path, clients: int, colluders: Collection[int], settings: Mapping[str, Any]
    ) -> None:
        files = write_files(folder / "roster", keys_of(clients))
        self.nodes: dict[int, Node] = {}
        for client in sorted(set(range(clients)) - set(colluders)):
            own = {**settings, **node_settings(files, client), "secagg-mode": "active"}
            own |= {"partition-id": client, "ledger": str(folder / f"{client}.json")}
            self.nodes[client] = Node(NodeSettings(own), {}, "1")
        self._roster = Roster(keys_of(clients))
        self.sums: list[dict[int, Sent]] = []
        self.opened: list[dict[int, Sent]] = []
        self._sent: dict[int, Sent] = {}

    def begin(self, client: int, terms: Terms) -> bool:
        """Offer a run's terms (privacy costs and noise) to an honest node; return whether it agrees."""
        own = self.nodes[client].settings
        try:
            agreed_terms.check_feared(terms, own.policy.corrupt_fraction)
            budget.begin(own.budgets, terms)
        except REFUSALS:
            return False
        return True

    def agreed(self, client: int, run: str) -> Terms | None:
        """Return the terms of a run from a client's ledger; None if the ledger does not have the run."""
        with locked_ledger(*budget.places_of(self.nodes[client].settings.budgets)) as file:
            return next((each.terms for each in file.ledger.runs if each.terms.run == run), None)

    def begin_again(self, client: int, terms: Terms) -> bool:
        """Make a client begin another run, so that it may forget `terms`; then offer these terms again."""
        with patch.object(ClientLedger, "forget_free", partialmethod(ClientLedger.forget_free, most=1)):
            self.begin(client, replace(terms, run="another run"))
            return self.begin(client, terms)

    def ask(self, asked: AskedSum) -> dict[int, Sent]:
        """Ask for a sum; return what honest nodes have sent, even if the server cannot unmask the sum."""
        self._sent = {}
        mine = {
            member: ClientSession(member, LENIENT, identity=identity_of(member), roster=self._roster)
            for member in asked.members
            if member not in self.nodes
        }
        with patch.multiple(
            sum_stages, masked_update=self._masked_update, masked_correction=self._masked_correction
        ):
            try:
                server = ServerSession(
                    asked.parameters, asked.members, self._roster, correctors=asked.correctors
                )
                self._exchange(server, asked, mine)
                result = server.result()
            except (*REFUSALS, ValueError):
                return self._sent
            finally:
                self._note_quorum(asked.parameters, len(mine))
        seen = {*result.survivors, *result.correctors}
        self.sums.append({member: sent for member, sent in self._sent.items() if member in seen})
        return self._sent

    def _note_quorum(self, parameters: SumParameters, colluders: int) -> None:
        n, t = parameters.num_clients, parameters.threshold
        if self._sent and (t <= colluders or 2 * t <= n + colluders):
            self.opened.append(self._sent)

    def _exchange(self, server: ServerSession, asked: AskedSum, mine: Mapping[int, ClientSession]) -> None:
        gone: set[int] = set()
        while not server.done:
            stage = str(server.stage)
            if stage == "mask":
                server.bind(SAME)
                gone.update(asked.lost)
                for client, terms in asked.begun_again.items():
                    self.begin_again(client, terms)
            for member, data in server.requests().items():
                if member in gone:
                    continue
                try:
                    server.receive(member, self._answer(member, stage, data, asked, mine))
                except REFUSALS:
                    gone.add(member)
            server.close_stage()

    def _answer(
        self, member: int, stage: str, data: bytes, asked: AskedSum, mine: Mapping[int, ClientSession]
    ) -> bytes:
        if member in self.nodes:
            order = asked.orders.get(member)
            request = sum_stages.StageRequest(
                data,
                asked.round_of_run,
                order=None if order is None else order.to_scalars(),
                theta=np.zeros(asked.parameters.dimension, np.float32),
                correction={TURNS: sorted(asked.back.get(member, ())), CONTEXT: SAME},
            )
            return sum_stages.answer_stage(stage, lambda: request, self.nodes[member])
        session = mine[member]
        if stage != "mask":
            answer: bytes = getattr(session, stage)(data)
            return answer
        count, zeros = session.accept_shares(data), np.zeros(asked.parameters.dimension, np.int64)
        if session.corrects:
            return session.mask(zeros, SAME)
        # Noise that passes for its own, and that it knows.
        known = 1.01 * asked.parameters.client_noise_stddev(count) * (1 - 2 * (np.arange(len(zeros)) % 2))
        return session.mask(zeros, SAME, noise=session.encoding().encode_noise(known))

    def _masked_update(
        self,
        order: TrainingOrder,
        theta: npt.NDArray[np.float32],
        session: ClientSession,
        num_contributors: int,
        who: Contributor,
        share: KeyedNoise,
        taken_back: Sequence[KeyedNoise],
    ) -> bytes:
        """Mask zeros in place of a node's trained update, and record the update's bound and noise."""
        norm = min(order.clipping_norm, session.parameters.clipping_norm)
        self._sent[session.client_id] = Sent(norm, _parts([share], taken_back))
        noise = own_noise(order, session.parameters, num_contributors, share, taken_back)
        return session.mask(np.zeros(session.parameters.dimension, np.int64), SAME, noise=noise)

    def _masked_correction(
        self, session: ClientSession, context: bytes, taken_back: Sequence[KeyedNoise]
    ) -> bytes:
        self._sent[session.client_id] = Sent(0.0, _parts([], taken_back))
        return session.mask(np.zeros(session.parameters.dimension, np.int64), context)

    def mu(self, client: int, known: Collection[int] = ()) -> float:
        """Return the Gaussian DP parameter mu of all sums together, for the updates of one honest client.

        mu^2 = max over signs e of x^T K^-1 x. x_t = e_t C_t if sum t has an update of the client, else 0.
        K is the covariance of the noise that neither colluders nor the clients in `known` know. The result is
        infinite if some combination of the sums shows the updates without noise.
        """
        rows = [
            {
                key: part
                for member, sent in row.items()
                if member not in known
                for key, part in sent.noise.items()
            }
            for row in self.sums
        ]
        keys = sorted({key for row in rows for key in row})
        loads = np.array([[row.get(key, 0.0) for key in keys] for row in rows]).reshape(len(rows), len(keys))
        norms = np.array([row[client].norm if client in row else 0.0 for row in self.sums])
        turns = np.flatnonzero(norms)
        if not len(turns):
            return 0.0
        variances, directions = np.linalg.eigh(loads @ loads.T)
        bare = variances <= 1e-12 * variances[-1]
        worst = 0.0
        for signs in product((1.0, -1.0), repeat=len(turns) - 1):
            shift = np.zeros(len(rows))
            shift[turns] = norms[turns] * np.array((1.0, *signs))
            along = directions.T @ shift
            if np.any(abs(along[bare]) > 1e-6 * norms.max()):
                return inf
            worst = max(worst, float(np.sum(along[~bare] ** 2 / variances[~bare])))
        return float(np.sqrt(worst))


def _parts(new: Sequence[KeyedNoise], taken_back: Sequence[KeyedNoise]) -> dict[bytes, float]:
    parts: dict[bytes, float] = {}
    for sign, noises in ((1.0, new), (-1.0, taken_back)):
        for noise in noises:
            parts[noise.key] = parts.get(noise.key, 0.0) + sign * noise.stddev
    return parts
