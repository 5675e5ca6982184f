"""Tests of warnings about weak plans; probabilities in them are compared with binomial probabilities."""

from math import comb

import pytest

from conf.load import load
from gdpfed.errors import PrivacyError
from gdpfed.methods import make_method, resolve
from gdpfed.privacy.sampling.cohort_sizes import refuse_skipped, skipped_fractions, small_fractions
from gdpfed.privacy.sampling.cohorts import fills_cohorts
from gdpfed.report.plan_lines import chosen_by_data_lines, plan_details, plan_warnings

ROLES = ("dataset=shakespeare", "dataset.num_clients=247", "privacy.accountant=rdp")
SIX = ("dataset.num_clients=6", "privacy.accountant=rdp")


def plan_of(*overrides):
    return make_method(load(overrides)).plan


def lines(*overrides, minimum=3):
    """Return a plan's warnings, except those of two kinds, which other tests check."""
    config = load([*ROLES, f"secagg.minimum_cohort={minimum}", *overrides])
    warnings = plan_warnings(make_method(config).plan, config)
    elsewhere = ("which clients there are", "every member")
    return [each for each in warnings if not each.startswith(elsewhere)]


def test_clients_that_their_data_chooses_are_named():
    config = load([*ROLES, "dataset.min_characters=70"])
    said = [each for each in plan_warnings(make_method(config).plan, config) if "no epsilon covers" in each]
    assert len(said) == 1
    assert "roles with fewer than 70 characters (dataset.min_characters) are left out" in said[0]
    other = load(["dataset=digits"])
    assert not any("no epsilon covers" in each for each in plan_warnings(make_method(other).plan, other))


OWNERS = "if the data has more owners than clients, those with the most examples are the clients"
TABLE = "stays,age,ward\nno,71,east\nyes,64,west\n"
DECLARED = "label: {column: stays, classes: ['no', 'yes']}\nnumeric: {age: [0, 100]}\n"


def is_told_of_owners(*overrides):
    said = [line.startswith(OWNERS) for line in chosen_by_data_lines(load(overrides))]
    return said == [True]


def test_owners_are_no_matter_where_as_many_parties_have_names_as_there_are_clients(tmp_path):
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "stays.csv").write_text(TABLE)
    declared = f"{DECLARED}party: {{column: ward, values: [east, west]}}\n"
    (tmp_path / "all" / "columns.yaml").write_text(declared)
    (tmp_path / "each").mkdir()
    for name in ("east", "west"):
        (tmp_path / "each" / f"{name}.csv").write_text(TABLE)
    (tmp_path / "each" / "columns.yaml").write_text(DECLARED)
    for path in (tmp_path / "all" / "stays.csv", tmp_path / "each"):
        table = ("dataset=csv", f"dataset.path={path}")
        assert not is_told_of_owners(*table, "dataset.num_clients=2")
        assert is_told_of_owners(*table, "dataset.num_clients=1")
    assert not is_told_of_owners("dataset=breast_cancer")
    assert is_told_of_owners("dataset=breast_cancer", "dataset.num_clients=5")
    gone = tmp_path / "gone.csv"
    config = load(["dataset=csv", "dataset.num_clients=2", f"dataset.path={tmp_path / 'each'}"])
    config.dataset.path = str(gone)
    assert [line.startswith(OWNERS) for line in chosen_by_data_lines(config)] == [True]


def below(least, *groups):
    """Return the chance that fewer than `least` clients of independent groups (size, rate) are drawn."""
    if not groups:
        return float(least > 0)
    (n, q), *others = groups
    return sum(
        comb(n, k) * q**k * (1 - q) ** (n - k) * below(least - k, *others)
        for k in range(min(n, least - 1) + 1)
    )


def test_a_line_says_how_often_and_what_to_do():
    group = plan_of(*ROLES).groups[0]
    n, q = len(group.clients), group.sampling_rate
    (line,) = lines()
    assert line.startswith(
        f"group 0: with {n * q:.1f} clients expected a round, {100 * below(3, (n, q)):.0f} % of its coh"
    )
    assert "; further clients send zeros in them, so that there is a sum whoever is drawn. Raise " in line
    assert "Raise privacy.sampling_rate or privacy.min_sampling_rate" in line


@pytest.mark.parametrize(
    "overrides",
    [["privacy.sampling_rate=0.25"], ["method=gdpfed"], ["method=idp_fedavg_scale"], ["method=dp_fedavg"]],
)
def test_enough_clients_or_one_sum_of_all_get_no_line(overrides):
    assert lines(*overrides) == []


def test_cohorts_of_a_fixed_size_are_below_always_or_never():
    fixed = ("method=gdpfed", "privacy.sampling=fixed_size", "privacy.sampling_rate=0.05")
    *groups, rounds = lines(*fixed, minimum=5)
    assert [line.partition(",")[2].split()[0] for line in groups] == ["100"] * 3
    assert rounds.startswith("100 % of the rounds go without any sum")
    assert lines(*fixed, minimum=4) == []


def test_cohorts_are_filled_up_where_a_round_without_a_sum_would_tell_of_a_secret_draw():
    assert fills_cohorts(plan_of(*ROLES, "method=gdpfed"))
    fixed = ("method=gdpfed", "privacy.sampling=fixed_size", "privacy.sampling_rate=0.05")
    everyone = ("privacy.against=everyone", "method=gdpfed_star", "privacy.accountant=pld")
    for overrides in (fixed, everyone, ("method=fedavg",), ("method=dp_fedavg", "privacy.sampling_rate=1")):
        assert not fills_cohorts(plan_of(*ROLES, *overrides))


@pytest.mark.parametrize("method", ["idp_fedavg_scale", "gdpfed"])
def test_small_cohorts_are_those_of_independent_groups_and_have_a_sum_where_they_are_filled(method):
    plan = plan_of(*SIX, "dataset.num_clients=30", f"method={method}")
    groups = [(len(group.clients), group.sampling_rate) for group in plan.groups]
    small, skipped = small_fractions(plan, 3), skipped_fractions(plan, 3)
    apart = [below(3, each) for each in groups]
    together = below(3, *groups) if plan.one_sum else apart[0] * apart[1] * apart[2]
    assert small.rounds == pytest.approx(together, rel=1e-9)
    assert small.sums == pytest.approx([together] if plan.one_sum else apart, rel=1e-9)
    assert skipped.rounds == max(skipped.sums) == 0.0


@pytest.mark.parametrize("method", ["dp_fedavg", "gdpfed", "idp_fedavg_scale"])
def test_a_plan_whose_groups_are_too_small_for_any_sum_is_warned_of_and_refused(method):
    config = load([*SIX, f"method={method}", "secagg.minimum_cohort=3"])
    plan = make_method(config).plan
    said = list(plan_warnings(plan, config))
    if method == "gdpfed":
        assert sum("those rounds are charged and go without it" in line for line in said) == 3
        assert any("100 % of the rounds go without any sum" in line for line in said)
        with pytest.raises(
            PrivacyError, match="100 % of the rounds would be charged without any sum"
        ) as caught:
            refuse_skipped(plan, 3)
        assert "since groups are below secagg.minimum_cohort=3: raise dataset.num_clients" in str(
            caught.value
        )
    else:
        assert any("further clients send zeros in them" in line for line in said)
        refuse_skipped(plan, 3)
    refuse_skipped(plan, 1)


@pytest.mark.parametrize("method", ["dp_sum", "dp_sgd"])
def test_two_parties_are_told_that_a_sum_needs_three(method):
    words = ["dataset=breast_cancer", "dataset.num_clients=2", "privacy=record_level", f"method={method}"]
    plan = make_method(resolve(load([*words, "privacy.budgets=[4]"]))).plan
    said = "A sum needs 3 parties: of a sum of two, each computes what the other has sent"
    with pytest.raises(PrivacyError, match=f"minimum_cohort=3: raise dataset.num_clients. {said}$"):
        refuse_skipped(plan, 3)


def test_fewer_parties_than_a_sum_needs_are_told_how_many_alone():
    words = ["dataset=breast_cancer", "dataset.num_clients=6", "privacy=record_level", "method=dp_sum"]
    plan = make_method(resolve(load([*words, "privacy.budgets=[4]", "privacy.sampling_rate=0.5"]))).plan
    with pytest.raises(PrivacyError, match=r"raise dataset.num_clients. A sum needs 10 parties$"):
        refuse_skipped(plan, 10)


def test_sums_that_tell_how_many_were_drawn_are_warned_of():
    def said(*overrides):
        config = load(["dataset=digits", "method=dp_fedavg", "privacy.against=outsiders", *overrides])
        plan = make_method(config).plan
        return [each for each in plan_warnings(plan, config) if "how many clients were drawn" in each]

    told = "secagg.same_size=false"
    assert said() == said(told, "privacy.sampling_rate=1") == []
    (line,) = said(told)
    assert line.endswith(
        "count that: secagg.same_size=true hides it, with 131 clients a round in place of 72.0"
    )
    (line,) = said(told, "privacy.sampling=allocation")
    assert line.endswith("count that: privacy.sampling=poisson with secagg.same_size=true hides it")


def test_a_delta_above_the_default_is_weak():
    assert lines("privacy.delta=1e-5", "privacy.sampling_rate=0.25") == []
    (line,) = lines("privacy.delta=0.01", "privacy.sampling_rate=0.25")
    assert line.startswith("delta 0.01 is large for 247 clients")
    assert "and one of them all with up to 92 %. The default is 1e-05" in line


def test_a_budget_under_which_nothing_is_learnt_is_named():
    def said(budget):
        config = load(["dataset=digits", f"privacy.budgets=[{budget}]"])
        return [each for each in plan_warnings(make_method(config).plan, config) if "will be learnt" in each]

    (line,) = said(0.0001)
    assert line.startswith("a budget of 0.0001 asks for noise in every coordinate of ")
    assert said(1) == []


def test_what_it_costs_that_a_member_knows_its_own_noise_is_said_where_few_share_it():
    def said(*overrides):
        config = load(["dataset=digits", "method=dp_fedavg", *overrides])
        plan = make_method(config).plan
        details = [each.value for each in plan_details(plan, config)]
        warned = (*details, *plan_warnings(plan, config))
        return [each for each in warned if each.startswith(("every member", "epsilon assumes a server"))]

    few = ("dataset.num_clients=6", "privacy.sampling_rate=1.0", "privacy.against=outsiders")
    (line,) = said(*few)
    assert "in sums of 6 that is 20 % more variance" in line
    assert said(*few, "secagg=off") == said("dataset.num_clients=100", "privacy.against=outsiders") == []
    turns = ("dataset.num_clients=100", "privacy.against=everyone", "privacy.noise_taps=1")
    (line,) = said(*turns)
    assert "nothing is left of it; secagg.mode=active withstands that" in line
    assert said(*turns, "secagg.mode=active", "secagg.identities=first_seen") == []
