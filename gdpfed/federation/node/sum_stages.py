"""A client's answers to the stages of a sum under secure aggregation."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gdpfed.clients.keyed_noise import KeyedNoise
from gdpfed.clients.messages import (
    ADVERTISE,
    CHECK,
    MASK,
    PLAIN,
    ROUND_OF_LABEL,
    SHARE,
    UNMASK,
    RoundOfRun,
    one_line,
)
from gdpfed.federation.node import budget, journal, known_data
from gdpfed.federation.node.agreed_terms import agreed_in_label, check_agreed
from gdpfed.federation.node.allowed import check_by_party, check_named_file, check_refused, check_weights
from gdpfed.federation.node.contribution import (
    Contributor,
    checked_order,
    masked_correction,
    masked_update,
    update_in_clear,
)
from gdpfed.federation.node.journal import JournalEntry
from gdpfed.federation.node.node_settings import Node
from gdpfed.federation.node.noise_shares import (
    NO_CORRECTION,
    Correction,
    check_correction,
    forget_shares,
    keep_share,
    take_back,
    taken_back,
)
from gdpfed.federation.node.schedule_checks import check_schedule
from gdpfed.federation.node.sessions import (
    AGREEING,
    MASKED_SLOT,
    keep_session,
    keeps_shares,
    open_session,
    stored_session,
)
from gdpfed.federation.node.signing import accept_roster
from gdpfed.federation.node.told_history import check_server
from gdpfed.privacy.ledgers.terms import Terms
from secagg import LocalProtocolError, RemoteProtocolError, SumParameters
from secagg.protocol.parameters import OFF

if TYPE_CHECKING:
    from gdpfed.clients.order import TrainingOrder


@dataclass(frozen=True, eq=False)
class StageRequest:
    """A request of the server to a client in one stage of a secure sum.

    Attributes:
        data: the server's bytes for the session.
        round_of_run: the run and round of the sum.
        order: the instruction to train, as plain values; None if the message has none.
        theta: the model; None if the message has none.
        roster: all clients' public keys, as plain values; None if the message has none.
        correction: which noise of earlier rounds to subtract; None if the message does not say.
        secret: the secret with which the run began on this node, as its server shows it; else "".
    """

    data: bytes
    round_of_run: RoundOfRun
    order: Mapping[str, Any] | None = None
    theta: npt.NDArray[Any] | None = None
    roster: Mapping[str, Any] | None = None
    correction: Mapping[str, Any] | None = None
    secret: str = ""


def advertise(request: StageRequest, node: Node) -> bytes:
    """Stage 1: accept the parameters of a secure sum, and answer with fresh public keys.

    Nothing is charged: keys tell nothing of the data, and keys that are agreed ahead may stay unused.
    """
    own, terms = node.settings.budgets, None
    accept_roster(node, request.roster)
    session = open_session(node)
    answer = session.advertise(request.data)
    if own:
        check_server(own, request.round_of_run.run, request.secret)
        checked = check_correction if session.corrects else budget.check_sum
        terms = checked(own, request.round_of_run, session.parameters)
    # A server that lies could tell the members of one sum different rounds, or different runs, and have noise
    # taken back in another sum than the accounting has. The label is one text for all of them.
    label, round_of_run = session.parameters.label, request.round_of_run
    run, *parts = label.split("/")
    of_round = next((part for part in parts if part.startswith(ROUND_OF_LABEL)), "")
    if run != round_of_run.run or of_round != f"{ROUND_OF_LABEL}{round_of_run.index}":
        raise RemoteProtocolError(
            ADVERTISE,
            None,
            f"the sum {label!r} is not of round {round_of_run.index} of run {round_of_run.run}",
        )
    if session.parameters.signs:
        check_agreed(terms, request.round_of_run.index, session.parameters)
    if keeps_shares(node):
        forget_shares(node, request.round_of_run)
    keep_session(node, AGREEING, session, request.round_of_run)
    return answer


def share(request: StageRequest, node: Node) -> bytes:
    """Stage 2: answer with encrypted shares of this client's secrets, one for each neighbour."""
    with stored_session(node, AGREEING, request.round_of_run, then=AGREEING) as session:
        return session.share(request.data)


def mask(request: StageRequest, node: Node) -> bytes:
    """Stage 3: train, clip, add noise, round to integer steps, and answer with the masked vector.

    A member without an update only subtracts noise of earlier rounds. Like the cost of a turn, the subtracted
    noise is recorded on disk before the vector leaves the node.
    """
    with stored_session(node, AGREEING, request.round_of_run, then=MASKED_SLOT) as session:
        num_contributors, parameters = session.accept_shares(request.data), session.parameters
        correction = NO_CORRECTION
        if request.correction is not None:
            correction = Correction.of(request.correction, request.round_of_run.index)
        own, turns = node.settings.budgets, correction.turns

        def check_members(terms: Terms) -> None:
            check_schedule(terms, request.round_of_run.index, session, node.settings.policy.corrupt_fraction)
            check_agreed(terms, request.round_of_run.index, parameters)

        if session.corrects:
            if own:
                check_members(check_correction(own, request.round_of_run, parameters))
            parts = _taken_back(node, request.round_of_run, turns, parameters)
            if turns and not parts:
                raise LocalProtocolError(f"this node kept no noise of rounds {turns}, so it subtracts none")
            return masked_correction(session, correction.context, parts)
        order, theta = _order_and_model(request, node, parameters)
        order.check_part(parameters)
        if parameters.signs and any(order.taps) and not agreed_in_label(parameters.label):
            raise LocalProtocolError(
                f"later rounds subtract this noise, and {parameters.label!r} does not say so"
            )
        who = _contributor(request, node, MASK)
        who.check(order, theta, session.encoding())
        if own:
            budget.charge(own, request.round_of_run, parameters, order, check_members)
        parts = _taken_back(node, request.round_of_run, turns, parameters)
        from gdpfed.clients.noise import new_share

        share = new_share(parameters, num_contributors)
        if any(order.taps):
            keep_share(node, request.round_of_run, share, parameters.dimension, order.taps)
        return masked_update(order, theta, session, num_contributors, who, share, parts)


def _taken_back(
    node: Node, round_of_run: RoundOfRun, turns: tuple[int, ...], parameters: SumParameters
) -> list[KeyedNoise]:
    """Record in the ledger that the noise of the rounds ``turns`` is subtracted now; return that noise."""
    if not turns:
        return []
    if own := node.settings.budgets:
        take_back(own, round_of_run, parameters, turns)
    return taken_back(node, round_of_run, turns, parameters)


def check(request: StageRequest, node: Node) -> bytes:
    """Stage between 3 and 4, if the server may lie: sign its list of survivors, but never a second list."""
    with stored_session(node, MASKED_SLOT, request.round_of_run, then=MASKED_SLOT) as session:
        return session.check(request.data)


def unmask(request: StageRequest, node: Node) -> bytes:
    """Stage 4: answer with the secret shares that remove the sum's masks, and end the session."""
    with stored_session(node, MASKED_SLOT, request.round_of_run) as session:
        return session.unmask(request.data)


def plain(request: StageRequest, node: Node) -> bytes:
    """Stage without masks: send the clipped update in clear to a server that is allowed to see it.

    The node adds no share of the sum's noise, since its operator trusts the server with the update itself.
    Against other servers a share would not help: they could state so many members that it is almost 0. Work
    with noise of its own, such as DP-SGD steps, is private before it leaves; the node's budget covers it.
    """
    own = node.settings.budgets
    if own:
        check_server(own, request.round_of_run.run, request.secret)
    parameters = SumParameters.from_bytes(request.data)
    node.settings.policy.check(parameters)
    order, theta = _order_and_model(request, node, parameters)
    who = _contributor(request, node, PLAIN)
    who.check(order, theta, parameters.encoding(parameters.num_clients))
    if own:
        budget.charge_in_clear(own, request.round_of_run, parameters, order)
    return update_in_clear(order, theta, parameters, who).tobytes()


def _order_and_model(
    request: StageRequest, node: Node, parameters: SumParameters
) -> tuple["TrainingOrder", npt.NDArray[np.float32]]:
    """Return a request's checked instruction and model; raise an error if the operator forbids a part of it.

    The operator decides which files a node opens. Only a simulated node reads a path that the server names.
    """
    from gdpfed.clients.works import function_of

    order, theta = checked_order(request.order, request.theta, parameters)
    if order.round_index != (index := request.round_of_run.index):
        raise LocalProtocolError(f"the message is of round {index}, what it asks of {order.round_index}")
    source, own = order.task.source, node.settings
    check_refused(own, order.task.model)
    by_party = function_of(order.work, "by_party")
    if by_party is not None and by_party(order, parameters.dimension):
        check_by_party(own)
    if (weights := order.task.weights) is not None:
        check_weights(own, weights.sha256, weights.path)
    check_named_file(own, source, order.task.owners_file)
    return order, theta


NUMBER, COUNT = "number-of-records", "count"


def keep_number(node: Node, records: int) -> int:
    """Store in the run's state the number of records that this node brings, which is public; return it."""
    node.state[NUMBER] = {COUNT: records}
    return records


def _contributor(request: StageRequest, node: Node, stage: str) -> Contributor:
    own, run = node.settings, request.round_of_run.run

    def unusable(error: BaseException) -> None:
        said = f"{type(error).__name__}: zeros were sent, under the noise of any other"
        journal.note(own, JournalEntry(journal.now(), stage, one_line(run), node.run, journal.ZEROS, said))

    records = int(node.state.get(NUMBER, {COUNT: 1})[COUNT])
    dealt = partial(known_data.dealt_as_begun, own, run)
    return Contributor(own.client_id, run, own.data, own.stand_in, unusable, records, dealt)


Handler = Callable[[StageRequest, Node], bytes]

HANDLERS: dict[str, Handler] = {
    ADVERTISE: advertise,
    SHARE: share,
    MASK: mask,
    CHECK: check,
    UNMASK: unmask,
    PLAIN: plain,
}


def answer_stage(stage: str, request: Callable[[], StageRequest], node: Node) -> bytes:
    """Answer one stage of a secure sum, as bytes for the server.

    Args:
        stage: a name in `STAGES`.
        request: a function that reads the request; it is not called if the stage is refused.
        node: the node that answers.

    Raises RemoteProtocolError: the stage asks for an update in clear, and the node does not allow it. The
    message is then not read, so it cannot change the node's mode.
    """
    if stage == PLAIN and not node.settings.sends_in_clear:
        reason = f"an update in clear is asked, and this node was not started with secagg-mode={OFF}"
        raise RemoteProtocolError(stage, None, reason)
    return HANDLERS[stage](request(), node)
