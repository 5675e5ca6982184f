"""Groups too small to be summed, against the binomial tail written out."""

from math import comb

import pytest

from conf.load import load
from gdpfed.methods import make_method
from gdpfed.report.small_cohorts import small_cohort_lines

ROLES = ("dataset=shakespeare", "dataset.num_clients=247", "privacy.accountant=rdp")


def lines(*overrides, minimum=3):
    return list(small_cohort_lines(make_method(load([*ROLES, *overrides])).plan, minimum))


def test_a_line_says_how_often_and_what_to_do():
    plan = make_method(load(ROLES)).plan
    group = plan.groups[0]
    n, q = len(group.clients), group.sampling_rate
    below = sum(comb(n, k) * q**k * (1 - q) ** (n - k) for k in range(3))
    (line,) = lines()
    assert line.startswith(
        f"group 0: with {n * q:.1f} clients expected a round, {100 * below:.0f} % of its coh"
    )
    assert "Raise privacy.sampling_rate or privacy.min_sampling_rate" in line


@pytest.mark.parametrize(
    "overrides",
    [["privacy.sampling_rate=0.25"], ["method=gdpfed"], ["method=idp_fedavg_scale"], ["method=dp_fedavg"]],
)
def test_enough_clients_or_one_sum_of_all_get_no_line(overrides):
    assert lines(*overrides) == []


def test_cohorts_of_a_fixed_size_are_below_always_or_never():
    fixed = ("method=gdpfed", "privacy.sampling=fixed_size", "privacy.sampling_rate=0.05")
    assert [line.partition(",")[2].split()[0] for line in lines(*fixed, minimum=5)] == ["100"] * 3
    assert lines(*fixed, minimum=4) == []
