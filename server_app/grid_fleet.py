"""GridFleet: computes sums over clients by exchanging messages through Flower's grid.

All sums of a wave share their exchanges. So a round with one wave needs four exchanges (five in mode active),
whatever the number of groups, and two fewer if its keys were agreed on during the previous round.
"""

from collections.abc import Collection, Mapping, Sequence
from logging import WARNING

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.common.logger import log

from conf.schema import SecAggConfig
from gdpfed.clients.messages import (
    CONTEXT,
    CORRECTION_RECORD,
    DATA,
    ORDER_RECORD,
    PLAIN,
    REFUSAL,
    ROSTER_RECORD,
    ROUND,
    RUN,
    SECRET,
    THETA_RECORD,
    TURNS,
    one_line,
)
from gdpfed.federation.server.attendance import Attendance
from gdpfed.methods.base import ClientSum
from gdpfed.rounds.fleet import Fleet, Suffices, any_number
from gdpfed.rounds.pairwise import StageRequests
from gdpfed.rounds.plain import summed_in_clear
from gdpfed.rounds.prepared import PreparedSum
from secagg import Roster, Stage
from server_app.exchange import Exchanger


class GridFleet(Fleet):
    """Sends clients their instructions through Flower's grid, and returns sums of what clients compute.

    Attributes:
        exchanger: sends messages and receives answers.
        run_name: the run's name in the clients' own ledgers.
        roster: the clients' public keys; empty if clients do not sign.
        roster_is_sent: whether the server sends the roster to clients, for clients that trust the first
            roster they receive; clients with the consortium's roster file do not need it.
        attendance: knows which clients can be reached; None if all clients count as reachable.
        is_edge: whether this server is an edge, which its clients may trust with single updates.
    """

    def __init__(
        self,
        exchanger: Exchanger,
        secagg: SecAggConfig,
        run_label: str,
        roster: Roster | None = None,
        *,
        roster_is_sent: bool = True,
        run_name: str = "",
        attendance: Attendance | None = None,
        is_edge: bool = False,
    ) -> None:
        super().__init__(secagg, f"{run_name}/{run_label}")
        self.is_edge = is_edge
        self.attendance = attendance
        self.run_name = run_name
        self.exchanger = exchanger
        self.seconds = exchanger.seconds
        self.roster = roster or Roster({})
        self.roster_is_sent = roster_is_sent

    @property
    def has_edges(self) -> bool:
        """Whether this server is an edge server that sums updates in clear and adds the noise itself."""
        return self.is_edge and not self.secagg.hides_updates

    def present(self, round_index: int, suffices: Suffices = any_number) -> frozenset[int] | None:
        """Admit new clients and return those that are online, without clients that failed too often."""
        if self.attendance is None:
            return None
        before = dict(self.exchanger.nodes)
        left_out = self._pairwise.left_out
        present = self.attendance.present(round_index, lambda there: suffices(frozenset(there) - left_out))
        gone = {client for client, node in before.items() if self.exchanger.nodes.get(client) != node}
        self._pairwise.forget(gone)
        return present - self._pairwise.left_out

    @property
    def prepares_ahead(self) -> bool:
        """Whether clients agree on mask keys one round ahead: True with masks, unless switched off."""
        return self.secagg.hides_updates and self.secagg.keys_ahead

    def roster_of(self, clients: Sequence[int]) -> Roster:
        """Return the list of all clients' public keys (roster), which is the same for every sum."""
        return self.roster

    def exchange(self, asked: Sequence[StageRequests]) -> list[dict[int, bytes]]:
        """Send each client all its requests in one message; return the answers for each item of `asked`."""
        masking = [each.prepared for each in asked if each.stage is Stage.MASK]
        training = training_contents(masking) | correction_contents(masking)
        roster = roster_content(self.roster) if self.roster_is_sent else RecordDict()
        contents: dict[int, RecordDict] = {}
        for each in asked:
            for client_id, data in each.requests.items():
                content = contents.setdefault(client_id, RecordDict())
                content[str(each.stage)] = self._record(client_id, data, each.prepared)
                if each.stage is Stage.MASK:
                    content.update(training[client_id])
                elif each.stage is Stage.ADVERTISE:
                    content.update(roster)
        answers = self.exchanger.exchange(contents)
        answered = [
            answered_bytes(
                {client_id: answers[client_id] for client_id in each.requests if client_id in answers},
                str(each.stage),
            )
            for each in asked
        ]
        for each, updates in zip(asked, answered, strict=True):
            if each.stage is Stage.MASK:
                self._received(
                    {client: updates[client] for client in updates.keys() - each.prepared.without_update},
                    each.prepared,
                )
        return answered

    def reachable(self, clients: Collection[int]) -> frozenset[int]:
        """Return which of these clients are online and have not failed too often."""
        return frozenset(clients).intersection(self.exchanger.nodes) - self._pairwise.left_out

    def _record(self, client: int, data: bytes, asked: PreparedSum) -> ConfigRecord:
        """Return a request for one stage, with run name, round, and the run's secret for this client."""
        secret = "" if self.attendance is None else self.attendance.history.secrets.get(client, "")
        return ConfigRecord({DATA: data, RUN: self.run_name, ROUND: asked.order.round_index, SECRET: secret})

    def _received(self, updates: Mapping[int, bytes], prepared: PreparedSum) -> None:
        """Record which clients' updates have arrived; an empty answer does not count."""
        if self.attendance is not None:
            there = [client_id for client_id, update in updates.items() if update]
            self.attendance.history.received(there, prepared.order.round_index)

    def sum_plain(self, sums: Sequence[PreparedSum]) -> dict[str, ClientSum]:
        """Ask clients for unmasked updates; the server sees each of them and adds the noise itself."""
        training, contents = training_contents(sums), dict[int, RecordDict]()
        for each in sums:
            for client_id in each.clients:
                record = self._record(client_id, each.parameters.to_bytes(), each)
                contents[client_id] = RecordDict({PLAIN: record, **training[client_id]})
        answers = self.exchanger.exchange(contents) if contents else {}
        updates = answered_bytes(answers, PLAIN)
        if sums:
            self._received(updates, sums[0])
        return summed_in_clear(sums, updates)


def roster_content(roster: Roster) -> RecordDict:
    """Return the list of public keys (roster) as a message's record; empty if there is no list."""
    if not roster:
        return RecordDict()
    record = ConfigRecord({"clients": list(roster), "keys": list(roster.values())})
    return RecordDict({ROSTER_RECORD: record})


def training_contents(sums: Sequence[PreparedSum]) -> dict[int, RecordDict]:
    """Return each client's message: the instruction, the start model, and any earlier noise to subtract."""
    models = {id(each.start): ArrayRecord({THETA_RECORD: Array(each.start)}) for each in sums}
    contents: dict[int, RecordDict] = {}
    for each in sums:
        parts = {part: each.order.for_part(part) for part in {each.part(client) for client in each.clients}}
        orders = {part: ConfigRecord(dict(order.to_scalars())) for part, order in parts.items()}
        for client_id in each.clients:
            order = orders[each.part(client_id)]
            content = RecordDict({ORDER_RECORD: order, THETA_RECORD: models[id(each.start)]})
            if each.beside.corrections.get(client_id):
                content[CORRECTION_RECORD] = correction_record(each, client_id)
            contents[client_id] = content
    return contents


def correction_contents(sums: Sequence[PreparedSum]) -> dict[int, RecordDict]:
    """Return messages for clients that send no update: each names the rounds whose noise to subtract."""
    return {
        client_id: RecordDict({CORRECTION_RECORD: correction_record(each, client_id)})
        for each in sums
        for client_id in each.without_update
    }


def correction_record(prepared: PreparedSum, client_id: int) -> ConfigRecord:
    """Return a record of the rounds whose noise a client must now subtract in part."""
    context = prepared.context if client_id in prepared.without_update else b""
    return ConfigRecord({TURNS: list(prepared.beside.corrections.get(client_id, ())), CONTEXT: context})


def answered_bytes(answers: Mapping[int, RecordDict], stage: str) -> dict[int, bytes]:
    """Return each client's answer to one stage of a secure sum; log the clients that refused.

    An answer without bytes becomes empty bytes, which every stage refuses.
    """
    data: dict[int, bytes] = {}
    for client_id, answer in answers.items():
        record = answer.get(stage)
        fields = record if isinstance(record, ConfigRecord) else {}
        large = record.get(DATA) if isinstance(record, ArrayRecord) else None
        given = fields.get(DATA) if large is None else large.data
        if REFUSAL in fields:
            log(WARNING, "client %d left in stage %s: %s", client_id, stage, one_line(fields[REFUSAL]))
        else:
            data[client_id] = given if isinstance(given, bytes) else b""
    return data
