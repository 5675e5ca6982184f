"""Test of the table of accuracy differences between methods, whose runs are paired by their seeds."""

from types import SimpleNamespace

from benchmarks.readings import differences


def runs(*results):
    return [SimpleNamespace(final_result=result) for result in results]


def test_differences_are_taken_by_seed_and_have_an_interval():
    found = {"fedavg": runs(75.0, 77.0, 79.0), "gdpfed_plus": runs(74.0, 75.0, 76.0)}
    table = differences("a reading", found)
    # 1, 2 and 3 more: mean 2, standard deviation 1, t(0.975, 2) = 4.303.
    assert [tuple(row) for row in table.rows] == [("fedavg", "3", "2.0 ± 2.5")]
