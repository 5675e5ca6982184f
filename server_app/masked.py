"""The exchanges of sums under secure aggregation: stages become records, several of them one message."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flwr.app import ConfigRecord, RecordDict

from gdpfed.clients.messages import ROSTER_RECORD
from gdpfed.rounds.pairwise import StageRequests
from secagg import Roster, Stage
from server_app.exchange import Exchanger
from server_app.stage_records import answered_bytes, stage_record


@dataclass(frozen=True)
class StageExchange:
    """Carries the stages of sums to clients.

    Attributes:
        run_name: what clients know the run by.
        training: what each client needs to train, sent with the request for its masked vector.
        roster: whose key is whose, sent with the first request; empty where the clients have it.
    """

    exchanger: Exchanger
    run_name: str
    training: Mapping[int, RecordDict]
    roster: Roster

    def __call__(self, asked: Sequence[StageRequests]) -> list[dict[int, bytes]]:
        """Send all that is asked of a client in one message; the answers to each of ``asked``."""
        contents: dict[int, RecordDict] = {}
        for each in asked:
            for client_id, data in each.requests.items():
                content = contents.setdefault(client_id, RecordDict())
                content[str(each.stage)] = stage_record(data, self.run_name, each.round_index)
                content.update(self._extra(each.stage, client_id))
        answers = self.exchanger.exchange(contents)
        return [_answers_to(each, answers) for each in asked]

    def _extra(self, stage: Stage, client_id: int) -> RecordDict:
        if stage is Stage.MASK:
            return self.training[client_id]
        return roster_content(self.roster) if stage is Stage.ADVERTISE else RecordDict()


def _answers_to(asked: StageRequests, answers: Mapping[int, RecordDict]) -> dict[int, bytes]:
    own = {client_id: answers[client_id] for client_id in asked.requests if client_id in answers}
    return answered_bytes(own, str(asked.stage))


def roster_content(roster: Roster) -> RecordDict:
    """The roster as a record; nothing where there is none."""
    if not roster:
        return RecordDict()
    record = ConfigRecord({"clients": list(roster), "keys": list(roster.values())})
    return RecordDict({ROSTER_RECORD: record})
