"""Checks that a signed sum has only members that the agreed schedule names for its round.

Noise that a sum takes back uncovers what it was added to, unless new noise takes its place that those who see
both do not know. New noise comes from members with an update alone. So a node has to know, by itself, that
these are clients whose turn it is, and that the sum does not rely on the noise of as many as may collude
among all the members that the schedule has (docs/privacy.md has the proof).
"""

from math import ceil

from gdpfed.federation.node.budget import BudgetRefusedError
from gdpfed.privacy.allocation import AllocatedGaussian
from gdpfed.privacy.ledgers.terms import Terms
from gdpfed.privacy.ledgers.terms_options import noise_taps, once_in
from gdpfed.privacy.mechanisms.scheduled.terms import ScheduledTerms
from gdpfed.privacy.mechanisms.scheduled.turns import TurnSchedule
from secagg import ClientSession

NO_STATES = {"fixed_size", AllocatedGaussian.kind}
UNSIGNED = "the members of a sum by an agreed schedule must sign, and this sum asks for no signatures"


def check_schedule(terms: Terms, round_index: int, session: ClientSession, corrupt_fraction: float) -> None:
    """Raise BudgetRefusedError if a sum has a member that the schedule does not name for this round.

    A member holds shares of the others' secrets, also one without an update, and one that drops out later. If
    the server could add members, it would add corrupt ones until these can unmask any sum by themselves.

    Args:
        terms: which the node has agreed to.
        round_index: of the sum.
        session: of the sum, with the parameters and members that all members have signed.
        corrupt_fraction: the share of corrupt members that the node's operator fears.

    Raises:
        BudgetRefusedError: a signed sum without a schedule in the terms, or the other way round; a member has
            no part in this round; too few of the members that the schedule has are taken for corrupt.
    """
    signs = session.parameters.signs
    if not isinstance(terms, ScheduledTerms) or once_in(terms, round_index) or not (signs or terms.schedule):
        return
    broken = _broken_schedule(terms, round_index, session, corrupt_fraction) if signs else UNSIGNED
    if broken:
        raise BudgetRefusedError(f"{broken}, against the terms of run {terms.run}")


def check_offered(terms: Terms, own_function: object | None) -> None:
    """Raise PrivacyError for terms whose schedule or sampling this node cannot rely on.

    This is checked when the run is offered, and not for every message that reads the ledger: it takes long
    for many clients. A schedule that is not valid is refused in each of its sums, too.

    Args:
        terms: of the run that is offered.
        own_function: the train function of a user's app, which may keep something between rounds; or None.

    Raises:
        BudgetRefusedError: an app's own function is asked for under a sampling that has no proof for it, or
            the schedule repeats itself only after the run's end.
        PrivacyError: the schedule has another form, or names a client twice.
    """
    secret = {getattr(charge.event, "sampling", charge.event.kind) for charge in terms.charges}
    if own_function is not None and secret & NO_STATES:
        raise BudgetRefusedError(
            f"the sampling of run {terms.run} is not proved for clients that keep something between rounds, "
            "as an app's own train function may: use privacy.sampling=poisson"
        )
    if isinstance(terms, ScheduledTerms) and terms.schedule:
        for group in TurnSchedule.from_text(terms.schedule).groups:
            # A rate of one turn in more rounds than the run has is planned; then some clients have none.
            if group.width > 1 and group.period > terms.num_rounds:
                raise BudgetRefusedError(
                    f"the schedule of run {terms.run} has {group.width} turns in {group.period} rounds, and "
                    f"the run has {terms.num_rounds} rounds: run one version on server and nodes"
                )


def trusted_with(terms: Terms) -> str:
    """Return a text on how a lying server could have this run's noise removed, or "" if it could not."""
    taken_back = terms.sums_hidden and any(tap > 0 for tap in noise_taps(terms))
    if not taken_back or (isinstance(terms, ScheduledTerms) and terms.schedule):
        return ""
    return (
        f"run {terms.run} subtracts earlier noise in sums whose members are not signed, so a lying server "
        f"could have all of it removed: start the node with secagg-mode=active unless it trusts the server"
    )


def _broken_schedule(
    terms: ScheduledTerms, round_index: int, session: ClientSession, corrupt_fraction: float
) -> str:
    if not terms.schedule:
        return "no schedule of turns was agreed to, so the members of a signed sum cannot be checked"
    schedule = TurnSchedule.from_text(terms.schedule)
    if strangers := session.updates - schedule.due(round_index):
        return f"client {min(strangers)} is asked for an update in round {round_index}, which is not its turn"
    if strangers := session.correctors - schedule.correctors(round_index, terms.noise_taps):
        return f"client {min(strangers)} is a member, and has no noise that round {round_index} subtracts"
    parameters = session.parameters
    members = max(parameters.num_clients, schedule.members(round_index, terms.noise_taps))
    needed = corrupt_of(terms, corrupt_fraction, members)
    if parameters.known_shares < needed:
        return (
            f"the noise is sized against {parameters.known_shares} corrupt members, and this node assumes "
            f"{needed} among the {members} of the schedule"
        )
    return ""


def corrupt_of(terms: Terms, corrupt_fraction: float, members: int) -> int:
    """Return how many of a sum's members, at least 1, this node assumes to be corrupt."""
    return max(1, ceil(max(terms.corrupt_tolerance, corrupt_fraction) * members))
