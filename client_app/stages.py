"""The client's answer to each stage of a sum."""

from collections.abc import Callable

from flwr.app import Context

from client_app import budget
from client_app.identity import accept_roster
from client_app.request import StageRequest
from client_app.session import AGREEING, MASKED_SLOT, keep_session, open_session, stored_session
from client_app.settings import budget_of, client_id_of, data_of, policy_of
from client_app.update import encoded_update, order_and_model
from gdpfed.clients.messages import ADVERTISE, CHECK, MASK, PLAIN, SHARE, UNMASK
from secagg import SumParameters


def advertise(request: StageRequest, context: Context) -> bytes:
    """Stage 1: agree to the sum's parameters, answer with fresh public keys.

    Nothing is charged: keys tell nothing of the data, and those agreed ahead may never be used.
    """
    accept_roster(context, request.content)
    session = open_session(context, client_id_of(context))
    answer = session.advertise(request.data)
    own = budget_of(context)
    if own is not None:
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
        order, theta = order_and_model(request.content, session.parameters)
        own = budget_of(context)
        if own is not None:
            budget.charge(own, request.round_of_run, session.parameters, order)
        residues = encoded_update(
            order,
            theta,
            session.parameters,
            num_contributors,
            client_id_of(context),
            session,
            data_of(context),
        )
        return session.mask(residues, order.context(theta))


def check(request: StageRequest, context: Context) -> bytes:
    """Against a server that may lie: sign the survivors it names, once."""
    with stored_session(context, MASKED_SLOT, request.round_of_run, then=MASKED_SLOT) as session:
        return session.check(request.data)


def unmask(request: StageRequest, context: Context) -> bytes:
    """Stage 4: answer with the shares that remove the masks of the sum; the session ends."""
    with stored_session(context, MASKED_SLOT, request.round_of_run) as session:
        return session.unmask(request.data)


def plain(request: StageRequest, context: Context) -> bytes:
    """Secure aggregation switched off: the same update, without masks."""
    if budget_of(context) is not None:
        raise budget.BudgetRefusedError(budget.VISIBLE_UPDATES)
    parameters = SumParameters.from_bytes(request.data)
    policy_of(context).check(parameters)
    order, theta = order_and_model(request.content, parameters)
    residues = encoded_update(
        order,
        theta,
        parameters,
        parameters.num_clients,
        client_id_of(context),
        own_data=data_of(context),
    )
    return residues.tobytes()


Handler = Callable[[StageRequest, Context], bytes]

HANDLERS: dict[str, Handler] = {
    ADVERTISE: advertise,
    SHARE: share,
    MASK: mask,
    CHECK: check,
    UNMASK: unmask,
    PLAIN: plain,
}
