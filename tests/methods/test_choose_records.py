"""Tests of what record-level methods choose where a user sets nothing: from public numbers alone."""

import json
import math

import pytest

from conf.load import load
from gdpfed.cli import main
from gdpfed.errors import ConfigError
from gdpfed.methods import make_method, resolve
from gdpfed.privacy.accountants.gaussian import gaussian_sigma
from gdpfed.privacy.mechanisms.records.mechanism import records_of

TABLE = ("dataset=breast_cancer", "privacy=record_level", "privacy.budgets=[1]", "privacy.accountant=rdp")
RECORDS = 455


def resolved(*overrides):
    return resolve(load([*TABLE, *overrides]))


def test_what_is_set_stays_and_a_resolved_configuration_resolves_to_itself():
    config = resolved("method=dp_sum", "training.learning_rate=0.3", "dataset.num_rounds=40")
    assert (config.training.learning_rate, config.run.num_rounds) == (0.3, 40)
    keys = {each.partition("=")[0] for each in config.method.chosen}
    assert keys.isdisjoint({"training.learning_rate", "run.num_rounds"})
    assert "privacy.batch_rate" in keys
    assert resolve(config) == config
    assert resolved("method=dp_sum", "method.chosen=[]").run.num_rounds == 20


@pytest.mark.parametrize(("method", "sharing"), [("dp_sum", 1), ("dp_sgd", math.sqrt(6))])
def test_the_steps_bring_the_noise_that_is_said(method, sharing):
    """By the exact plan, the chosen settings add noise of deviation about 0.4 to each model parameter."""
    config = resolved(f"method={method}")
    (records,) = records_of(make_method(config).plan)
    steps = config.run.num_rounds * (1 if sharing == 1 else config.training.local_steps)
    assert steps == 300
    noise = records.clipping_norm * records.noise_multiplier / (config.privacy.batch_rate * RECORDS)
    brought = config.training.learning_rate * math.sqrt(steps) * noise * sharing
    assert brought == pytest.approx(0.4, rel=0.15)


def test_a_larger_budget_never_makes_a_shorter_way():
    rates = [resolved("method=dp_sum", f"privacy.budgets=[{each}]") for each in (0.5, 1, 4, 16, 64)]
    ways = [each.training.learning_rate * each.run.num_rounds for each in rates]
    assert ways == sorted(ways)
    assert ways[-1] == 300  # No step is longer than 1.


def test_the_choice_looks_at_no_record(monkeypatch):
    counts = "privacy.client_records=[76,76,76,76,76,75]"
    expected = resolved("method=dp_sum", counts)
    monkeypatch.setattr("gdpfed.methods.record_method.configured_dimension", lambda config: 62)
    monkeypatch.setattr("gdpfed.learning.task.Task.load", lambda self: pytest.fail("data was loaded"))
    assert resolved("method=dp_sum", counts) == expected


def test_what_budgets_buy_is_one_over_their_gaussian_parameters(capsys, tmp_path):
    """`gdpfed plan` states 1 to 1.2 times the noise of one Gaussian release with the same epsilon."""
    words = ["plan", *TABLE, "method=dp_sum", "--epsilons", "4,0.5,1"]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["epsilon"] for each in found] == [0.5, 1, 4]
    for each in found:
        assert 1 <= each["noise"] / gaussian_sigma(each["epsilon"], 1e-5) < 1.2
    assert main([*words, "--output", str(tmp_path / "noise.png")]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
    assert (tmp_path / "noise.png").stat().st_size > 0


def test_what_cannot_be_chosen_is_named():
    with pytest.raises(ConfigError, match=r"method.chosen=run.seed is not known: use run.num_rounds"):
        load([*TABLE, "method=dp_sum", "method.chosen=[run.seed]"])


def test_the_command_says_why_and_the_plan_says_what(capsys):
    words = ["plan", *TABLE, "method=dp_sum"]
    assert main([*words, "--choose"]) == 0
    assert "to paste:\nrun.num_rounds=300" in capsys.readouterr().out
    assert main(words) == 0
    assert "Chosen from public numbers: 300 rounds, 20 % of the records" in capsys.readouterr().out
