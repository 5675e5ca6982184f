"""Write lifelines_reference.json: results of the program lifelines, with which tests compare ours.

It runs outside of the project's environment, since lifelines asks for an older pandas::

    uv run --no-project --with lifelines==0.30.3 python tests/extras/survival/lifelines_reference.py

The remissions are those of 42 patients with leukaemia, in weeks (Freireich et al., Blood 21, 1963), of whom
21 were given 6-mercaptopurine and 21 a placebo. The other records are drawn.
"""

import json
from pathlib import Path

import numpy as np
from lifelines import KaplanMeierFitter
from lifelines.datasets import load_leukemia
from lifelines.statistics import multivariate_logrank_test
from lifelines.utils import concordance_index


def figures(times, events, groups, expected):
    """Return lifelines' Kaplan-Meier curves, log-rank test and concordance, together with the input."""
    curves = {}
    for group in sorted(set(groups)):
        chosen = groups == group
        fitted = KaplanMeierFitter().fit(times[chosen], events[chosen])
        bands = fitted.confidence_interval_.to_numpy()
        curves[str(group)] = {
            "times": fitted.survival_function_.index.tolist(),
            "survival": fitted.survival_function_.iloc[:, 0].tolist(),
            "low": bands[:, 0].tolist(),
            "high": bands[:, 1].tolist(),
            "median": fitted.median_survival_time_,
        }
    test = multivariate_logrank_test(times, groups, events)
    return {
        "times": times.tolist(),
        "events": events.astype(int).tolist(),
        "groups": groups.tolist(),
        "expected": expected.tolist(),
        "curves": curves,
        "log_rank": {"statistic": float(test.test_statistic), "p_value": float(test.p_value)},
        "concordance": float(concordance_index(times, expected, events)),
    }


def drawn():
    """Draw 120 records of three groups, with whole numbers as times, so that many times are equal."""
    draws = np.random.default_rng(11)
    groups = np.repeat([0, 1, 2], 40)
    happens = np.ceil(draws.exponential(6 + 3 * groups))
    leaves = draws.integers(1, 20, 120)
    expected = np.round(draws.normal(groups, 1.0), 1)
    return np.minimum(happens, leaves), happens <= leaves, groups, expected


def main():
    cells = load_leukemia()
    remissions = (cells["t"], cells["status"] == 1, cells["Rx"], -cells["logWBC"])
    found = {
        "remissions": figures(*(np.asarray(each) for each in remissions)),
        "drawn": figures(*drawn()),
    }
    path = Path(__file__).with_name("lifelines_reference.json")
    path.write_text(json.dumps(found) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
