import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gdpfed.errors import PrivacyError
from gdpfed.privacy.accountants.accountant import make_accountant
from gdpfed.privacy.accountants.calibration import calibrate_noise_multiplier
from gdpfed.privacy.accountants.rdp import rdp_epsilon, rough_fixed_size_epsilon
from gdpfed.privacy.events import SampledGaussian

DELTA = 6000**-1.1
BUDGETS = (0.5, 1.5, 3.0)


def calibrate(name, epsilon, *, rate=0.02, rounds=50, delta=DELTA, size=2000, **rest):
    return calibrate_noise_multiplier(
        make_accountant(name),
        SampledGaussian(
            sampling=rest.get("sampling", "poisson"),
            sampling_rate=rate,
            group_size=size,
            noise_stddev=1.0,
            clipping_norm=1.0,
            adjacency=rest.get("adjacency", "zero_out"),
        ),
        target_epsilon=epsilon,
        num_rounds=rounds,
        delta=delta,
    )


@pytest.mark.parametrize(
    ("name", "rest", "variances"),
    [
        ("rdp", {}, (2.25, 0.90, 0.53)),
        ("pld", {}, (1.63, 0.69, 0.44)),
        ("rdp", {"rate": 0.05, "rounds": 100}, (12.9, 2.50, 1.16)),
        ("rdp", {"sampling": "fixed_size", "adjacency": "replace_one"}, (18.8, 4.51, 2.55)),
        ("rdp", {"sampling": "fixed_size", "adjacency": "zero_out"}, (18.8, 4.51, 2.55)),
    ],
)
def test_published_variances(name, rest, variances):
    found = [calibrate(name, epsilon, **rest) ** 2 for epsilon in BUDGETS]
    assert found == pytest.approx(variances, rel=0.011)


@pytest.mark.parametrize(("name", "variances"), [("rdp", (1.42, 0.87, 0.70)), ("pld", (0.71, 0.67, 0.58))])
def test_variances_at_the_papers_rates(name, variances):
    rates = (0.0069, 0.0189, 0.0342)
    found = [calibrate(name, epsilon, rate=rate) ** 2 for epsilon, rate in zip(BUDGETS, rates, strict=True)]
    assert found == pytest.approx(variances, rel=0.01)


COMBINATIONS = [
    ("pld", "poisson", "zero_out"),
    ("pld", "poisson", "replace_one"),
    ("rdp", "poisson", "zero_out"),
    ("rdp", "fixed_size", "zero_out"),
    ("rdp", "fixed_size", "replace_one"),
]


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from(COMBINATIONS),
    st.floats(0.001, 1.0),
    st.integers(1, 300),
    st.floats(0.1, 20),
    st.sampled_from([1e-6, 1e-5, DELTA]),
)
def test_calibration_ends_on_the_safe_side(combination, rate, rounds, epsilon, delta):
    name, sampling, adjacency = combination
    assume(delta < 0.5 * (1 - (1 - rate) ** rounds))
    setting = {"sampling": sampling, "adjacency": adjacency}
    try:
        sigma = calibrate(name, epsilon, rate=rate, rounds=rounds, delta=delta, **setting)
    except PrivacyError:
        # dp-accounting's fixed-size bound levels off above zero, so that small budgets are refused.
        assert sampling == "fixed_size"
        assert epsilon < 1
        return
    noised = SampledGaussian(
        sampling_rate=rate, group_size=2000, noise_stddev=sigma, clipping_norm=1.0, **setting
    )
    accounted = make_accountant(name).epsilon(noised, rounds, delta)
    assert epsilon * (1 - 1e-3) < accounted <= epsilon


@pytest.mark.parametrize(
    ("epsilon", "rate", "rounds"), [(1e-3, 0.5, 100), (20.0, 1.0, 1), (0.1, 1e-3, 1000), (50.0, 0.01, 3)]
)
def test_extreme_budgets_are_met(epsilon, rate, rounds):
    sigma = calibrate("pld", epsilon, rate=rate, rounds=rounds)
    noised = SampledGaussian(
        sampling="poisson", sampling_rate=rate, group_size=2000, noise_stddev=sigma, clipping_norm=1.0
    )
    accounted = make_accountant("pld").epsilon(noised, rounds, DELTA)
    assert epsilon * (1 - 1e-3) < accounted <= epsilon


def test_more_accurate_accounting_needs_less_noise():
    for epsilon in BUDGETS:
        assert calibrate("pld", epsilon) < calibrate("rdp", epsilon)
        assert calibrate("pld", epsilon) < calibrate("pld", epsilon, adjacency="replace_one")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: calibrate("pld", 0.0), "epsilon is 0.0; it must be positive and finite"),
        (lambda: calibrate("pld", -1), "epsilon is -1; it must be positive"),
        (lambda: calibrate("pld", float("inf")), "epsilon is inf; it must be positive and finite"),
        (lambda: calibrate("pld", 1, rounds=0), "num_rounds is 0; it must be at least 1"),
        (lambda: calibrate("pld", 1, delta=0.0), r"delta is 0.0; it must lie in \(0, 1\)"),
        (lambda: calibrate("pld", 1, rate=1e-9, rounds=5), "not below 5e-09, the chance .* smaller delta"),
        (lambda: calibrate("pld", 1e7, rate=1.0), r"epsilon 1e\+07 needs practically no noise"),
        (lambda: calibrate("pld", 0.1, rate=1.0, rounds=10**18), "cannot be reached by any noise"),
        (lambda: calibrate("rdp", 1e-3, rate=1.0), "lies in a gap .* use the pld accountant"),
        (lambda: calibrate("rdp", 1, adjacency="replace_one"), "use the pld accountant"),
        (lambda: calibrate("pld", 1, sampling="fixed_size"), "use the rdp accountant"),
    ],
)
def test_budgets_out_of_reach_are_told_in_one_line(make, message):
    with pytest.raises(PrivacyError, match=message):
        make()


def test_delta_lies_below_the_chance_of_ever_taking_part():
    """A delta is refused if it is as large as the probability that a client is ever sampled."""
    ever = 1 - 0.99**3
    for delta in (ever * (1 + 1e-9), 2 * ever):
        with pytest.raises(PrivacyError, match="not below 0.0297, the chance"):
            calibrate("pld", 1.0, rate=0.01, rounds=3, delta=delta)
    assert calibrate("pld", 1.0, rate=0.01, rounds=3, delta=ever / 2) > 0


def test_whole_orders_reproduce_the_printed_noise_at_the_papers_rates():
    def variance(orders, rate, epsilon):
        return (
            calibrate_noise_multiplier(
                make_accountant("rdp", orders),
                SampledGaussian(
                    sampling="poisson",
                    sampling_rate=rate,
                    group_size=2000,
                    noise_stddev=1.0,
                    clipping_norm=1.0,
                ),
                target_epsilon=epsilon,
                num_rounds=50,
                delta=DELTA,
            )
            ** 2
        )

    rows = zip((0.0069, 0.0189, 0.0342), (0.5, 1.5, 3.0), (1.42, 0.89, 0.73), strict=True)
    for rate, epsilon, printed in rows:
        whole = variance("whole", rate, epsilon)
        assert whole == pytest.approx(printed, rel=0.01)
        assert variance("fine", rate, epsilon) <= whole * (1 + 1e-3)


def fixed_size(sigma, size):
    return SampledGaussian(
        sampling="fixed_size", sampling_rate=size / 120, group_size=120, noise_stddev=sigma, clipping_norm=1.0
    )


@pytest.mark.parametrize(
    ("sigma", "size", "count", "delta"), [(2.0, 12, 30, 1.5e-3), (4.0, 40, 30, 1e-5), (6.0, 5, 100, 1e-4)]
)
def test_few_orders_of_a_fixed_size_bound_are_never_below_all_of_them(sigma, size, count, delta):
    event = fixed_size(sigma, size)
    rough, exact = rough_fixed_size_epsilon(event, count, delta), rdp_epsilon(event, count, delta)
    assert exact <= rough * (1 + 1e-12)
    assert rough == pytest.approx(exact, rel=0.01)


def test_a_budget_that_needs_high_orders_is_met_all_the_same():
    sigma = calibrate("rdp", 0.02, sampling="fixed_size", rate=0.1, rounds=5, delta=1e-3, size=120)
    exact = rdp_epsilon(fixed_size(sigma, 12), 5, 1e-3)
    assert 0.02 * (1 - 1e-3) < exact <= 0.02
    assert rough_fixed_size_epsilon(fixed_size(sigma, 12), 5, 1e-3) > exact
