"""GridFleet: the jobs of a wave become exchanges with clients and come back as sums.

All jobs of a wave share their exchanges, so a round costs four of them however many groups there are, and
two where its keys were agreed during the round before.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from math import inf

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from conf.schema import SecAggConfig
from gdpfed.clients.messages import ORDER_RECORD, THETA_RECORD
from gdpfed.clients.order import TrainingOrder
from gdpfed.methods.base import ClientSum, Theta
from gdpfed.rounds.fleet import Fleet, Jobs
from gdpfed.rounds.pairwise import PairwiseSums
from server_app.attendance import Attendance
from server_app.exchange import Exchanger
from server_app.masked import StageExchange
from server_app.plain import sum_plain


class GridFleet(Fleet):
    """Clients behind Flower's grid.

    Attributes:
        exchanger: sends and receives.
        run_name: what clients know the run by in ledgers of their own.
        roster: the public identity key of every client, in active mode.
        attendance: knows who can be reached; None takes everybody for present.
    """

    def __init__(
        self,
        exchanger: Exchanger,
        secagg: SecAggConfig,
        run_label: str,
        roster: Mapping[int, bytes] | None = None,
        *,
        run_name: str = "",
        attendance: Attendance | None = None,
    ) -> None:
        super().__init__(secagg, run_label)
        self.attendance = attendance
        self.run_name = run_name
        self.exchanger = exchanger
        self.seconds = exchanger.seconds
        self.roster = dict(roster or {})
        self._sums = PairwiseSums(self.roster)

    def present(self, round_index: int) -> frozenset[int] | None:
        """Ask the grid who is there, and let in who has come."""
        if self.attendance is None:
            return None
        before = dict(self.exchanger.nodes)
        present = self.attendance.present(round_index)
        gone = {client for client, node in before.items() if self.exchanger.nodes.get(client) != node}
        self._sums.forget(gone)
        return present

    def sum_jobs(
        self,
        order: TrainingOrder,
        theta: Theta,
        jobs: Jobs,
        clipping_norms: Mapping[int, float],
        upcoming: Jobs,
    ) -> dict[str, ClientSum]:
        """Exchange the messages of all jobs, with masks or without."""
        clients = chain(*(client_ids for _, client_ids in jobs.values()))
        norms = {client_id: clipping_norms.get(client_id, inf) for client_id in clients}
        training = training_contents(order, theta, norms)
        if self.secagg.mode == "off":
            return sum_plain(self.exchanger, jobs, training, self.run_name, order.round_index)
        exchange = StageExchange(self.exchanger, self.run_name, training, self.roster)
        ahead = upcoming if self.secagg.keys_ahead else {}
        return self._sums.sum(exchange, jobs, order.context(theta), order.round_index, ahead)


def training_contents(
    order: TrainingOrder, theta: Theta, clipping_norms: Mapping[int, float]
) -> dict[int, RecordDict]:
    """Order and model as records for every client; all share the model's, those of one norm the order's."""
    model = ArrayRecord({THETA_RECORD: Array(theta)})
    orders = {
        norm: ConfigRecord(dict(replace(order, clipping_norm=norm).to_scalars()))
        for norm in set(clipping_norms.values())
    }
    return {
        client_id: RecordDict({ORDER_RECORD: orders[norm], THETA_RECORD: model})
        for client_id, norm in clipping_norms.items()
    }
