"""The request of one stage of a sum, as a message holds it."""

from dataclasses import dataclass

from flwr.app import ConfigRecord, RecordDict

from gdpfed.clients.messages import DATA, ROUND, RUN, RoundOfRun
from secagg import RemoteProtocolError

MOST_ROUNDS = 2**31


@dataclass(frozen=True)
class StageRequest:
    """The request of one stage.

    Attributes:
        data: the bytes for the session.
        round_of_run: what it is part of.
        content: the whole message, with what the stage needs besides.
    """

    data: bytes
    round_of_run: RoundOfRun
    content: RecordDict

    @classmethod
    def of(cls, content: RecordDict, stage: str) -> "StageRequest":
        """The request for a stage in a message.

        Raises:
            RemoteProtocolError: its record lacks the bytes or does not say which round it is of.
        """
        record = content[stage]
        fields = record if isinstance(record, ConfigRecord) else {}
        data, run, index = (fields.get(name) for name in (DATA, RUN, ROUND))
        if not isinstance(data, bytes):
            raise RemoteProtocolError(stage, None, f"record {stage} holds no bytes")
        if not isinstance(run, str) or type(index) is not int or not 0 <= index < MOST_ROUNDS:
            reason = f"run {run!r}, round {index!r}: the message does not say which round it is of"
            raise RemoteProtocolError(stage, None, reason)
        return cls(data, RoundOfRun(run, index), content)
