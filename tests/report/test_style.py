"""Tests of the style of pictures: a method always looks the same, and an accuracy axis names its range."""

from itertools import combinations

import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from gdpfed.methods import METHODS
from gdpfed.report.metric_display import MetricDisplay, Spread, dataset_label
from gdpfed.report.plots import draw_curves, line_style, method_styles
from testing.small_runs import TRAINING

# What the green-blind and the red-blind see of linear red, green, blue (Machado et al., 2009).
SEEN_BY = {
    "everybody": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "green-blind": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "red-blind": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
}


def seen(colour, matrix):
    """Return a gamma-compressed colour as people see it whose colour vision `matrix` describes."""
    linear = [((c + 0.055) / 1.055) ** 2.4 if c > 0.04045 else c / 12.92 for c in to_rgb(colour)]
    mixed = (min(1.0, max(0.0, sum(m * c for m, c in zip(row, linear, strict=True)))) for row in matrix)
    return [c ** (1 / 2.4) for c in mixed]


@pytest.mark.parametrize("eyes", SEEN_BY)
def test_all_methods_are_told_apart(eyes):
    styles = method_styles(TRAINING)
    for one, other in combinations(styles, 2):
        between = zip(*(seen(each["color"], SEEN_BY[eyes]) for each in (one, other)), strict=True)
        assert sum((a - b) ** 2 for a, b in between) ** 0.5 > 0.1
        assert one["marker"] != other["marker"]


def test_a_method_looks_the_same_whoever_stands_beside_it():
    names = [*TRAINING, "mine", "yours"]
    together = method_styles(names)
    assert together[: len(TRAINING)] == [method_styles([name])[0] for name in TRAINING]
    assert len({style["color"] for style in together}) == len(names)
    first, second = method_styles(["pfa", "pfa"])
    assert first["color"] == second["color"]
    assert (first["linestyle"], first["marker"]) != (second["linestyle"], second["marker"])


@pytest.mark.parametrize(
    ("percents", "expected"),
    [
        ([18.9, 85.8], (15, 90)),
        ([61.0, 62.0], (60, 65)),
        ([100.0], (95, 100)),
        ([0.0], (0, 5)),
        ([], (0, 100)),
    ],
)
def test_the_axis_is_where_the_figures_are(percents, expected):
    assert MetricDisplay.of("accuracy").axis(percents) == expected


def test_several_curves_share_an_axis_that_says_its_range():
    axes = Figure().add_subplot()
    flat, steep = [Spread(40.0, None, 1)] * 3, [Spread(mean, 2.0, 3) for mean in (50.0, 70.0, 81.0)]
    draw_curves(axes, [*zip(method_styles(["fedavg", "pfa"]), ("a", "b"), (flat, steep), strict=True)])
    assert axes.get_ylim() == (40, 85)
    assert axes.get_ylabel() == "test accuracy (%), axis from 40 to 85"


def test_titles_name_methods_and_data_in_words():
    assert all(method.label for method in METHODS.items().values())
    assert METHODS.items().keys() - TRAINING == {"client_statistics", "record_statistics", "trees"}
    assert dataset_label("image_folder", "/data/xrays") == "own pictures in xrays"
    assert dataset_label("npz", "/data/mine.npz") == "own data in mine.npz"
    assert dataset_label("cifar10", "/data") == "CIFAR-10"


def test_the_axis_shows_what_lies_beside_the_curves_and_whole_lines_at_its_ends():
    axes = Figure().subplots()
    draw_curves(axes, [(line_style(0), "a", [Spread.of([90.0]), Spread.of([100.0])])], beside=[63.0])
    assert axes.get_ylim() == (60, 100)
    assert axes.get_ylabel().endswith("axis from 60 to 100")
    assert not axes.lines[0].get_clip_on()


def test_runs_that_were_not_evaluated_have_no_mean_and_no_spread():
    nothing = Spread.of([float("nan")] * 2)
    assert (nothing.stddev, nothing.count, nothing.text()) == (None, 2, "not evaluated")
    assert Spread.of([1.0, 3.0]).text() == "2.0 ± 1.4"
