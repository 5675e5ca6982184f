"""Answer every message from the server on behalf of a node; if something fails, the answer is a refusal.

No exception may leave a handler: Flower would not store that the session was erased, and would send the
server the exception's text, which may tell of the data.

This code runs in the node's guard (:mod:`client_app.guard`). On a node without a guard, it runs in the
process that Flower starts for each message, and imports torch only if the message orders training.
"""

from collections.abc import Callable
from functools import partial, wraps
from logging import ERROR, WARNING

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.logger import log

from client_app.carried import (
    node_of,
    parted,
    run_in,
    settings_of,
    stage_request,
    terms_in,
    told_in,
    values_in,
)
from gdpfed.clients.messages import (
    ASK,
    BEGIN,
    CARRY,
    CHECK,
    CLIENT_RECORD,
    DATA,
    END,
    HISTORY_RECORD,
    JOIN,
    LARGE_BYTES,
    OFFER,
    RECORDS,
    REFUSAL,
    REFUSAL_RECORD,
    RUN,
    STAGES,
    THETA_RECORD,
    UNMASK,
    one_line,
)
from gdpfed.clients.versions import foreign_wire, said_here
from gdpfed.errors import PrivacyError
from gdpfed.federation.node import budget, journal
from gdpfed.federation.node.agreed_terms import check_feared
from gdpfed.federation.node.allowed import check_overrides
from gdpfed.federation.node.join_checks import (
    check_limits,
    number_of_records,
    own_records,
    tell_cut,
    unit_in,
    usable_data,
)
from gdpfed.federation.node.journal import JournalEntry
from gdpfed.federation.node.known_data import dealt_by, keep_data, refuse_other_data
from gdpfed.federation.node.node_config import NodeConfigError, check_settings
from gdpfed.federation.node.node_sides import NODE_SIDES
from gdpfed.federation.node.schedule_checks import check_offered, trusted_with
from gdpfed.federation.node.sessions import MASKED_SLOT, erase_session
from gdpfed.federation.node.signing import prove
from gdpfed.federation.node.stand_ins import StandInError
from gdpfed.federation.node.sum_stages import answer_stage, keep_number
from gdpfed.federation.node.told_history import check_history, secret_in
from gdpfed.privacy.ledgers.terms import Terms
from secagg import EncodingError, SecAggError
from secagg.protocol.parameters import OFF

app = ClientApp()

Query = Callable[[Message, Context], RecordDict]

# The server may read the texts of these errors. They tell of the protocol, the node's configuration and this
# run's terms, and not of the data or the cost of other runs. An EncodingError is excluded: it may name a
# coordinate.
PUBLIC_ERRORS = (SecAggError, NodeConfigError, PrivacyError, StandInError)
SECRET_ERRORS = (EncodingError,)


def answering(query: Query) -> Callable[[Message, Context], Message]:
    """Wrap a function that answers messages: if the function fails, the answer is a refusal."""

    @wraps(query)
    def answer(message: Message, context: Context) -> Message:
        try:
            check_settings(context.node_config)
            check_overrides(context.node_config, context.run_config)
            journal.hear(settings_of(context))
            content = query(message, context)
        except Exception as error:
            asked = message.metadata.message_type.rpartition(".")[2]
            run = run_in(message.content, asked) if message.has_content() else ""
            content = _refusal(asked, error, context, run)
        return Message(content, reply_to=message)

    return answer


def _refusal(asked: str, error: Exception, context: Context, run: str) -> RecordDict:
    """Return the answer that refuses a message and gives the reason."""
    return RecordDict({REFUSAL_RECORD: ConfigRecord({"reason": _refused(asked, error, context, run)})})


def _refused(asked: str, error: Exception, context: Context, run: str) -> str:
    """Log an error; return what the server may read: the error's text if public, else the error's type."""
    log(ERROR, "refused %s: %s", one_line(asked), one_line(error))
    public = isinstance(error, PUBLIC_ERRORS) and not isinstance(error, SECRET_ERRORS)
    reason = one_line(error) if public else f"{type(error).__name__}, see the log of the client"
    _note(context, asked, run, journal.cause_of(error), reason)
    return reason


def _note(context: Context, asked: str, run: str, cause: str, reason: str = "") -> None:
    """Record a request in the node's journal; do nothing if the node's settings are invalid."""
    try:
        check_settings(context.node_config)
    except NodeConfigError:
        return
    entry = JournalEntry(journal.now(), one_line(asked), run, str(context.run_id), cause, reason)
    journal.note(settings_of(context), entry)


@app.query(JOIN)
@answering
def join(message: Message, context: Context) -> RecordDict:
    """Answer the server's request to join: client id, own budget and, if asked, a proof of the node's key.

    The node checks its limits, data and ledger first, so that a node that cannot take part does not charge a
    run. If the run protects records, the answer states the number of the node's records.
    """
    node = node_of(context)
    answer = ConfigRecord({"client_id": node.settings.client_id, **said_here()})
    question = values_in(message.content, CLIENT_RECORD) or {}
    if unlike := foreign_wire(question):
        raise NodeConfigError(unlike)
    check_limits(node.settings, question)
    _ = node.settings.stand_in
    own = node.settings.budgets
    # Before the data are read: of a unit that it has no budget for, a node tells nothing.
    asked = budget.of_unit(own, unit_in(question)) if own else None
    if (records := own_records(node.settings, question)) is not None:
        answer[RECORDS] = keep_number(node, records)
    if asked is not None:
        budget.check_ledger(asked)
        player, epsilons = node.settings.player, [asked.epsilon]
        for name, told in told_in(message.content).items():
            epsilons.append(NODE_SIDES.get(name)().said_epsilon(told, player, asked))
        answer["epsilon"] = min(epsilons)
        answer["delta"] = asked.delta
    answer.update(prove(node, question))
    return RecordDict({CLIENT_RECORD: answer})


def _terms(message: Message, context: Context) -> Terms:
    """Return the conditions of a run (terms) in a message, after checking them against the node's settings.

    Raises NodeConfigError: the terms do not name the task, or ask for updates in clear without permission.
    """
    terms = terms_in(message.content)
    if not terms.task:
        raise NodeConfigError("the terms do not say what is trained: run one version on server and nodes")
    if terms.unit == "record" and not (terms.sums_hidden or settings_of(context).sends_in_clear):
        raise NodeConfigError(
            f"this run asks for updates without masks, and this node was not started with secagg-mode={OFF}: "
            "use secagg=pairwise"
        )
    node, told = settings_of(context), told_in(message.content)
    terms = node.own_terms(terms, dealt_by(node, terms))
    own = budget.of_unit(node.budgets, terms.unit)
    check_feared(terms, node.policy.corrupt_fraction)
    check_offered(terms, node.trains_by)
    check_history(own, values_in(message.content, HISTORY_RECORD))
    for name, side in NODE_SIDES.items().items():
        side().check_terms(told.get(name), node.player, own, terms)
    return terms


@app.query(ASK)
@answering
def ask(message: Message, context: Context) -> RecordDict:
    """Answer requests of the method's server plug-ins, such as for a best response in a game."""
    node, told = settings_of(context), told_in(message.content)
    answers = {
        name: NODE_SIDES.get(name)().answer(each, node.player, node.budgets) for name, each in told.items()
    }
    return RecordDict({name: ConfigRecord(answer) for name, answer in answers.items()})


@app.query(CARRY)
@answering
def carry(message: Message, context: Context) -> RecordDict:
    """Send the server's vector back, as a test of memory and bandwidth before the run costs any budget."""
    return RecordDict({THETA_RECORD: message.content.array_records[THETA_RECORD]})


@app.query(OFFER)
@answering
def offer(message: Message, context: Context) -> RecordDict:
    """Check that the conditions of a run (terms) fit this client's own budget; raise an error otherwise."""
    own = settings_of(context).budgets
    if own:
        refuse_other_data(settings_of(context), (terms := _terms(message, context)).run)
        budget.consider(own, terms)
    return RecordDict()


@app.query(BEGIN)
@answering
def begin(message: Message, context: Context) -> RecordDict:
    """Record the privacy cost of a run in this client's own ledger, before the first round."""
    own = settings_of(context).budgets
    if own:
        terms, data = _terms(message, context), settings_of(context).data
        if data is not None:
            # Again, for a server that sent no request to join: an error in a round would tell of the data.
            keep_number(node_of(context), number_of_records(usable_data(data)))
            tell_cut(data)
        refuse_other_data(settings_of(context), terms.run)
        budget.begin(own, terms, secret_in(values_in(message.content, HISTORY_RECORD)))
        keep_data(settings_of(context), terms.run)
        if trusted := trusted_with(terms):
            log(WARNING, "%s", trusted)
        _note(context, BEGIN, one_line(terms.run), journal.BEGUN)
    return RecordDict()


@app.query(END)
@answering
def end(message: Message, context: Context) -> RecordDict:
    """Tell the program behind this node, such as an edge server, that the run has ended.

    Raises NodeConfigError: this node has no such program, or the message does not name the run.
    """
    stand_in, said = settings_of(context).stand_in, values_in(message.content, CLIENT_RECORD)
    if stand_in is None or said is None:
        raise NodeConfigError("only the client of an edge is told that a run is over")
    stand_in.end(str(said.get(RUN)))
    return RecordDict()


def answer_stages(message: Message, context: Context) -> Message:
    """Answer all stages of a secure sum that a message asks for; the reply has a record for each answer.

    A masked sum is unmasked in the node's next exchange or not at all. A message that asks for neither the
    check nor the unmasking therefore erases the session of the masked sum.
    """
    content, answers = RecordDict(), RecordDict()
    try:
        content = parted(message.content)
    except Exception as error:
        answers = _refusal("stages", error, context, "")
    asked = [stage for stage in STAGES if stage in content]
    try:
        if CHECK not in asked and UNMASK not in asked:
            erase_session(node_of(context), MASKED_SLOT)
    except Exception as error:
        asked, answers = [], _refusal("stages", error, context, "")
    for stage in asked:
        try:
            check_settings(context.node_config)
            check_overrides(context.node_config, context.run_config)
            data = answer_stage(stage, partial(stage_request, content, stage), node_of(context))
            if len(data) > LARGE_BYTES:
                answers[stage] = ArrayRecord({DATA: Array("uint8", (len(data),), "bytes", data)})
            else:
                answers[stage] = ConfigRecord({DATA: data})
        except Exception as error:
            answers[stage] = ConfigRecord({REFUSAL: _refused(stage, error, context, run_in(content, stage))})
    return Message(answers, reply_to=message)


for _stage in STAGES:
    app.train(_stage)(answer_stages)
