"""Tests of H2FDP's control, which chooses settings: the radio model, the search, and controlled runs."""

import math
import re
from dataclasses import replace
from itertools import product
from typing import cast

import numpy as np
import pytest

from conf.load import load
from conf.schema import SecAggConfig
from gdpfed.audit.run_audit import audit_run
from gdpfed.clients.configured import order_of, task_of
from gdpfed.clients.noise import noise_steps
from gdpfed.errors import ConfigError, InputError
from gdpfed.extras.h2fdp.control import (
    BACKHAUL,
    FACTORS,
    Cost,
    Problem,
    device_link,
    planned_noise,
    printed_noise,
    solve,
)
from gdpfed.extras.h2fdp.h2fdp import H2FDP
from gdpfed.extras.h2fdp.subnet_sums import Trust
from gdpfed.methods import make_method, resolve
from gdpfed.methods.sum_parameters import sum_parameters
from gdpfed.privacy.accountants.estimate import estimated_mixture_noise
from gdpfed.privacy.events import LocalWindows
from gdpfed.privacy.mechanisms.records.mechanism import records_of
from gdpfed.report.plan_table import plan_lines
from gdpfed.report.run_observers import ModelCard
from gdpfed.rounds.plain import sum_noise_steps
from gdpfed.runs.resume import load_run
from gdpfed.runs.round_log import read_rounds
from gdpfed.simulation import simulate

BITS = 7840 * 32
HALVES: dict[Trust, int] = {"trusted": 5, "untrusted": 5}
BASE = (
    "method=h2fdp",
    "dataset=digits",
    "dataset.num_clients=16",
    "dataset.model=softmax",
    "privacy=record_level",
    "privacy.budgets=[4]",
    "privacy.batch_rate=0.2",
    "training.local_steps=4",
    "method.num_subnets=2",
    "method.local_aggregations=2",
    "method.most_local_steps=8",
    "run.num_rounds=6",
    "secagg=off",
)
PLANNED = (*BASE, "method.control=planned")


def round_cost(dimension, sizes, windows, metres, *, together=False):
    """Return energy and time of a round: devices send to their edges, then edges to the cloud and back.

    Of a sum sum_c s_c d Q / R; edges to the cloud and back: E = S p d Q / R, D = 2 S d Q / R.
    """
    link, bits, count = device_link(metres), dimension * 32, len(sizes)
    slots = count if together else sum(sizes)
    return Cost(
        windows * sum(sizes) * link.joules(bits) + count * BACKHAUL.joules(bits),
        windows * slots * link.seconds(bits) + 2 * count * BACKHAUL.seconds(bits),
    )


@pytest.mark.parametrize(
    ("metres", "megabits", "milliseconds", "millijoules"),
    [(10, 23.087, 10.867, 2.7295), (50, 14.380, 17.446, 4.3823), (100, 10.631, 23.599, 5.9277)],
)
def test_links_are_those_of_the_source_with_its_decibels_converted(
    metres, megabits, milliseconds, millijoules
):
    link = device_link(metres)
    assert link.bits_a_second / 1e6 == pytest.approx(megabits, rel=1e-4)
    assert 1e3 * link.seconds(BITS) == pytest.approx(milliseconds, rel=1e-4)
    assert 1e3 * link.joules(BITS) == pytest.approx(millijoules, rel=1e-4)
    assert 1e3 * BACKHAUL.seconds(BITS) == pytest.approx(2.5088)
    assert 1e3 * BACKHAUL.joules(BITS) == pytest.approx(15.829, rel=1e-4)
    in_turns = round_cost(7840, [5, 7], 4, metres)
    assert in_turns.joules == pytest.approx((4 * 12 * millijoules + 2 * 15.829) / 1e3, rel=1e-4)
    assert in_turns.seconds == pytest.approx((4 * 12 * milliseconds + 4 * 2.5088) / 1e3, rel=1e-4)
    assert round_cost(7840, [5, 7], 4, metres, together=True).joules == in_turns.joules
    assert round_cost(7840, [5, 7], 4, metres, together=True).seconds < in_turns.seconds / 4


def noise_of_source(power=3):
    return printed_noise(
        dimension=7840,
        batch_rate=0.05,
        gradient_norm=1.0,
        delta=1e-5,
        epsilon=1.0,
        windows=lambda tau: 4,
        subnets=HALVES,
        power=power,
    )


def problem(weights, power=3):
    return Problem(
        total_steps=4000,
        local_steps=range(1, 41),
        windows=lambda tau: 4,
        subnets=HALVES,
        sizes=dict.fromkeys(HALVES, range(1, 16)),
        dimension=7840,
        weights=weights,
        noise_scale=30.0,
        distance=50.0,
        together=False,
        noise=noise_of_source(power),
    )


def test_the_printed_noise_is_the_theorems():
    sizes = {word: np.asarray([5.0]) for word in HALVES}
    assert noise_of_source()(20, sizes)[0] == pytest.approx(14_081, rel=1e-4)
    assert noise_of_source(2)(20, sizes)[0] == pytest.approx(3_683, rel=1e-4)


@pytest.mark.parametrize(
    ("weights", "power", "tau", "trusted", "untrusted"),
    [
        ((1, 1, 1), 3, 40, 6, 9),
        ((4, 1, 1), 3, 40, 5, 7),
        ((1, 1, 4), 3, 36, 8, 15),
        ((1, 1, 0.25), 3, 40, 4, 5),
        ((1, 4, 1), 3, 40, 4, 5),
        ((1, 1, 1), 2, 40, 4, 5),
        ((1, 1, 4), 2, 40, 6, 10),
    ],
)
def test_choices_are_those_of_a_search_by_hand(weights, power, tau, trusted, untrusted):
    chosen = solve(problem(weights, power))
    assert (chosen.local_steps, dict(chosen.sizes)) == (tau, {"trusted": trusted, "untrusted": untrusted})


def test_the_best_steps_are_where_costs_and_noise_grow_alike():
    """The chosen number of local steps is the closed-form optimum, rounded up or down."""
    one = replace(problem((1, 1, 4)), sizes={"trusted": [8], "untrusted": [15]})
    a_round = round_cost(7840, [8] * 5 + [15] * 5, 4, 50.0)
    a_step = noise_of_source()(1, {"trusted": np.asarray([8.0]), "untrusted": np.asarray([15.0])})[0]
    best = math.sqrt(4000 * (a_round.joules + a_round.seconds) * 30 / (4 * a_step))
    assert solve(one).local_steps in (math.floor(best), math.ceil(best))
    assert solve(one).cost.joules == pytest.approx(4000 / solve(one).local_steps * a_round.joules)


def test_noise_that_is_planned_is_added_up_over_subnets():
    noise = planned_noise(
        variance=lambda tau, trust, size: tau / size ** (1 if trust == "untrusted" else 2),
        dimension=10,
        smoothness=0.5,
        learning_rate=0.1,
        windows=lambda tau: 2,
        subnets={"trusted": 1, "untrusted": 3},
    )
    found = noise(4, {"trusted": np.asarray([2.0, 5.0]), "untrusted": np.asarray([4.0, 4.0])})
    assert found == pytest.approx([0.5 * 10 * 2 / (0.1 * 4 * 16) * (4 / s**2 + 3 * 4 / 4) for s in (2, 5)])


@pytest.mark.parametrize(
    ("bound", "rate", "steps", "releases", "epsilon", "calibrated"),
    [
        ("convex", 0.05, 5, 800, 1.0, 26.45),
        ("convex", 0.2, 5, 60, 2.0, 15.65),
        ("window", 0.05, 5, 800, 1.5, 10.30),
    ],
)
def test_the_estimate_that_choices_are_compared_by_is_near_the_plans(
    bound, rate, steps, releases, epsilon, calibrated
):
    window = LocalWindows(
        bound=bound, batch_rate=rate, noise_multiplier=1.0, num_steps=steps, window_steps=steps
    )
    found = estimated_mixture_noise(window.mixture, releases, epsilon=epsilon, delta=1e-5)
    assert found == pytest.approx(calibrated, rel=0.015)


def test_a_configuration_is_resolved_once_and_for_all():
    config = load(PLANNED)
    chosen = resolve(config)
    assert chosen.method.total_steps == 24
    assert chosen.training.local_steps % 2 == 0
    assert chosen.run.num_rounds == math.ceil(24 / chosen.training.local_steps)
    assert len(chosen.method.participants) == 2
    assert resolve(chosen) == chosen
    plain = resolve(load(BASE))
    assert resolve(plain) == plain
    assert (plain.training, plain.run) == (load(BASE).training, load(BASE).run)
    dear = resolve(load([*PLANNED, "method.control_weights=[100,100,0]"]))
    assert (dear.training.local_steps, dear.method.participants) == (8, [3, 3])
    quiet = resolve(load([*PLANNED, "method.control_weights=[0,0,1]", "method.most_participants=5"]))
    assert quiet.method.participants == [5, 5]


def test_the_plan_shows_the_choice_and_a_picture_of_it():
    lines = plan_lines(
        make_method(load([*PLANNED, "method.mechanism=step_local", "method.trust=untrusted"])), SecAggConfig()
    )
    text = " ".join(lines)
    assert "Modelled, not measured" in text
    # Factors that come to the same choice share a row.
    for weight, factor in product(("a1, energy", "a2, delay", "a3, noise"), ("0.125", "8")):
        assert any(weight in line and re.search(rf"\b{factor} ", line) and "▇" in line for line in lines)
    assert sum("▇" in line for line in lines) < 3 * len(FACTORS)
    assert text.index("where one weight is multiplied") < text.index("control: chosen before training")
    config = resolve(load([*PLANNED, "method.mechanism=step_local", "method.trust=untrusted"]))
    words = (
        f"The run makes {config.run.num_rounds} rounds of {config.training.local_steps} steps, in place of"
    )
    assert words in " ".join(text.split())


def card_alone(run, announce):
    return [ModelCard(run)]


@pytest.mark.parametrize("mechanism", ["step_sum", "step_local"])
def test_every_mechanism_for_records_runs_under_control(tmp_path, mechanism):
    own = ["method.trust=untrusted"] if mechanism == "step_local" else []
    sums = ["method.local_aggregations=null"] if mechanism == "step_sum" else []
    overrides = [*PLANNED, *own, *sums, f"method.mechanism={mechanism}"]
    run = tmp_path / "run"
    simulate(
        load([*overrides, f"run.directory={run}", "run.stop_after_round=1"]),
        make_observers=card_alone,
    )
    simulate(load_run([f"run.resume={run}", "run.stop_after_round=null"]), make_observers=card_alone)
    config, records = load_run([f"run.resume={run}"]), read_rounds(run)
    assert len(records) == config.run.num_rounds
    assert {size for record in records for size in record.survivors} <= set(config.method.participants)
    assert audit_run(run).findings == ()


@pytest.mark.parametrize(
    ("overrides", "refusal"),
    [
        (["method.control_weights=[0,0,0]"], "none negative and not all of them zero"),
        (["method.control_weights=[1,1]"], "must be three numbers"),
        (["method.control=adaptive"], "has no accounting for windows"),
        (["method.control=often"], "method.control=often is not known: use none or planned"),
        (["method.control_noise=guessed"], "is not known: use planned, printed or corrected"),
        (["method.local_aggregations=3"], "choose a number that divides them"),
        (
            ["method.local_aggregations=4", "method.most_local_steps=2"],
            "too few for method.local_aggregations=4",
        ),
        (["method.participants=3"], "leave it out, or bound them by method.most_participants"),
        (["method.participants=[9,3]"], "choose at most 8"),
        (["method.participants=[3,3,3]"], "one for each of method.num_subnets=2"),
        (["method.most_participants=1"], "below secagg.minimum_cohort=3"),
        (["method.distance=0"], "must be at least 1 metre"),
        (["method.noise_scale=0"], "method.noise_scale=0.0 must be above 0"),
        (["privacy=client_level"], "is for runs that protect records"),
        (["dataset.model=linear", "method.mechanism=window"], "give method.smoothness"),
    ],
)
def test_what_cannot_be_had_is_one_line(overrides, refusal):
    with pytest.raises(InputError) as refused:
        resolve(load([*PLANNED, *overrides]))
    assert refusal in str(refused.value)
    assert "\n" not in str(refused.value)


def test_participants_that_are_not_chosen_are_refused():
    with pytest.raises(ConfigError, match="are not those that method.control=planned chooses"):
        resolve(load([*PLANNED, "method.control_weights=[100,100,0]", "method.participants=[5,5]"]))


@pytest.mark.parametrize("mode", ["curious", "off"])
def test_the_noise_that_is_shown_is_that_of_the_sum(mode):
    """The noise that a plan shows agrees with the noise measured in a sum, with masks and without."""
    overrides = [
        f"secagg.mode={mode}",
        "dataset.num_clients=10",
        "secagg.corrupt_tolerance=0.2",
        "secagg.dropout_tolerance=0.2",
    ]
    config = load([*BASE, "method.mechanism=step_sum", "method.local_aggregations=null", *overrides])
    method = cast("H2FDP", make_method(config))
    group = method.plan.groups[0]
    parameters = sum_parameters(
        config.secagg,
        label="sum",
        num_clients=5,
        dimension=20_000,
        clipping_norm=group.clipping_norm,
        noise_multiplier=group.noise_multiplier,
    )
    order = order_of(config, task_of(config))
    if mode == "off":
        steps = sum_noise_steps(order, parameters)
    else:
        steps = np.sum([noise_steps(order, parameters, 5) for _ in range(5)], axis=0)
    noise = steps * parameters.encoding(5).grid
    batches = 0.2 * method.record_counts[:5].sum()
    expected = noise.std() * method.learning_rate(0) / batches
    assert method.mean_noise(0) == pytest.approx(expected, rel=0.03)
    records = records_of(method.plan)[0]
    excess = 1 if mode == "off" else math.sqrt(5 / 3)
    exact = records.noise_multiplier * records.clipping_norm * excess
    assert method.mean_noise(0) == pytest.approx(exact * method.learning_rate(0) / batches)
