"""What is said of a vote over settings: what it costs, how sure its result is, and what came of it."""

from collections.abc import Iterator

from gdpfed.methods.vote import chance_of_agreement
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.rounds.vote import VoteResult


def vote_lines(plan: PrivacyPlan) -> Iterator[str]:
    """What a vote costs everybody, and how often it would choose what all clients want."""
    vote = plan.vote
    if vote is None:
        return
    chance = chance_of_agreement(plan.num_clients, vote.noise_stddev, vote.options)
    yield (
        f"Before the first round all clients vote on {vote.options} settings, in one sum with noise of "
        f"{vote.noise_stddev:.3g} in every number of votes: epsilon {vote.epsilon:.3g} by itself, which is "
        f"in all figures here, and rounds are planned with the rest. A setting that all {plan.num_clients} "
        f"vote for wins with a probability of {100 * chance:.0f} %, and by chance alone with "
        f"{100 / vote.options:.0f} %."
    )


def vote_section(plan: PrivacyPlan, found: VoteResult | None) -> list[str]:
    """The section of a model card about the vote; nothing where there was none."""
    if plan.vote is None:
        return []
    cost = (
        f"Every {plan.unit} pays for it, epsilon {plan.vote.epsilon:.3g} by itself, within the budgets below."
    )
    if found is None:
        return ["## Settings", "", f"A vote on settings came to nothing. {cost}", ""]
    return [
        "## Settings",
        "",
        f"{found.clients} clients tried {len(found.settings)} settings on their own records and voted, in "
        f"one sum with noise of standard deviation {found.noise_stddev:.3g} in every number. The first was "
        "taken:",
        "",
        *(f"* {line}" for line in found.lines),
        "",
        f"No trial left its client. {cost}",
        "",
    ]
