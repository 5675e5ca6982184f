"""The mean number of messages in a round, with those of clients that send zeros to fill sums."""

from conf.schema import SecAggConfig
from gdpfed.methods.base import Method
from gdpfed.methods.sum_parameters import can_sum, size_to_lose_one
from gdpfed.privacy.sampling.cohort_sizes import missing_members
from gdpfed.privacy.sampling.cohorts import fills_cohorts, usual_size


def messages_a_round(method: Method, secagg: SecAggConfig) -> float:
    """Return the mean number of messages in a round: updates, zeros that fill sums, and noise taken back.

    It is that of a run in which all clients can be reached. `secagg`: how sums are made, which decides how
    many members they need.
    """
    return method.plan.messages_a_round + fillers_a_round(method, secagg)


def fillers_a_round(method: Method, secagg: SecAggConfig) -> float:
    """Return how many clients are asked for zeros in a round on average, so that no sum tells of the draw."""
    plan = method.plan
    if method.reads_alone or not fills_cohorts(plan):
        return 0.0

    def members(expected: float, clients: int) -> int:
        size = size_to_lose_one(secagg, clients)
        if secagg.same_size and can_sum(secagg, clients):
            size = max(size, usual_size(plan, expected, clients))
        return size

    return missing_members(plan, members)
