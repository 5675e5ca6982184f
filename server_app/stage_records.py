"""Records of stages: the request to a client, and the bytes of its answer."""

from collections.abc import Mapping
from logging import WARNING

from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from flwr.common.logger import log

from gdpfed.clients.messages import DATA, REFUSAL, ROUND, RUN, one_line


def stage_record(data: bytes, run_name: str, round_index: int) -> ConfigRecord:
    """Return a stage's request: its bytes, its run and its round, for the client's own ledger."""
    return ConfigRecord({DATA: data, RUN: run_name, ROUND: round_index})


def answered_bytes(answers: Mapping[int, RecordDict], stage: str) -> dict[int, bytes]:
    """The bytes of every client that answers a stage; one that refuses it is named in the log.

    An answer without bytes counts as empty, which nobody takes for one.
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
