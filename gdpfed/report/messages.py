"""Computes how many messages clients send in a round on average, counting those that only send zeros."""

from functools import partial

from conf.schema import SecAggConfig
from gdpfed.methods.base import Method
from gdpfed.methods.sum_parameters import filled_size
from gdpfed.privacy.sampling.cohort_sizes import missing_members
from gdpfed.privacy.sampling.cohorts import fills_cohorts


def messages_a_round(method: Method, secagg: SecAggConfig) -> float:
    """Return how many messages clients send in a round on average, with updates, zeros, or noise to subtract.

    It is that of a run in which all clients can be reached. `secagg`: how sums are made, which decides how
    many members they need.
    """
    return method.plan.messages_a_round + fillers_a_round(method, secagg)


def fillers_a_round(method: Method, secagg: SecAggConfig) -> float:
    """Return how many clients send zeros in a round on average, to hide how many clients were sampled."""
    plan = method.plan
    if method.reads_alone or not fills_cohorts(plan):
        return 0.0
    return missing_members(plan, partial(filled_size, plan, secagg))
