"""GridFleet: the sums of a wave become exchanges with clients.

All sums of a wave share their exchanges, so a round costs four of them however many groups there are, and
two where its keys were agreed during the round before.
"""

from collections.abc import Sequence

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from conf.schema import SecAggConfig
from gdpfed.clients.messages import ORDER_RECORD, THETA_RECORD
from gdpfed.methods.base import ClientSum
from gdpfed.rounds.fleet import Fleet, PreparedSum
from gdpfed.rounds.pairwise import PairwiseSums
from secagg import Roster
from server_app.attendance import Attendance
from server_app.exchange import Exchanger
from server_app.masked import StageExchange
from server_app.plain import sum_plain


class GridFleet(Fleet):
    """Clients behind Flower's grid.

    Attributes:
        exchanger: sends and receives.
        run_name: what clients know the run by in ledgers of their own.
        roster: whose key is whose, empty where nobody signs.
        roster_is_sent: whether clients get it from the server, as they do where they believe what is first
            sent; those with the consortium's own file need none.
        attendance: knows who can be reached; None takes everybody for present.
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
    ) -> None:
        super().__init__(secagg, run_label)
        self.attendance = attendance
        self.run_name = run_name
        self.exchanger = exchanger
        self.seconds = exchanger.seconds
        self.roster = roster or Roster({})
        self.roster_is_sent = roster_is_sent
        self._sums = PairwiseSums(self.roster)

    def present(self, round_index: int) -> frozenset[int] | None:
        """Ask the grid who is there, and let in who has come; who was at fault too often is left out."""
        if self.attendance is None:
            return None
        before = dict(self.exchanger.nodes)
        present = self.attendance.present(round_index)
        gone = {client for client, node in before.items() if self.exchanger.nodes.get(client) != node}
        self._sums.forget(gone)
        return present - self._sums.left_out

    @property
    def prepares_ahead(self) -> bool:
        """Whether keys are agreed a round ahead: where there are keys, unless that is switched off."""
        return self.secagg.mode != "off" and self.secagg.keys_ahead

    def sum_wave(self, sums: Sequence[PreparedSum], upcoming: Sequence[PreparedSum]) -> dict[str, ClientSum]:
        """Exchange the messages of all sums, with masks or without."""
        training = training_contents(sums)
        if self.secagg.mode == "off":
            return sum_plain(self.exchanger, sums, training, self.run_name)
        sent = self.roster if self.roster_is_sent else Roster({})
        exchange = StageExchange(self.exchanger, self.run_name, training, sent)
        return self._sums.sum(exchange, sums, upcoming)


def training_contents(sums: Sequence[PreparedSum]) -> dict[int, RecordDict]:
    """Order and model as records for every client; sums that start from one model share its record."""
    models = {id(each.start): ArrayRecord({THETA_RECORD: Array(each.start)}) for each in sums}
    contents: dict[int, RecordDict] = {}
    for each in sums:
        parts = {part: each.order.for_part(part) for part in {each.part(client) for client in each.clients}}
        orders = {part: ConfigRecord(dict(order.to_scalars())) for part, order in parts.items()}
        for client_id in each.clients:
            order = orders[each.part(client_id)]
            contents[client_id] = RecordDict({ORDER_RECORD: order, THETA_RECORD: models[id(each.start)]})
    return contents
