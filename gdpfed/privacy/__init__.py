"""Privacy core: who is grouped, sampled and noised how, what that guarantees, what is spent."""

from gdpfed.privacy.accounting import Accountant, AccountantName, make_accountant
from gdpfed.privacy.calibration import calibrate_noise_multiplier
from gdpfed.privacy.errors import BudgetExhausted, PrivacyError
from gdpfed.privacy.groups import (
    Group,
    default_delta,
    form_groups,
    groups_from_shares,
    merge_groups,
)
from gdpfed.privacy.ledger import Ledger
from gdpfed.privacy.mechanism import Adjacency, SampledGaussian, Sampling
from gdpfed.privacy.plan import group_weights, make_plan, noise_magnitude, plain_plan
from gdpfed.privacy.privacy_plan import GroupPlan, PrivacyPlan, Reweighting
from gdpfed.privacy.sampler import draw_cohorts
from gdpfed.privacy.sampling_rates import closed_form_sampling_rates, optimal_sampling_rates
from gdpfed.privacy.server_view import epsilon_against_server, participations_quantile
from gdpfed.privacy.theorem1 import check_theorem1, theorem1_variance

__all__ = [
    "Accountant",
    "AccountantName",
    "Adjacency",
    "BudgetExhausted",
    "Group",
    "GroupPlan",
    "Ledger",
    "PrivacyError",
    "PrivacyPlan",
    "Reweighting",
    "SampledGaussian",
    "Sampling",
    "calibrate_noise_multiplier",
    "check_theorem1",
    "closed_form_sampling_rates",
    "default_delta",
    "draw_cohorts",
    "epsilon_against_server",
    "form_groups",
    "group_weights",
    "groups_from_shares",
    "make_accountant",
    "make_plan",
    "merge_groups",
    "noise_magnitude",
    "optimal_sampling_rates",
    "participations_quantile",
    "plain_plan",
    "theorem1_variance",
]
