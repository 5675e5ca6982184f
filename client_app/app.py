"""ClientApp: one handler a message type. Whatever goes wrong is answered with a refusal, never raised.

An exception that left a handler would lose the erasure of the session, and its text, which may tell of
the data, would travel to the server in clear.

In a deployment each message starts a fresh process, which loads what its handler needs: only those that
train import torch.
"""

from collections.abc import Callable
from functools import wraps
from logging import ERROR

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.logger import log

from client_app import budget
from client_app.identity import accept_roster, make_identity
from client_app.session import erase_session, keep_session, open_session, stored_session
from client_app.settings import NodeConfigError, budget_of, check_data, client_id_of, data_of, policy_of
from client_app.update import encoded_update, order_and_model
from gdpfed.exchange import (
    ADVERTISE,
    BEGIN,
    CHECK,
    CLIENT_RECORD,
    JOIN,
    MASKED,
    OFFER,
    PLAIN,
    REFUSAL_RECORD,
    SESSION_RECORD,
    SHARE,
    UNMASK,
    UPDATE_RECORD,
)
from gdpfed.privacy.errors import PrivacyError
from secagg import RoundParameters, SecAggError

app = ClientApp()

Handler = Callable[[Message, Context], RecordDict]

# Their texts tell of the protocol, of the node's configuration, budgets and terms, and never of data.
PUBLIC_ERRORS = (SecAggError, NodeConfigError, PrivacyError)


def answering(handler: Handler) -> Callable[[Message, Context], Message]:
    """Make a handler answer its message, with a refusal where it fails."""

    @wraps(handler)
    def answer(message: Message, context: Context) -> Message:
        try:
            content = handler(message, context)
        except Exception as error:
            erase_session(context)
            log(ERROR, "refused %s: %s", message.metadata.message_type, error)
            content = RecordDict({REFUSAL_RECORD: ConfigRecord({"reason": _public(error)})})
        return Message(content, reply_to=message)

    return answer


def _public(error: Exception) -> str:
    """What the server may read; of errors that might depend on data only the kind is told."""
    if isinstance(error, PUBLIC_ERRORS):
        return str(error)
    return f"{type(error).__name__}, see the log of the client"


@app.query(JOIN)
@answering
def join(message: Message, context: Context) -> RecordDict:
    """Say which client this node is, what budget it has of its own and, in active mode, how it signs."""
    answer = ConfigRecord({"client_id": client_id_of(context)})
    check_data(context)
    own = budget_of(context)
    if own is not None:
        budget.check_ledger(own)
        answer["epsilon"], answer["delta"] = own.epsilon, own.delta
    question = message.content.get(CLIENT_RECORD)
    if isinstance(question, ConfigRecord) and question.get("mode") == "active":
        answer["identity"] = make_identity(context).public_bytes()
    return RecordDict({CLIENT_RECORD: answer})


@app.query(OFFER)
@answering
def offer(message: Message, context: Context) -> RecordDict:
    """Say whether a run fits this client's own budget."""
    own = budget_of(context)
    if own is not None:
        budget.consider(own, budget.terms_in(message.content))
    return RecordDict()


@app.query(BEGIN)
@answering
def begin(message: Message, context: Context) -> RecordDict:
    """Charge a run to this client's own budget."""
    own = budget_of(context)
    if own is not None:
        budget.begin(own, budget.terms_in(message.content))
    return RecordDict()


@app.train(ADVERTISE)
@answering
def advertise(message: Message, context: Context) -> RecordDict:
    """Stage 1: agree to the sum's parameters, answer with fresh public keys."""
    accept_roster(context, message.content)
    session = open_session(context, client_id_of(context), policy_of(context))
    answer = session.advertise(_session_bytes(message))
    own = budget_of(context)
    if own is not None:
        budget.check_sum(own, budget.round_in(message.content), session.parameters)
    keep_session(context, session)
    return _session_record(answer)


@app.train(SHARE)
@answering
def share(message: Message, context: Context) -> RecordDict:
    """Stage 2: answer with sealed shares of the session's secrets."""
    with stored_session(context, policy_of(context)) as session:
        answer = session.share(_session_bytes(message))
        keep_session(context, session)
    return _session_record(answer)


@app.train(MASKED)
@answering
def masked(message: Message, context: Context) -> RecordDict:
    """Stage 3: train, clip, add noise, encode, and answer with the masked vector."""
    with stored_session(context, policy_of(context)) as session:
        num_contributors = session.accept_shares(_session_bytes(message))
        order, theta = order_and_model(message.content, session.parameters)
        own = budget_of(context)
        if own is not None:
            budget.charge(own, budget.round_in(message.content), session.parameters, order)
        residues = encoded_update(
            order,
            theta,
            session.parameters,
            num_contributors,
            client_id_of(context),
            session,
            data_of(context),
        )
        answer = session.mask(residues, order.context(theta))
        keep_session(context, session)
    return _session_record(answer)


@app.train(CHECK)
@answering
def check(message: Message, context: Context) -> RecordDict:
    """Against a server that may lie: sign the survivors it names, once."""
    with stored_session(context, policy_of(context)) as session:
        answer = session.check(_session_bytes(message))
        keep_session(context, session)
    return _session_record(answer)


@app.train(UNMASK)
@answering
def unmask(message: Message, context: Context) -> RecordDict:
    """Stage 4: answer with the shares that remove the masks of the sum; the session ends."""
    with stored_session(context, policy_of(context)) as session:
        return _session_record(session.unmask(_session_bytes(message)))


@app.train(PLAIN)
@answering
def plain(message: Message, context: Context) -> RecordDict:
    """Secure aggregation switched off: the same update, without masks."""
    if budget_of(context) is not None:
        raise budget.BudgetRefusedError(budget.VISIBLE_UPDATES)
    parameters = RoundParameters.from_bytes(_session_bytes(message))
    policy_of(context).check(parameters)
    order, theta = order_and_model(message.content, parameters)
    residues = encoded_update(
        order,
        theta,
        parameters,
        parameters.num_clients,
        client_id_of(context),
        own_data=data_of(context),
    )
    return RecordDict({UPDATE_RECORD: ConfigRecord({"data": residues.tobytes()})})


def _session_bytes(message: Message) -> bytes:
    record = message.content[SESSION_RECORD]
    if not isinstance(record, ConfigRecord) or not isinstance(record["data"], bytes):
        raise TypeError(f"record {SESSION_RECORD} of {message.metadata.message_type} holds no bytes")
    return record["data"]


def _session_record(data: bytes) -> RecordDict:
    return RecordDict({SESSION_RECORD: ConfigRecord({"data": data})})
