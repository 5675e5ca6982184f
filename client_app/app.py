"""ClientApp: every message is answered, with a refusal where something fails; nothing is raised.

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
from client_app.identity import prove
from client_app.node_config import NodeConfigError, check_settings
from client_app.session import MASKED_SLOT, erase_session
from client_app.settings import budget_of, check_data, check_limits, client_id_of
from client_app.stages import answer_stage
from gdpfed.clients.messages import (
    BEGIN,
    CHECK,
    CLIENT_RECORD,
    DATA,
    JOIN,
    OFFER,
    REFUSAL,
    REFUSAL_RECORD,
    STAGES,
    UNMASK,
    one_line,
)
from gdpfed.errors import PrivacyError
from secagg import EncodingError, SecAggError

app = ClientApp()

Query = Callable[[Message, Context], RecordDict]

# Their texts tell of the protocol, of the node's configuration and of the terms of this run. They tell
# neither of data nor of what other runs have cost. An error of encoding is none of them: it may name a
# coordinate.
PUBLIC_ERRORS = (SecAggError, NodeConfigError, PrivacyError)
SECRET_ERRORS = (EncodingError,)


def answering(query: Query) -> Callable[[Message, Context], Message]:
    """Make a query answer its message, with a refusal where it fails."""

    @wraps(query)
    def answer(message: Message, context: Context) -> Message:
        try:
            check_settings(context.node_config)
            content = query(message, context)
        except Exception as error:
            reason = _refused(message.metadata.message_type, error)
            content = RecordDict({REFUSAL_RECORD: ConfigRecord({"reason": reason})})
        return Message(content, reply_to=message)

    return answer


def _refused(what: str, error: Exception) -> str:
    """Return what the server may read of an error: only its kind if its text might tell of the data."""
    log(ERROR, "refused %s: %s", one_line(what), one_line(str(error)))
    if isinstance(error, PUBLIC_ERRORS) and not isinstance(error, SECRET_ERRORS):
        return one_line(str(error))
    return f"{type(error).__name__}, see the log of the client"


@app.query(JOIN)
@answering
def join(message: Message, context: Context) -> RecordDict:
    """Say which client this node is, what budget it has of its own and, if asked, prove its key.

    Limits, data and ledger are checked first: a node that could send nothing is not to charge a run.
    """
    answer = ConfigRecord({"client_id": client_id_of(context)})
    said = message.content.get(CLIENT_RECORD)
    question = said if isinstance(said, ConfigRecord) else ConfigRecord()
    check_limits(context, question)
    check_data(context, question)
    own = budget_of(context)
    if own is not None:
        budget.check_ledger(own)
        answer["epsilon"], answer["delta"] = own.epsilon, own.delta
    answer.update(prove(context, question))
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


def answer_stages(message: Message, context: Context) -> Message:
    """Answer every stage that the message asks for, each with a record of its own.

    A sum that was masked is unmasked in the next exchange or never, so a message that does neither ends it.
    """
    asked = [stage for stage in STAGES if stage in message.content]
    if CHECK not in asked and UNMASK not in asked:
        erase_session(context, MASKED_SLOT)
    answers = {stage: _answer(stage, message.content, context) for stage in asked}
    return Message(RecordDict(dict(answers)), reply_to=message)


def _answer(stage: str, content: RecordDict, context: Context) -> ConfigRecord:
    try:
        return ConfigRecord({DATA: answer_stage(stage, content, context)})
    except Exception as error:
        return ConfigRecord({REFUSAL: _refused(stage, error)})


for _stage in STAGES:
    app.train(_stage)(answer_stages)
