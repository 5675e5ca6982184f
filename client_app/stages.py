"""The client's answer to each stage of a sum."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from flwr.app import Context, RecordDict

from client_app.identity import accept_roster
from client_app.request import StageRequest
from client_app.session import AGREEING, MASKED_SLOT, keep_session, open_session, stored_session
from client_app.settings import bridge_of, budgets_of, client_id_of, data_of, mode_of, policy_of
from client_app.simulation_backend import in_flowers_simulation
from client_app.update import Contributor, masked_update, order_and_model, update_in_clear
from gdpfed.clients.messages import ADVERTISE, CHECK, MASK, PLAIN, SHARE, UNMASK, one_line
from gdpfed.federation.node import budget
from gdpfed.federation.node.node_config import DATA_KEY, MODE_KEY, NodeConfigError, check_settings
from secagg import RemoteProtocolError, SumParameters
from secagg.protocol.parameters import OFF

if TYPE_CHECKING:
    from gdpfed.clients.order import TrainingOrder


def advertise(request: StageRequest, context: Context) -> bytes:
    """Stage 1: agree to the sum's parameters, answer with fresh public keys.

    Nothing is charged: keys tell nothing of the data, and those agreed ahead may never be used.
    """
    accept_roster(context, request.content)
    session = open_session(context, client_id_of(context))
    answer = session.advertise(request.data)
    own = budgets_of(context)
    if own:
        budget.check_sum(own, request.round_of_run, session.parameters)
    keep_session(context, AGREEING, session, request.round_of_run)
    return answer


def share(request: StageRequest, context: Context) -> bytes:
    """Stage 2: answer with sealed shares of the session's secrets."""
    with stored_session(context, AGREEING, request.round_of_run, then=AGREEING) as session:
        return session.share(request.data)


def mask(request: StageRequest, context: Context) -> bytes:
    """Stage 3: train, clip, add noise, encode, and answer with the masked vector."""
    with stored_session(context, AGREEING, request.round_of_run, then=MASKED_SLOT) as session:
        num_contributors = session.accept_shares(request.data)
        order, theta = _order_and_model(request, context, session.parameters)
        order.check_part(session.parameters)
        own = budgets_of(context)
        if own:
            budget.charge(own, request.round_of_run, session.parameters, order)
        return masked_update(order, theta, session, num_contributors, _contributor(request, context))


def check(request: StageRequest, context: Context) -> bytes:
    """Against a server that may lie: sign the survivors it names, once."""
    with stored_session(context, MASKED_SLOT, request.round_of_run, then=MASKED_SLOT) as session:
        return session.check(request.data)


def unmask(request: StageRequest, context: Context) -> bytes:
    """Stage 4: answer with the shares that remove the masks of the sum; the session ends."""
    with stored_session(context, MASKED_SLOT, request.round_of_run) as session:
        return session.unmask(request.data)


def plain(request: StageRequest, context: Context) -> bytes:
    """Secure aggregation switched off: the clipped, encoded update in clear; the server adds the noise.

    The operator of this node trusts the server with the update itself, so its own noise would protect
    nothing: a server that is not trusted could ask for a sum of so many members that a share of the noise
    is next to none. Steps of DP-SGD, which are private before they leave, are within a budget all the same.
    """
    own = budgets_of(context)
    if own:
        budget.check_in_clear(own, request.round_of_run)
    parameters = SumParameters.from_bytes(request.data)
    policy_of(context).check(parameters)
    order, theta = _order_and_model(request, context, parameters)
    if own:
        budget.charge(own, request.round_of_run, parameters, order)
    return update_in_clear(order, theta, parameters, _contributor(request, context)).tobytes()


def _order_and_model(
    request: StageRequest, context: Context, parameters: SumParameters
) -> tuple["TrainingOrder", npt.NDArray[np.float32]]:
    """The order and the model of a request, if the node reads what it names.

    Which files a node opens is for its operator to say: a path that the server names is not read.
    """
    order, theta = order_and_model(request.content, parameters)
    source = order.task.source
    named = source.path or source.test_path or source.columns
    if named and data_of(context) is None and bridge_of(context) is None and not in_flowers_simulation():
        raise NodeConfigError(
            f"the server names the file {one_line(named)}, and this node was started without {DATA_KEY}: it "
            f"reads no file that another names; start it with {DATA_KEY}=..."
        )
    return order, theta


def _contributor(request: StageRequest, context: Context) -> Contributor:
    run = request.round_of_run.run
    return Contributor(client_id_of(context), run, data_of(context), bridge_of(context))


Handler = Callable[[StageRequest, Context], bytes]

HANDLERS: dict[str, Handler] = {
    ADVERTISE: advertise,
    SHARE: share,
    MASK: mask,
    CHECK: check,
    UNMASK: unmask,
    PLAIN: plain,
}


def answer_stage(stage: str, content: RecordDict, context: Context) -> bytes:
    """Answer one stage that a message asks for.

    Raises:
        RemoteProtocolError: an update in clear is asked of a node that was not started for that. Nothing of
            the message is read then: what it says of a mode does not count.
    """
    check_settings(context.node_config)
    if stage == PLAIN and mode_of(context) != OFF:
        reason = f"an update in clear is asked, and this node was not started with {MODE_KEY}={OFF}"
        raise RemoteProtocolError(stage, None, reason)
    return HANDLERS[stage](StageRequest.of(content, stage), context)
