import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdpfed.errors import PrivacyError
from gdpfed.privacy.planning.groups import (
    Group,
    check_disjoint,
    default_delta,
    exposure,
    form_groups,
    groups_from_shares,
    merge_groups,
    paper_delta,
)


def test_equal_shares_are_contiguous_ranges():
    groups = groups_from_shares(6000, (0.5, 1.5, 3.0))
    assert [group.clients for group in groups] == [range(2000), range(2000, 4000), range(4000, 6000)]
    assert [group.epsilon for group in groups] == [0.5, 1.5, 3.0]


def test_shares_of_table_8():
    sizes = [group.size for group in groups_from_shares(6000, (0.5, 1.5, 3.0), (1 / 6, 4 / 6, 1 / 6))]
    assert sizes == [1000, 4000, 1000]


def test_largest_remainders_decide_rounding():
    assert [g.size for g in groups_from_shares(10, (1, 2, 3), (0.18, 0.46, 0.36))] == [2, 5, 3]
    assert [g.size for g in groups_from_shares(3, (1, 2, 3), (0.98, 0.01, 0.01))] == [1, 1, 1]


@given(st.integers(1, 2000), st.lists(st.floats(0.01, 1), min_size=1, max_size=8))
def test_rounding_keeps_every_client_and_stays_near_the_quota(num_clients, parts):
    if num_clients < len(parts):
        return
    shares = [part / sum(parts) for part in parts]
    groups = groups_from_shares(num_clients, range(1, len(parts) + 1), shares)
    ids = [client for group in groups for client in group.clients]
    assert ids == list(range(num_clients))
    if min(shares) * num_clients >= 1:
        assert all(abs(g.size - s * num_clients) < 1 for g, s in zip(groups, shares, strict=True))


@given(st.lists(st.sampled_from([0.1, 0.5, 1.0, 1.5, 3.0, 20.0]), min_size=1, max_size=60), st.data())
def test_no_client_exceeds_its_own_budget_and_ties_stay_together(epsilons, data):
    distinct = len(set(epsilons))
    groups = form_groups(epsilons, num_groups=data.draw(st.integers(1, distinct)))
    assert sorted(client for group in groups for client in group.clients) == list(range(len(epsilons)))
    for group in groups:
        assert group.epsilon == min(epsilons[client] for client in group.clients)
    assert sum(len({epsilons[c] for c in group.clients}) for group in groups) == distinct
    assert list(groups) == sorted(groups, key=lambda group: group.epsilon)


@given(
    st.lists(st.floats(0.01, 20), min_size=1, max_size=40),
    st.lists(st.floats(0.1, 10), max_size=4, unique=True).map(sorted),
)
def test_edges_bound_the_budgets_of_a_group(epsilons, edges):
    for group in form_groups(epsilons, edges=edges):
        values = [epsilons[client] for client in group.clients]
        assert group.epsilon == min(values)
        assert not any(min(values) < edge <= max(values) for edge in edges)


def test_exactly_as_many_groups_as_asked_for_even_with_heavy_ties():
    groups = form_groups([1.0] * 97 + [2.0, 3.0, 4.0], num_groups=4)
    assert [group.size for group in groups] == [97, 1, 1, 1]
    assert groups[0].clients == range(97)


def test_a_million_budgets_form_groups():
    budgets = np.repeat([0.5, 1.5, 3.0], [300_000, 300_000, 400_000])
    assert [g.clients for g in form_groups(budgets.tolist(), num_groups=3)][2] == range(600_000, 1_000_000)


def test_merging_keeps_all_clients_at_the_smallest_budget():
    assert merge_groups(groups_from_shares(10**6, (0.5, 1.5))) == Group(0.5, range(10**6))
    assert merge_groups([Group(2.0, [7, 1]), Group(1.0, range(3, 5))]) == Group(1.0, (1, 3, 4, 7))


def test_default_delta():
    assert [default_delta(n) for n in (1, 6, 99, 100, 360, 6000, 35_000)] == [1e-5] * 7
    assert default_delta(100_000) == paper_delta(100_000) == 100_000**-1.1 < 1e-5
    assert paper_delta(360) == pytest.approx(0.00154, abs=5e-6)


def test_the_default_is_far_below_one_in_n_and_the_papers_is_not():
    """The chance that any client is exposed is below 0.06 by the default delta, above 0.34 by the paper's."""
    for n in (6, 100, 360, 6000):
        assert exposure(n, default_delta(n)) == pytest.approx(1 - (1 - 1e-5) ** n, rel=1e-9)
        assert exposure(n, default_delta(n)) < 0.06 < 0.34 < exposure(n, paper_delta(n))
    assert exposure(360, paper_delta(360)) == pytest.approx(0.43, abs=5e-3)
    assert exposure(360, 1e-5) == pytest.approx(0.0036, abs=5e-5)
    assert exposure(5, 0.5) == pytest.approx(1 - 0.5**5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: groups_from_shares(9, (1, 2), (0.5, 0.4)), "sums to 0.9; it must sum to one"),
        (
            lambda: groups_from_shares(9, (1, 2), (1.0, 0.0)),
            "privacy.group_shares is 0.0; it must be positive",
        ),
        (lambda: groups_from_shares(9, (1, 2), (1.0,)), "privacy.group_shares has 1 entries for 2 groups"),
        (lambda: groups_from_shares(9, (2, 1)), "must be strictly increasing, but 1 follows 2"),
        (lambda: groups_from_shares(9, (0, 1)), "epsilon is 0; it must be positive and finite"),
        (lambda: groups_from_shares(9, (1, float("inf"))), "epsilon is inf; it must be positive"),
        (lambda: groups_from_shares(9, (1e-300, 1)), "epsilon is 1e-300; no plan can be made of one outside"),
        (
            lambda: groups_from_shares(9, (1, 1e300)),
            "epsilon is 1e\\+300; no plan can be made of one outside",
        ),
        (lambda: groups_from_shares(9, ("1", 2)), "epsilon is '1'; give a number"),  # type: ignore[arg-type]
        (lambda: groups_from_shares(9, ()), "budgets is empty"),
        (lambda: groups_from_shares(2, (1, 2, 3)), "dataset.num_clients=2 is too few for 3 groups"),
        (lambda: groups_from_shares(2.5, (1, 2)), "num_clients is 2.5; give a whole number"),  # type: ignore[arg-type]
        (lambda: form_groups([1, -2], num_groups=1), "epsilon of client 1 is -2.0"),
        (lambda: form_groups([1, float("nan")], num_groups=1), "epsilon of client 1 is nan"),
        (
            lambda: form_groups([1, 1], num_groups=2),
            "privacy.num_groups=2 is more than the 1 distinct budgets",
        ),
        (lambda: form_groups([1, 2]), "give exactly one of the two"),
        (lambda: form_groups([1, 2], edges=[2, 1]), r"edges are \[2, 1\]"),
        (lambda: form_groups([], num_groups=1), "epsilons holds no budgets"),
        (lambda: merge_groups([]), "groups is empty"),
        (lambda: Group(1.0, []), "a group has no clients"),
        (lambda: Group(1.0, [3, -1]), "client id -1 is negative"),
        (lambda: Group(1.0, [3, 3]), "repeats an id"),
        (lambda: check_disjoint([Group(1.0, range(3)), Group(2.0, [2])]), "client 2 is in more than one"),
    ],
)
def test_bad_groups_are_told_in_one_line(make, message):
    with pytest.raises(PrivacyError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)
