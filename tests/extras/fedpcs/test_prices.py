"""Tests of posted prices in FedPCS: clients' best answers, sweeps of prices, and pictures of games."""

import json
import re
from itertools import pairwise

import numpy as np
import pytest
from scipy import optimize

from conf.load import load
from gdpfed.cli.app import main
from gdpfed.errors import InputError
from gdpfed.extras.fedpcs.client_budgets import epsilon_of_total
from gdpfed.extras.fedpcs.game.payoffs import GameError
from gdpfed.extras.fedpcs.game.posted_price import PostedPrice
from gdpfed.extras.fedpcs.prices import sweep
from gdpfed.methods import make_method

FIFTEEN = ["dataset.num_clients=15", "privacy.accountant=rdp", "method=gdpfed_plus", "run.num_rounds=5"]
AVERSIONS = np.linspace(0.05, 0.95, 15)


def test_an_answer_is_the_best_of_all_and_so_is_the_welfare():
    posted = PostedPrice(price=0.3, least=0.05, highest=1.0)
    answers = posted.budgets(AVERSIONS)
    for aversion, answer in zip(AVERSIONS, answers, strict=True):
        found = optimize.minimize_scalar(
            lambda rho, c=aversion: c * rho**2 - 0.3 * rho, bounds=(0.05, 1.0), method="bounded"
        )
        assert answer == pytest.approx(found.x, abs=1e-4)
    best = (0.3 * answers - AVERSIONS * answers**2).sum()
    others = np.random.default_rng(0).uniform(0.05, 1.0, (1000, 15))
    assert (0.3 * others - AVERSIONS * others**2).sum(axis=1).max() < best


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ({"price": 0.0}, "a price of 0.0 is posted"),
        ({"price": float("nan")}, "a price of nan is posted"),
        ({"price": "much"}, "a price of 'much' is posted"),
        ({"least": 2.0}, "budgets from 2 to 1 are asked for"),
        ({"more": 1.0}, "lacks entries or has unknown ones: more"),
    ],
)
def test_a_price_that_is_none_is_refused(numbers, words):
    with pytest.raises(GameError, match=words):
        PostedPrice.from_scalars({"price": 1.0, "least": 0.1, "highest": 1.0} | numbers)


def test_a_sweep_goes_from_little_spending_and_much_noise_to_the_opposite():
    config = load([*FIFTEEN, f"privacy.client_aversions={AVERSIONS.tolist()}"])
    rows = list(sweep(config))
    assert [row.posted.price for row in rows] == pytest.approx(np.geomspace(0.002, 1.0, 9))
    for earlier, later in pairwise(rows):
        assert earlier.spent < later.spent
        assert earlier.welfare < later.welfare
        assert (earlier.noise_magnitude or 0) > (later.noise_magnitude or 0) > 0
    for row in rows:
        rho = np.clip(row.posted.price / (2 * AVERSIONS), 0.001, 1.0)
        assert row.budgets == pytest.approx(rho)
        assert row.paid == pytest.approx(row.posted.price * rho.sum())
        assert row.welfare == pytest.approx((row.posted.price * rho - AVERSIONS * rho**2).sum())
        assert row.epsilons == pytest.approx([epsilon_of_total(each, 1e-5) for each in rho.tolist()])
        assert set(row.groups) <= set(row.epsilons.tolist())
    # The plan is that of clients with these budgets.
    said = ["privacy.budgets=clients", f"privacy.client_budgets={rows[4].epsilons.tolist()}"]
    method = make_method(load([*FIFTEEN, *said]))
    assert method.weighting.noise_magnitude(method.plan) == pytest.approx(rows[4].noise_magnitude)


def test_a_price_of_the_runs_own_stands_alone_and_one_without_a_plan_says_why():
    mine = ["privacy.budgets=clients", f"privacy.client_aversions={[0.5] * 15}", "privacy.price=0.2"]
    (row,) = sweep(load([*FIFTEEN, *mine, "privacy.num_groups=3"]))
    assert row.spent == pytest.approx(15 * 0.2)
    assert row.noise_magnitude is None
    assert "privacy.num_groups=3 is more than the 1 distinct budgets" in row.reason


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            ["privacy.client_aversions=[0.5]"],
            "privacy.client_aversions has 1 entries for dataset.num_clients=15",
        ),
        (["privacy.client_aversions=[0.5,1]"], "privacy.client_aversions=[0.5, 1.0] must lie in (0, 1)"),
        (["privacy.price=0.1"], "set privacy.budgets=clients"),
        (["privacy.price=0", "privacy.budgets=clients"], "privacy.price=0.0 must be above 0"),
        (["privacy.price_bounds=[1,0.1]"], "privacy.price_bounds=[1.0, 0.1] must be the least and"),
        (["privacy.price_bounds=[0.1]"], "privacy.price_bounds=[0.1] must be the least and"),
        (["method=fedavg"], "method=fedavg has no budgets that clients could choose by a price"),
        (["method=fedpcs", "privacy=record_level", "privacy.accountant=pld"], "method=fedpcs has no budgets"),
    ],
)
def test_what_cannot_be_priced_is_one_line(overrides, words):
    chosen = overrides[0].startswith("method=")
    usual = [word for word in FIFTEEN if not (chosen and word.startswith("method="))]
    with pytest.raises(InputError, match=re.escape(words)) as error:
        list(sweep(load([*usual, *overrides])))
    assert "\n" not in str(error.value)


def test_the_command_prints_a_sweep_as_table_and_json_and_draws_it(capsys, tmp_path):
    picture = tmp_path / "prices.png"
    assert main(["plan", "--price", *FIFTEEN, "--output", str(picture)]) == 0
    said = capsys.readouterr().out
    assert "gdpfed_plus: posted prices" in said
    assert all(heading in said for heading in ("zCDP", "welfare", "Lambda", "median"))
    assert max(map(len, said.splitlines())) <= 100
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert main(["plan", "--price", "--json", *FIFTEEN]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 9
    assert {"price", "spent_zcdp", "paid", "welfare", "epsilons", "noise_magnitude"} <= rows[0].keys()


GAME = ["dataset.num_clients=12", "privacy=record_level", "method=fedpcs", "run.num_rounds=4"]
ANSWERED = [f"method.paths={[[1.0] * 4] * 12}", f"method.announced={[[2.0] * 4, [1.0] * 4]}"]


@pytest.mark.parametrize("more", [[], ["method.types=clients", *ANSWERED]])
def test_a_plan_draws_its_game(tmp_path, more):
    picture = tmp_path / "game.png"
    assert main(["plan", *GAME, *more, "--output", str(picture)]) == 0
    assert picture.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["privacy.accountant=rdp", "--output", "a.png"], "this plan has no picture: leave --output out"),
        (["--compare", "--output", "a.png"], "this question has no picture"),
        (["--price", "--output", "a.txt"], "--output=a.txt must be a .png file"),
    ],
)
def test_a_plan_without_a_game_has_no_picture(capsys, monkeypatch, tmp_path, arguments, words):
    monkeypatch.chdir(tmp_path)
    assert main(["plan", *arguments]) == 2
    assert words in capsys.readouterr().err
