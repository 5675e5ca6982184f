"""Convert Flower's messages to plain values: node settings, node state, and requests for secure sums."""

import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, RecordDict

from gdpfed.clients.messages import (
    CLIENT_RECORD,
    CORRECTION_RECORD,
    DATA,
    JOINED,
    ORDER_RECORD,
    ROSTER_RECORD,
    ROUND,
    RUN,
    SECRET,
    TERMS_RECORD,
    THETA_RECORD,
    RoundOfRun,
    one_line,
)
from gdpfed.federation.node.budget import BudgetRefusedError
from gdpfed.federation.node.node_settings import Node, NodeSettings
from gdpfed.federation.node.node_sides import NODE_SIDES, Values
from gdpfed.federation.node.stand_ins import StandIn
from gdpfed.federation.node.sum_stages import StageRequest
from gdpfed.privacy.ledgers.terms import Terms
from secagg import RemoteProtocolError

MOST_ROUNDS = 2**31
_TRAINS: ContextVar[StandIn | None] = ContextVar("_TRAINS", default=None)


class ContextState(MutableMapping[str, Mapping[str, Any]]):
    """A mapping over the config records that Flower keeps for a node between the messages of a run."""

    def __init__(self, records: RecordDict) -> None:
        self._records = records

    def __getitem__(self, name: str) -> Mapping[str, Any]:
        return self._records.config_records[name]

    def __setitem__(self, name: str, values: Mapping[str, Any]) -> None:
        self._records[name] = ConfigRecord(dict(values))

    def __delitem__(self, name: str) -> None:
        del self._records[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._records.config_records)

    def __len__(self) -> int:
        return len(self._records.config_records)


def settings_of(context: Context) -> NodeSettings:
    """Return the settings that the operator gave when the node was started."""
    return NodeSettings(context.node_config, in_flowers_simulation(), _TRAINS.get())


@contextmanager
def training_by(function: StandIn) -> Iterator[None]:
    """Let nodes train with a given function, such as one of a user's app, until the ``with`` block ends."""
    token = _TRAINS.set(function)
    try:
        yield
    finally:
        _TRAINS.reset(token)


def node_of(context: Context) -> Node:
    """Return a node's settings, state and run id, taken from Flower's context of a message."""
    return Node(settings_of(context), ContextState(context.state), str(context.run_id))


def values_in(content: RecordDict, name: str) -> Mapping[str, Any] | None:
    """Return the values of the Flower config record with this name in a message, or None if there is none."""
    record = content.get(name)
    return record if isinstance(record, ConfigRecord) else None


def parted(content: RecordDict) -> RecordDict:
    """Split up the small Flower records that the server joined in a message; return the original records.

    Raises an exception of any type if the records do not have the form that a server gives them.
    """
    found: dict[str, dict[str, Any]] = {}
    for word, value in (values_in(content, JOINED) or {}).items():
        name, key, *kind = word.split("/", 2)
        found.setdefault(name, {})[key] = Array(np.frombuffer(value, kind[0])) if kind else value
    records = RecordDict({name: record for name, record in content.items() if name != JOINED})
    for name, values in found.items():
        arrays = any(isinstance(value, Array) for value in values.values())
        records[name] = ArrayRecord(values) if arrays else ConfigRecord(values)
    return records


def run_in(content: RecordDict, asked: str) -> str:
    """Return the id of the run that a message names, as printable text; "" if the message names no run."""
    for name in (asked, TERMS_RECORD, CLIENT_RECORD):
        said = (values_in(content, name) or {}).get(RUN)
        if isinstance(said, str):
            return one_line(said)
    return ""


def told_in(content: RecordDict) -> dict[str, Values]:
    """Return what each of the server's plug-ins tells the node in a message: values by the plug-in's name."""
    return {name: dict(values_in(content, name) or {}) for name in NODE_SIDES.names() if name in content}


def stage_request(content: RecordDict, stage: str) -> StageRequest:
    """Return a message's request for one stage of a secure sum.

    Raises RemoteProtocolError: the stage's record lacks the bytes, or does not name its run and round.
    """
    fields = values_in(content, stage) or {}
    data, run, index = (fields.get(name) for name in (DATA, RUN, ROUND))
    if not isinstance(data, bytes):
        raise RemoteProtocolError(stage, None, f"record {stage} holds no bytes")
    if not isinstance(run, str) or type(index) is not int or not 0 <= index < MOST_ROUNDS:
        reason = f"run {run!r}, round {index!r}: the message does not say which round it is of"
        raise RemoteProtocolError(stage, None, reason)
    arrays = content.get(THETA_RECORD)
    theta = np.asarray(arrays[THETA_RECORD].numpy()) if isinstance(arrays, ArrayRecord) else None
    return StageRequest(
        data,
        RoundOfRun(run, index),
        order=values_in(content, ORDER_RECORD),
        theta=theta,
        roster=values_in(content, ROSTER_RECORD),
        correction=values_in(content, CORRECTION_RECORD),
        secret=str(fields.get(SECRET, "")),
    )


def terms_in(content: RecordDict) -> Terms:
    """Return the conditions of a run (terms) in a message; raise BudgetRefusedError if there are none."""
    record = values_in(content, TERMS_RECORD)
    if record is None:
        raise BudgetRefusedError(
            f"the message lacks the record {TERMS_RECORD}: run one version on server and nodes"
        )
    return Terms.from_scalars(dict(record))


def in_flowers_simulation() -> bool:
    """Whether this process is a Ray actor, in which Flower's simulation backend runs ClientApps.

    A simulated node has no settings and may send its update in clear (`secagg=off`). So a node that an
    operator starts must not be taken for a simulated one, and no message, configuration or environment
    variable can change the answer. Flower 1.41 calls a simulated ClientApp in a Ray actor
    (`flwr.simulation.ray_transport.ray_actor`). It calls a SuperNode's ClientApp in another program,
    `flwr-clientapp`, which does not start Ray. A process is an actor only if Ray's worker program started it;
    code that calls `ray.init` becomes a driver. The app's own code could still imitate an actor, but its
    sender could also send an app without this check (docs/privacy.md, *a person who may submit runs*).
    """
    # Ray is not imported here: its actors have it loaded, and elsewhere loading it takes a second.
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return False
    return ray.get_runtime_context().get_actor_id() is not None
