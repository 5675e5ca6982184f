"""Tests of confidence intervals of metrics: against tables and definitions, and their coverage."""

from math import sqrt

import numpy as np
import pytest
from scipy.stats import norm

from gdpfed.learning.labels import METRICS
from gdpfed.learning.labels.classes import auc, auc_error
from gdpfed.learning.labels.intervals import area_interval, interval_of, redrawn_interval, share_interval


def test_a_share_has_wilsons_interval():
    # Newcombe, Statistics in Medicine 17 (1998), table I: 15 of 148 and 0 of 20.
    assert share_interval(np.arange(148) < 15) == pytest.approx((0.0624, 0.1605), abs=5e-5)
    assert share_interval(np.zeros(20, dtype=bool)) == pytest.approx((0.0, 0.1611), abs=5e-5)


@pytest.mark.parametrize(("area", "members", "others"), [(0.972, 13, 14), (0.497, 34, 34), (0.8, 5, 200)])
def test_the_ends_of_an_area_are_1_96_of_their_own_errors_away(area, members, others):
    low, high = area_interval(area, members, others)
    for end in (low, high):
        assert abs(area - end) == pytest.approx(1.959964 * auc_error(end, members, others), rel=1e-5)
    assert low < area < high


def test_an_area_of_one_on_few_examples_is_not_certain():
    assert area_interval(1.0, 5, 5) == pytest.approx((0.643, 1.0), abs=0.001)
    assert area_interval(0.0, 5, 5) == pytest.approx((0.0, 0.357), abs=0.001)
    assert area_interval(1.0, 500, 500)[0] > 0.99


def test_of_1000_models_949_or_so_have_their_area_in_the_interval():
    rng, inside, apart = np.random.default_rng(3), 0, 1.5
    true = norm.cdf(apart / sqrt(2))
    targets = np.array([1] * 20 + [0] * 25)
    for _ in range(1000):
        outputs = np.zeros((45, 2))
        outputs[:, 1] = rng.normal(size=45) + apart * targets
        low, high = interval_of("auc", METRICS.get("auc"), outputs, targets) or (1.0, 0.0)
        assert low <= (auc(outputs, targets) or 0.0) <= high
        inside += low <= true <= high
    assert 930 <= inside <= 985


def test_other_metrics_are_drawn_again():
    rng = np.random.default_rng(0)
    targets = rng.normal(size=400)
    outputs = (targets + rng.normal(scale=0.5, size=400))[:, None]
    metric = METRICS.get("mean_absolute_error")
    low, high = interval_of("mean_absolute_error", metric, outputs, targets) or (1.0, 0.0)
    errors = abs(outputs[:, 0] - targets)
    half = 1.96 * errors.std() / sqrt(400)
    assert (low, high) == pytest.approx((errors.mean() - half, errors.mean() + half), rel=0.03)
    assert (low, high) == redrawn_interval(metric, outputs, targets)


def test_nothing_is_said_where_a_metric_is_not_defined():
    outputs, alike = np.zeros((6, 2)), np.zeros(6, dtype=np.int64)
    assert interval_of("auc", METRICS.get("auc"), outputs, alike) is None
    assert interval_of("accuracy", METRICS.get("accuracy"), outputs[:0], alike[:0]) is None
